"""What one real request proves, and that asking always ends."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from fake_pair import describe
from hypothesis import given
from hypothesis import strategies as st
from loopback import Asked, completion, loopback, send

from spark_pair.description import Server
from spark_pair.metrics import Load
from spark_pair.probe import (
    Answer,
    ProbeResult,
    fetch_load,
    judge,
    probe,
    request,
    result_from_dict,
    without_key,
)

METRICS = """tensorfold:num_requests_running 1
tensorfold:num_requests_waiting 2
tensorfold:generation_tokens_total 3
"""


def server(port: int = 1, timeout: float = 5, key_file: Path | None = None) -> Server:
    """The DeepSeek entry of the fake pair, at a port."""

    def change(data: dict[str, Any]) -> None:
        entry = data["servers"]["deepseek"]
        entry["api"] |= {"port": port, "key_file": str(key_file) if key_file else None}
        entry["probe"] |= {"timeout": timeout, "accept": ["content", "reasoning_content"]}

    return describe(change).server("deepseek")


def reply(message: dict[str, Any], finish: str = "stop", tokens: int = 5) -> str:
    data = completion(choices=[{"message": message, "finish_reason": finish}])
    return json.dumps({**data, "usage": {"completion_tokens": tokens}})


class TestJudge:
    def test_text(self) -> None:
        assert judge(200, json.dumps(completion(" four ")), server()) == ("ok", "", "four")

    def test_reasoning_content_is_text_too(self) -> None:
        body = reply({"content": None, "reasoning_content": "thinking"})
        assert judge(200, body, server())[0] == "ok"

    def test_reasoning_is_not_accepted_where_the_server_does_not_list_it(self) -> None:
        hikari = describe().server("hikari")
        body = json.dumps(
            completion(
                model="Qwen",
                choices=[{"message": {"reasoning_content": "hm"}, "finish_reason": "length"}],
            )
        )
        assert judge(200, body, hikari)[:2] == (
            "bad",
            "the reply has no text (finish_reason 'length')",
        )

    @pytest.mark.fault(36)
    def test_another_model_holds_the_port(self) -> None:
        kind, why, _ = judge(200, json.dumps(completion(model="Qwen")), server())
        assert kind == "mismatch"
        assert "model 'Qwen', expected 'DeepSeek'" in why

    @pytest.mark.parametrize("content", ["", "  \n", None])
    def test_no_text(self, content: str | None) -> None:
        kind, why, _ = judge(200, reply({"content": content}, "length", 16), server())
        assert kind == "bad"
        assert "no text" in why

    @pytest.mark.parametrize("tokens", [0, 1, None])
    def test_an_instant_stop(self, tokens: Any) -> None:
        assert judge(200, reply({"content": ""}, "stop", tokens), server())[0] == "instant_stop"

    def test_a_stop_after_many_empty_tokens_is_no_instant_stop(self) -> None:
        assert judge(200, reply({"content": "\n\n"}, "stop", 9), server())[0] == "bad"

    def test_an_instant_stop_without_usage(self) -> None:
        data = completion("")
        del data["usage"]
        assert judge(200, json.dumps(data), server())[0] == "instant_stop"

    @pytest.mark.fault(43)
    def test_one_repeated_character(self) -> None:
        kind, why, _ = judge(200, reply({"content": "!" * 16}), server())
        assert kind == "bad"
        assert "one repeated character: '!!!!" in why

    @pytest.mark.parametrize("text", ["4", "ok", "11", "!!?"])
    def test_short_answers_are_no_collapse(self, text: str) -> None:
        assert judge(200, reply({"content": text}), server())[0] == "ok"

    @pytest.mark.parametrize(
        ("status", "kind"),
        [(400, "mismatch"), (401, "mismatch"), (404, "mismatch"), (429, "overloaded"),
         (500, "http"), (502, "http"), (503, "overloaded")],
    )  # fmt: skip
    def test_a_refused_question_is_no_dead_server(self, status: int, kind: str) -> None:
        assert judge(status, "{}", server())[0] == kind

    def test_an_error_status(self) -> None:
        kind, why, _ = judge(500, '{"error": "CUDA"}', server())
        assert (kind, why) == ("http", 'HTTP 500: {"error": "CUDA"}')

    @pytest.mark.parametrize(
        "body",
        [
            "",
            "<html>",
            "null",
            "3",
            '"choices"',
            "[]",
            '{"error": {"message": "no such model", "code": 404}}',
            '{"model": "DeepSeek", "choices": []}',
            '{"model": "DeepSeek", "choices": {}}',
            '{"model": "DeepSeek", "choices": [null]}',
            '{"model": "DeepSeek", "choices": ["text"]}',
            '{"model": "DeepSeek", "choices": [{"text": "old api"}]}',
            '{"model": "DeepSeek", "choices": [{"message": null}]}',
            '{"model": "DeepSeek", "choices": [{"message": "text"}]}',
            '{"model": "DeepSeek", "choices": [{"message": ["text"]}]}',
        ],
    )
    def test_a_200_that_is_no_completion(self, body: str) -> None:
        kind, why, _ = judge(200, body, server())
        assert kind == "bad"
        assert "no chat completion" in why

    @pytest.mark.parametrize("usage", [None, 3, "x", [], {"completion_tokens": "1"}])
    def test_a_strange_usage_does_not_matter(self, usage: Any) -> None:
        body = json.dumps(completion("", usage=usage))
        assert judge(200, body, server())[0] == "instant_stop"

    @given(
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=2),
                st.dictionaries(
                    st.sampled_from(["model", "choices", "message", "content", "usage"]),
                    inner,
                    max_size=3,
                ),
            ),
            max_leaves=8,
        )
    )
    def test_no_reply_raises(self, data: Any) -> None:
        assert judge(200, json.dumps(data), server())[0] != "ok"


class Asking:
    """Stands in for the HTTP request: gives the answers in order, keeps the bodies."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[Mapping[str, Any]] = []

    def __call__(self, _: Server, body: Mapping[str, Any]) -> Answer:
        self.bodies.append(body)
        return self.answers[len(self.bodies) - 1]


STOPPED = Answer(200, reply({"content": ""}, "stop", 1))
FINE = Answer(200, json.dumps(completion("four")))


class TestProbe:
    def test_one_good_answer_is_enough(self) -> None:
        ask = Asking(FINE)
        result = probe(server(), ask=ask)
        assert result.ok
        assert result.text == "four"
        assert ask.bodies == [
            {
                "model": "DeepSeek",
                "messages": [{"role": "user", "content": "hi"}],
                "stream": False,
            }
        ]

    def test_an_instant_stop_is_asked_again_unchanged(self) -> None:
        ask = Asking(STOPPED, FINE)
        assert probe(server(), ask=ask).ok
        assert ask.bodies[1] == ask.bodies[0]

    def test_then_with_another_seed(self) -> None:
        ask = Asking(STOPPED, STOPPED, FINE)
        assert probe(server(), ask=ask).ok
        seed = ask.bodies[2]["seed"]
        assert ask.bodies[2] == {**ask.bodies[0], "seed": seed}

    def test_three_instant_stops_are_enough(self) -> None:
        ask = Asking(STOPPED, STOPPED, STOPPED)
        result = probe(server(), ask=ask)
        assert result.kind == "instant_stop"
        assert not result.ok
        assert len(ask.bodies) == 3

    @pytest.mark.parametrize(
        ("answer", "kind"),
        [
            (Answer(500, "CUDA"), "http"),
            (Answer(200, "{}"), "bad"),
            (Answer(0, "", "timeout", "no answer within 5 s"), "timeout"),
            (Answer(0, "", "refused", "ConnectionRefusedError"), "refused"),
        ],
    )
    def test_any_other_failure_is_not_asked_again(self, answer: Answer, kind: str) -> None:
        ask = Asking(answer)
        result = probe(server(), ask=ask)
        assert result.kind == kind
        assert result.why
        assert len(ask.bodies) == 1

    def test_a_failure_after_an_instant_stop_counts(self) -> None:
        ask = Asking(STOPPED, Answer(0, "", "timeout", "late"))
        assert probe(server(), ask=ask).kind == "timeout"

    def test_a_quick_answer_samples_no_load(self) -> None:
        def load(_: Server) -> Load:
            raise AssertionError

        assert probe(server(), ask=Asking(FINE), load=load).load == Load()

    def test_a_slow_answer_samples_the_load_meanwhile(self) -> None:
        sampled: list[float] = []
        answered: list[float] = []

        def ask(_: Server, __: Mapping[str, Any]) -> Answer:
            time.sleep(0.2)
            answered.append(time.monotonic())
            return FINE

        def load(_: Server) -> Load:
            sampled.append(time.monotonic())
            return Load(4, 1, (9.0,))

        result = probe(server(timeout=0.1), ask=ask, load=load)
        assert result.ok
        assert result.load == Load(4, 1, (9.0,))
        assert sampled[0] < answered[0]

    def test_there_and_back(self) -> None:
        result = ProbeResult("timeout", "late", 60.1234, "abc", Load(1, 2, (3.0,)))
        assert result_from_dict(result.as_dict()) == ProbeResult(
            "timeout", "late", 60.123, "abc", Load(1, 2, (3.0,))
        )


def answers(asked: Asked, handler: BaseHTTPRequestHandler) -> None:
    send(handler, METRICS if asked.path == "/metrics" else json.dumps(completion()))


class TestOverHttp:
    def test_a_completion(self) -> None:
        with loopback(answers) as there:
            assert probe(server(there.port)).text == "four"
        (asked,) = there.asked
        assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
        assert asked.headers["Content-Type"] == "application/json"
        assert "Authorization" not in asked.headers
        assert asked.body["stream"] is False

    def test_a_queued_request_shows_up_as_waiting(self) -> None:
        def queue(asked: Asked, handler: BaseHTTPRequestHandler) -> None:
            if asked.method == "POST":
                time.sleep(0.5)
            answers(asked, handler)

        with loopback(queue) as there:
            result = probe(server(there.port, timeout=0.3))
        assert result.kind == "timeout"
        assert result.load == Load(1, 2, (3,))

    def test_load(self) -> None:
        with loopback(answers) as there:
            assert fetch_load(server(there.port)) == Load(1, 2, (3,))

    @pytest.mark.parametrize("status", [401, 404, 500, 503])
    def test_metrics_that_are_refused_are_an_unknown_load(self, status: int) -> None:
        with loopback(lambda _, handler: send(handler, METRICS, status)) as there:
            assert fetch_load(server(there.port)) == Load()

    def test_half_of_the_metrics_is_an_unknown_load(self) -> None:
        def cut(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", str(2 * len(METRICS)))
            handler.end_headers()
            handler.wfile.write(METRICS.encode())

        with loopback(cut) as there:
            assert fetch_load(server(there.port)) == Load()
            answer = request(server(there.port), "GET", "/metrics", 5)
        assert (answer.kind, answer.status) == ("refused", 0)
        assert "IncompleteRead" in answer.why

    def test_a_server_without_metrics_has_an_unknown_load(self) -> None:
        def change(data: dict[str, Any]) -> None:
            del data["servers"]["deepseek"]["metrics"]

        assert fetch_load(describe(change).server("deepseek")) == Load()

    def test_nobody_listens(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            answer = request(server(port), "GET", "/v1/models", 5)
        assert answer.kind == "refused"
        assert "ConnectionRefusedError" in answer.why

    def test_not_http(self) -> None:
        def banner(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"SSH-2.0-x\r\n\r\n")

        with loopback(banner) as there:
            assert request(server(there.port), "GET", "/", 5).kind == "refused"

    def test_a_binary_body_is_kept_as_far_as_it_goes(self) -> None:
        def binary(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "3")
            handler.end_headers()
            handler.wfile.write(b"a\xffb")

        with loopback(binary) as there:
            assert request(server(there.port), "GET", "/", 5).body == "a\ufffdb"


class TestDeadline:
    """http.client's timeout is one for each read; ours is one for the whole request."""

    LIMIT = 0.3

    def ask(self, port: int) -> tuple[Answer, float]:
        started = time.monotonic()
        answer = request(server(port), "GET", "/", self.LIMIT)
        return answer, time.monotonic() - started

    def check(self, port: int) -> None:
        answer, seconds = self.ask(port)
        assert answer.kind == "timeout"
        assert answer.why == "no answer within 0.3 s"
        assert self.LIMIT <= seconds < 2  # the servers below go on for 3 s

    def test_silence(self) -> None:
        with loopback(lambda *_: time.sleep(3)) as there:
            self.check(there.port)

    @pytest.mark.parametrize("header", ["Content-Length: 10000", "X-Nothing: 1"])
    def test_a_body_that_trickles(self, header: str) -> None:
        def trickle(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(f"HTTP/1.0 200 OK\r\n{header}\r\n\r\n".encode())
            for __ in range(120):
                handler.wfile.write(b"x")
                time.sleep(0.025)

        with loopback(trickle) as there:
            self.check(there.port)

    def test_headers_that_trickle(self) -> None:
        def trickle(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for number in range(120):
                handler.wfile.write(f"X-{number}: 1\r\n".encode())
                time.sleep(0.025)

        with loopback(trickle) as there:
            self.check(there.port)

    def test_chunks_that_trickle(self) -> None:
        def trickle(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for __ in range(120):
                handler.wfile.write(b"1\r\nx\r\n")
                time.sleep(0.025)

        with loopback(trickle) as there:
            self.check(there.port)

    def test_half_a_body_and_then_silence(self) -> None:
        def stall(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n")
            time.sleep(0.2)
            handler.wfile.write(b"half")
            time.sleep(3)

        with loopback(stall) as there:
            self.check(there.port)

    def test_a_slow_but_timely_answer_is_whole(self) -> None:
        def slow(_: Asked, handler: BaseHTTPRequestHandler) -> None:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n")
            for __ in range(4):
                handler.wfile.write(b"x")
                time.sleep(0.02)

        with loopback(slow) as there:
            answer, _ = self.ask(there.port)
        assert answer == Answer(200, "xxxx")


class TestKey:
    def ask(self, path: Path) -> tuple[Answer, list[Asked]]:
        with loopback(answers) as there:
            answer = request(server(there.port, key_file=path), "GET", "/v1/models", 5)
        return answer, there.asked

    @pytest.mark.parametrize(
        "content",
        ["sk-1\n", "# keys\n\nuser: sk-1\nother: sk-2\n", "  user:sk-1  ", "\r\nsk-1\r\n"],
    )
    def test_the_first_key_of_the_file_is_sent(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "key"
        path.write_text(content)
        answer, asked = self.ask(path)
        assert answer.status == 200
        assert asked[0].headers["Authorization"] == "Bearer sk-1"

    @pytest.mark.parametrize(
        "content", [b"", b"# only a comment\n", b"\xff\xfe", "schlüssel".encode()]
    )
    def test_a_file_without_a_usable_key(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "key"
        path.write_bytes(content)
        answer, asked = self.ask(path)
        assert answer.kind == "refused"
        assert "the API key cannot be read" in answer.why
        assert "schl" not in answer.why
        assert asked == []

    @pytest.mark.parametrize(
        ("status", "said"), [(401, ""), (403, ""), (200, "HTTP 200"), (503, "HTTP 503")]
    )
    def test_whoever_sends_none_is_refused_or_it_is_told(
        self, tmp_path: Path, status: int, said: str
    ) -> None:
        path = tmp_path / "key"
        path.write_text("sk-1\n")
        with loopback(lambda _, handler: send(handler, "{}", status)) as there:
            assert without_key(server(there.port, key_file=path)) == said
        (asked,) = there.asked
        assert (asked.method, asked.path) == ("GET", "/v1/models")
        assert "Authorization" not in asked.headers

    def test_whoever_sends_none_and_is_not_answered(self, tmp_path: Path) -> None:
        assert "refused" in without_key(server(1, key_file=tmp_path / "none"))

    def test_a_missing_file(self, tmp_path: Path) -> None:
        answer, _ = self.ask(tmp_path / "none")
        assert "the API key cannot be read" in answer.why
