"""Questions to the Hub, asked of a stand-in on loopback."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import httpx2
import hub_server
import pytest
from hub_server import NARROW_TOKEN, STRANGER_TOKEN, TOKEN, noise_repository
from huggingface_hub import get_session

from spark_pair.weights import hub as hub_module
from spark_pair.weights.hub import Hub, HubError, retry_after, wait_before

OPEN, GATED = "own/open", "own/gated"
OLD = "0123456789abcdef0123456789abcdef01234567"
FILES = {"a.json": 10, "b c/-d.safetensors": 5000, "e.safetensors": 70_000}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hub_server.Hub]:
    repositories = [
        noise_repository(OPEN, FILES, older=(OLD, "0123456ffedcba9876543210fedcba9876543210")),
        noise_repository(GATED, FILES, gated=True),
    ]
    with hub_server.Hub(tmp_path_factory.mktemp("hub"), repositories, xet=True) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_faults(server: hub_server.Hub) -> None:
    server.fault()
    server.forget_requests()


class Waits:
    """Seconds that were to be waited; nothing waits."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def asked(server: hub_server.Hub, token: str | None = None, waits: Waits | None = None) -> Hub:
    return Hub(server.url + "/", token, sleep=waits or Waits())


def tip(server: hub_server.Hub, repo: str = OPEN) -> str:
    return server.state.held[repo].wanted.commit


def wait_for(server: hub_server.Hub, *, requests: int) -> None:
    """A request is noted when it was answered, which may be after its answer was read."""
    end = time.monotonic() + 10
    while len(server.requests) < requests and time.monotonic() < end:
        time.sleep(0.01)


def failure(hub: Hub, what: str, *arguments: str) -> HubError:
    with pytest.raises(HubError) as error:
        getattr(hub, what)(*arguments)
    words = str(error.value)
    assert words.endswith(".") and "\n" not in words, words
    return error.value


def test_a_whole_commit_is_checked_and_a_prefix_is_completed(server: hub_server.Hub) -> None:
    hub, commit = asked(server), tip(server)
    assert hub.resolve(OPEN, commit) == commit
    assert hub.resolve(OPEN, commit[:7]) == commit
    assert hub.resolve(OPEN, OLD[:12]) == OLD  # only in main's history


def test_a_prefix_of_two_commits_is_refused(server: hub_server.Hub) -> None:
    words = str(failure(asked(server), "resolve", OPEN, OLD[:7]))
    assert "2 commits" in words and OLD in words


@pytest.mark.parametrize("revision", ["main", "abc", "0" * 41, OLD.upper(), ""])
def test_what_is_no_commit_is_never_asked_for(revision: str) -> None:
    nobody = Hub("http://nothing.invalid", sleep=Waits())
    assert failure(nobody, "resolve", OPEN, revision).kind == "revision"


@pytest.mark.parametrize("revision", ["fffffff", "f" * 40])
def test_a_revision_that_is_not_there(server: hub_server.Hub, revision: str) -> None:
    error = failure(asked(server), "resolve", OPEN, revision)
    assert error.kind == "revision" and revision in str(error)
    assert f"{server.url}/{OPEN}/commits" in str(error)


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_the_list_of_files_is_read_to_its_end(server: hub_server.Hub, page: int) -> None:
    before, server.state.page = server.state.page, page
    try:
        made = asked(server).manifest(OPEN, tip(server))
    finally:
        server.state.page = before
    assert {file.path: file.size for file in made.files} == FILES
    for file in made.files:
        told = server.file(OPEN, file.path)
        assert (file.git_sha1, file.sha256, file.xet_hash) == (
            told.git_sha1,
            told.sha256,
            told.xet_hash,
        )
        hasher = file.hasher()
        hasher.update(server.content(OPEN, file.path))
        assert hasher.hexdigest() == file.etag


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_probe_fetches_nothing(server: hub_server.Hub, path: str) -> None:
    asked(server).probe(OPEN, tip(server), path)
    wait_for(server, requests=1)
    assert [request.method for request in server.requests if request.path == path] == ["HEAD"]


def test_a_token_goes_to_the_hub_alone(server: hub_server.Hub) -> None:
    hub, commit = asked(server, TOKEN), tip(server, GATED)
    hub.probe(GATED, commit, "a.json")
    with hub.stream(
        hub.url_of(GATED, commit, "e.safetensors"), {}, 5, repo=GATED, path="e.safetensors"
    ) as response:
        assert len(response.read()) == FILES["e.safetensors"]
    wait_for(server, requests=3)
    assert {(request.store, request.token) for request in server.requests} == {
        (False, True),
        (True, False),
    }


def test_a_token_of_the_account_is_not_used_unasked(
    server: hub_server.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    asked(server).probe(OPEN, tip(server), "a.json")
    assert not any(request.token for request in server.requests)


def test_access_to_the_content_store(server: hub_server.Hub) -> None:
    store, token, end = asked(server, TOKEN).xet_read_token(GATED, tip(server, GATED))
    assert store and token and end > time.time()


def test_the_content_store_tells_where_a_chunk_begins(server: hub_server.Hub) -> None:
    hub, file = asked(server, TOKEN), server.file(OPEN, "e.safetensors")
    store, token, _ = hub.xet_read_token(OPEN, tip(server))
    assert file.xet_hash
    for at in range(0, FILES["e.safetensors"], 9999):
        into = hub.bytes_into_chunk(store, token, file.xet_hash, at)
        assert 0 <= into <= at
        assert into == 0 or hub.bytes_into_chunk(store, token, file.xet_hash, at - into) == 0


def test_the_hubs_token_does_not_go_to_the_content_store(
    server: hub_server.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, xet_hash = asked(server, TOKEN), server.file(OPEN, "e.safetensors").xet_hash
    store, _, _ = hub.xet_read_token(OPEN, tip(server))
    assert xet_hash
    sent: list[str] = []

    def get(url: str, *, headers: dict[str, str], **_: Any) -> httpx2.Response:
        sent.extend(headers.values())
        return page('{"offset_into_first_range": 3}')

    monkeypatch.setattr(get_session(), "get", get)
    assert hub.bytes_into_chunk(store, "own", xet_hash, 70) == 3
    assert "Bearer own" in sent and not any(TOKEN in value for value in sent)


@pytest.mark.parametrize("text", ["[]", "{}", '{"offset_into_first_range": -1}', "<html>"])
def test_a_content_store_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(get_session(), "get", lambda *_, **__: page(text))
    hub = Hub("http://hub.test", sleep=Waits())
    with pytest.raises(HubError):
        hub.bytes_into_chunk("http://store.test", "own", "a" * 64, 5)


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    ("token", "kind", "words"),
    [
        (None, "token", "HF_TOKEN"),
        ("hf_unknown", "token", "/settings/tokens"),
        (STRANGER_TOKEN, "terms", "accept the terms"),
        (NARROW_TOKEN, "right", "right to read gated"),
    ],
)
def test_gated_repositories_say_what_is_missing(
    server: hub_server.Hub, token: str | None, kind: str, words: str
) -> None:
    waits = Waits()
    hub = asked(server, token, waits)
    error = failure(hub, "probe", GATED, tip(server, GATED), "a.json")
    assert error.kind == kind and words in str(error)
    assert not error.temporary and not waits.seconds
    assert token is None or token not in str(error)


@pytest.mark.parametrize(
    ("what", "arguments", "kind"),
    [
        ("resolve", ("own/nothing", OLD), "repository"),
        ("manifest", ("own/nothing", OLD), "repository"),
        ("probe", ("own/nothing", OLD, "a.json"), "repository"),
        ("manifest", (OPEN, "f" * 40), "revision"),
        ("probe", (OPEN, "f" * 40, "a.json"), "revision"),
    ],
)
def test_what_is_not_there_is_told_apart(
    server: hub_server.Hub, what: str, arguments: tuple[str, ...], kind: str
) -> None:
    assert failure(asked(server), what, *arguments).kind == kind


def test_a_file_that_is_not_there(server: hub_server.Hub) -> None:
    error = failure(asked(server), "probe", OPEN, tip(server), "mia29.safetensors")
    assert error.kind == "file" and "mia29.safetensors" in str(error)


def test_a_repository_hidden_from_those_without_a_token(server: hub_server.Hub) -> None:
    server.fault({"what": "status", "status": 401, "code": "RepoNotFound"})
    error = failure(asked(server), "resolve", OPEN, OLD)
    assert error.kind == "repository" and "private" in str(error)


def test_a_busy_hub_is_asked_again_when_it_says(server: hub_server.Hub) -> None:
    waits = Waits()
    server.fault({"what": "status", "status": 429, "retry_after": 7, "times": 2})
    assert asked(server, None, waits).resolve(OPEN, tip(server)) == tip(server)
    assert waits.seconds == [7.0, 7.0]


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "busy"), (500, "server"), (503, "server"), (504, "server")]
)
def test_a_fault_that_stays_ends_with_a_sentence(
    server: hub_server.Hub, status: int, kind: str
) -> None:
    waits = Waits()
    server.fault({"what": "status", "status": status, "message": "Internal trouble."})
    error = failure(asked(server, None, waits), "manifest", OPEN, tip(server))
    assert error.kind == kind and error.temporary and str(status) in str(error)
    assert waits.seconds == [1.0, 2.0, 4.0, 8.0]


def test_an_answer_that_makes_no_sense_of_its_own(server: hub_server.Hub) -> None:
    server.fault({"what": "status", "status": 418, "message": "teapot"})
    error = failure(asked(server), "manifest", OPEN, tip(server))
    assert error.kind == "answer" and "418" in str(error)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    waits = Waits()
    error = failure(Hub(f"http://127.0.0.1:{port}", sleep=waits), "resolve", OPEN, OLD)
    assert error.kind == "network" and "cannot be reached" in str(error)
    assert len(waits.seconds) == hub_module.TRIES - 1


def test_where_somebody_sits_in_front_of_it_the_waiting_has_an_end(
    server: hub_server.Hub,
) -> None:
    server.fault({"what": "status", "status": 429, "retry_after": 600})
    waits = Waits()
    hub = Hub(server.url, TOKEN, sleep=waits, wait_at_most=20.0)
    error = failure(hub, "resolve", OPEN, OLD)
    assert "asks to wait 10 min; no more than 20 s" in str(error) and not waits.seconds
    server.fault({"what": "status", "status": 503})
    hub = Hub(server.url, TOKEN, sleep=waits, wait_at_most=5.0)
    assert "no more than 5 s are spent on waiting" in str(failure(hub, "resolve", OPEN, OLD))
    assert sum(waits.seconds) <= 5.0 and waits.seconds


def test_a_token_for_the_store_is_asked_for_once(server: hub_server.Hub) -> None:
    server.fault({"what": "status", "status": 503})
    waits = Waits()
    hub = Hub(server.url, TOKEN, sleep=waits)
    assert failure(hub, "xet_read_token", OPEN, tip(server)).temporary and not waits.seconds


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("sends us to https://cdn.test/x?Sig=z&b=c no", "sends us to https://cdn.test/x?… no"),
        ("http://me:secret@proxy.test:3128 refuses", "http://…@proxy.test:3128 refuses"),
        ("is it there? Yes.", "is it there? Yes."),
    ],
)  # fmt: skip
def test_no_sentence_carries_what_opens_doors(words: str, told: str) -> None:
    assert str(HubError("answer", words)) == told


def test_a_name_that_does_not_resolve() -> None:
    error = failure(Hub("http://nothing.invalid", sleep=Waits()), "resolve", OPEN, OLD)
    assert error.kind == "network" and "DNS" in str(error)


def test_a_certificate_that_is_not_accepted_is_not_asked_for_twice(
    server: hub_server.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> httpx2.Response:
        cause = ssl.SSLCertVerificationError(1, "certificate has expired")
        raise httpx2.ConnectError("[SSL] failed") from cause

    monkeypatch.setattr(get_session(), "request", refuse)
    waits = Waits()
    error = failure(asked(server, None, waits), "resolve", OPEN, OLD)
    assert error.kind == "tls" and "clock" in str(error) and not waits.seconds


def page(text: str, **headers: str) -> httpx2.Response:
    request = httpx2.Request("GET", "http://hub.test/api/models/own/open/tree/x")
    return httpx2.Response(200, text=text, headers=headers, request=request)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>Log in</html>", "login page"),
        ("{}", "no list"),
        ('[{"type": "file", "path": "../x", "size": 1, "oid": "%s"}]' % ("a" * 40), "not a path"),
        ('[{"type": "file", "path": "x", "size": 1}]', "unknown here"),
        ("[3]", "unknown here"),
        ('[{"type": "file", "path": "x", "size": "1", "oid": "%s"}]' % ("a" * 40), "size"),
    ],
)
def test_a_list_that_is_not_the_hubs(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(get_session(), "request", lambda *_, **__: page(text))
    error = failure(Hub("http://hub.test", sleep=Waits()), "manifest", OPEN, OLD)
    assert error.kind == "answer" and words in str(error)


def test_the_next_page_is_not_fetched_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = page("[]", Link='<http://elsewhere.test/more>; rel="next"')
    monkeypatch.setattr(get_session(), "request", lambda *_, **__: answer)
    error = failure(Hub("http://hub.test", TOKEN, sleep=Waits()), "manifest", OPEN, OLD)
    assert error.kind == "answer" and "elsewhere.test" in str(error)


def moved(*_: Any, **__: Any) -> httpx2.Response:
    request = httpx2.Request("GET", "http://hub.test/")
    return httpx2.Response(308, headers={"Location": "https://hub.test/api"}, request=request)


def test_a_hub_that_moved_is_not_followed_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_session(), "request", moved)
    error = failure(Hub("http://hub.test", TOKEN, sleep=Waits()), "manifest", OPEN, OLD)
    assert error.kind == "answer" and "https://hub.test/api" in str(error)


def test_a_repository_that_was_renamed_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        httpx2.Response(307, headers={"Location": "/api/models/own/new/tree/x"}),
        page('[{"type": "file", "path": "x", "size": 1, "oid": "%s"}]' % ("a" * 40)),
    ]
    asked_for: list[str] = []

    def answer(method: str, url: str, **_: Any) -> httpx2.Response:
        asked_for.append(url)
        return answers[len(asked_for) - 1]

    monkeypatch.setattr(get_session(), "request", answer)
    assert Hub("http://hub.test", sleep=Waits()).manifest(OPEN, OLD).file("x").size == 1
    assert asked_for[1] == "http://hub.test/api/models/own/new/tree/x"


def test_a_list_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = page("[]", Link='<http://hub.test/again>; rel="next"')
    monkeypatch.setattr(get_session(), "request", lambda *_, **__: answer)
    assert "no end" in str(failure(Hub("http://hub.test", sleep=Waits()), "manifest", OPEN, OLD))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("7", 7.0), (" 7 ", 7.0), ("soon", None), ("-1", None), ("", None)],
)
def test_retry_after_in_seconds(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_retry_after_as_a_date() -> None:
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    later = retry_after(formatdate(time.time() + 100, usegmt=True))
    assert later is not None and 0 < later <= 100


def test_waits_grow_and_end() -> None:
    assert [wait_before(attempt) for attempt in (0, 1, 4, 5, 2000)] == [1, 2, 16, 30, 30]
    assert wait_before(9, 0.0) == 0.0
    assert wait_before(0, 86400.0) == hub_module.LONGEST_WAIT_SECONDS
