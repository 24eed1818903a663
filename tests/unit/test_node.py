"""The two ends of the pair: this host's programs, and the way to the peer."""

from __future__ import annotations

import gzip
import json
import os
import pwd
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_pair import describe
from hypothesis import given
from hypothesis import strategies as st

from spark_pair import node as nodes
from spark_pair import paths
from spark_pair.description import Host, PairDescription, Server, Weights
from spark_pair.errors import Exit, NodeError, UnreachableError
from spark_pair.metrics import Load
from spark_pair.node import LocalNode, PeerNode, release, run_as_user
from spark_pair.paths import TOOL
from spark_pair.probe import ProbeResult
from spark_pair.system import Result

Ask = Callable[[PeerNode, Server], object]
ADDRESSES = ["192.0.2.2", "198.51.100.2", "203.0.113.2"]
REFUSED = Result(255, "", "ssh: connect to host: No route to host")


def pair_with_rails() -> PairDescription:
    def change(data: dict[str, Any]) -> None:
        data["hosts"]["worker"] |= {"addresses": ADDRESSES, "port": 2222}

    return describe(change)


class Ssh:
    """Stands in for ssh: answers by address, keeps what it was told to run."""

    def __init__(self, **answers: Result) -> None:
        self.by_address = answers
        self.answer: Callable[[str], Result] = lambda address: self.by_address.get(address, REFUSED)
        self.tried: list[str] = []
        self.argv: list[Sequence[str]] = []
        self.users: list[str] = []
        self.timeouts: list[float] = []

    def __call__(self, host: Host, argv: Sequence[str], timeout: float) -> Result:
        address = next(word for word in argv if "@" in word).partition("@")[2]
        self.tried.append(address)
        self.argv.append(argv)
        self.users.append(host.user)
        self.timeouts.append(timeout)
        return self.answer(address)

    @property
    def order(self) -> list[str]:
        """The words that the other host's shell makes of the last order."""
        return shlex.split(self.argv[-1][-1])


@pytest.fixture
def ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ssh:
    made = Ssh()
    monkeypatch.setattr(nodes, "run_as_user", made)
    monkeypatch.setattr(nodes, "RUN", tmp_path)
    (tmp_path / "ssh").mkdir()
    return made


@pytest.fixture
def peer() -> PeerNode:
    return PeerNode(pair_with_rails())


class TestAddresses:
    def test_tried_in_order_until_one_answers(self, ssh: Ssh, peer: PeerNode) -> None:
        ssh.by_address = {ADDRESSES[1]: Result(0, '{"release": "r1"}', "")}
        assert peer.hello() == {"release": "r1"}
        assert ssh.tried == ADDRESSES[:2]

    def test_the_good_one_is_tried_first_next_time(self, ssh: Ssh, peer: PeerNode) -> None:
        ssh.by_address = {ADDRESSES[2]: Result(0, "{}", "")}
        peer.hello()
        ssh.tried.clear()
        peer.hello()
        assert ssh.tried == [ADDRESSES[2]]

    def test_and_given_up_when_it_fails(self, ssh: Ssh, peer: PeerNode) -> None:
        ssh.by_address = {ADDRESSES[2]: Result(0, "{}", "")}
        peer.hello()
        ssh.by_address = {ADDRESSES[0]: Result(0, "{}", "")}
        ssh.tried.clear()
        peer.hello()
        assert ssh.tried == [ADDRESSES[2], ADDRESSES[0]]

    def test_none_answers(self, ssh: Ssh, peer: PeerNode) -> None:
        with pytest.raises(UnreachableError) as raised:
            peer.hello()
        assert str(raised.value).startswith("b cannot be reached from a over ssh (192.0.2.2: ssh:")
        assert ADDRESSES[2] in str(raised.value)
        assert ssh.tried == ADDRESSES
        assert raised.value.exit is Exit.REFUSED

    def test_a_failing_order_is_not_given_to_the_next_address(
        self, ssh: Ssh, peer: PeerNode
    ) -> None:
        ssh.answer = lambda _: Result(10, "", "spark-pair: x.service did not stop on b")
        with pytest.raises(NodeError, match=r"b could not do 'node unit stop .* did not stop on b"):
            peer.stop_unit("x.service", 30)
        assert ssh.tried == ADDRESSES[:1]

    def test_one_that_does_not_end_in_time_is_not_given_twice(
        self, ssh: Ssh, peer: PeerNode
    ) -> None:
        ssh.answer = lambda _: Result(124, "", "no end after 45 s")
        with pytest.raises(NodeError, match="no end after 45 s"):
            peer.observe()
        assert len(ssh.tried) == 1


class TestStream:
    def test_the_way_is_tried_first_and_the_verb_is_given_once(
        self, ssh: Ssh, peer: PeerNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ran: list[list[str]] = []

        def run(argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            ran.append(argv)
            return subprocess.CompletedProcess(argv, 20)

        monkeypatch.setattr(subprocess, "run", run)
        ssh.by_address = {ADDRESSES[1]: Result(0, "{}", "")}
        assert peer.stream(["switch", "hikari", "--reason", "two words"]) == 20
        assert ssh.tried == ADDRESSES[:2]
        (argv,) = ran
        assert f"two@{ADDRESSES[1]}" in argv
        assert shlex.split(argv[-1])[3:] == ["node", "switch", "hikari", "--reason", "two words"]


class TestOrder:
    def test_how_the_peer_is_asked(self, ssh: Ssh, peer: PeerNode) -> None:
        ssh.answer = lambda _: Result(0, "{}", "")
        peer.hello()
        argv = list(ssh.argv[0])
        assert argv[0] == "ssh"
        assert "BatchMode=yes" in argv
        assert "ConnectTimeout=2" in argv
        assert argv[argv.index("-p") + 1] == "2222"
        assert argv[-2] == "two@192.0.2.2"
        assert ssh.order == ["sudo", "-n", TOOL, "node", "hello"]
        assert ssh.users == ["one"]

    def test_a_peer_of_the_worker_is_the_head(self, ssh: Ssh) -> None:
        def change(data: dict[str, Any]) -> None:
            data["me"] = "worker"

        ssh.answer = lambda _: Result(0, "{}", "")
        PeerNode(describe(change)).hello()
        assert list(ssh.argv[0])[-2] == "one@192.0.2.1"
        assert ssh.users == ["two"]

    @given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=4))
    def test_any_words_arrive_as_they_are(self, words: list[str]) -> None:
        ssh = Ssh()
        ssh.answer = lambda _: Result(0, "", "")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nodes, "run_as_user", ssh)
            patch.setattr(nodes, "control_folder", lambda _: Path("/run/x"))
            PeerNode(pair_with_rails()).call(words, 5)
        assert ssh.order == ["sudo", "-n", TOOL, "node", *words]

    def test_a_reason_of_several_words(self, ssh: Ssh, peer: PeerNode) -> None:
        ssh.answer = lambda _: Result(0, "", "")
        peer.call(["switch", "hikari", "--reason", "too slow; 'again' $(reboot)"], 5)
        assert ssh.order[-1] == "too slow; 'again' $(reboot)"

    @pytest.mark.parametrize(
        ("ask", "words", "answer", "result"),
        [
            (lambda peer, server: peer.observe(), ["observe"], {"host": "b"}, {"host": "b"}),
            (
                lambda peer, server: peer.load(server),
                ["load", "hikari"],
                Load(1, 2, (3.0,)).as_dict(),
                Load(1, 2, (3.0,)),
            ),
            (
                lambda peer, server: peer.probe(server),
                ["probe", "hikari"],
                ProbeResult("ok", "", 1.0, "hi").as_dict(),
                ProbeResult("ok", "", 1.0, "hi"),
            ),
            (
                lambda peer, server: peer.stop_unit("x.service", 120.0),
                ["unit", "stop", "x.service", "--timeout", "120"],
                {"done": True},
                None,
            ),
            (
                lambda peer, server: peer.start_unit("x.service", restart=False),
                ["unit", "start", "x.service"],
                {"done": True},
                None,
            ),
            (
                lambda peer, server: peer.start_unit("x.service", restart=True),
                ["unit", "restart", "x.service"],
                {"done": True},
                None,
            ),
            (
                lambda peer, server: peer.remove_rank("ds"),
                ["remove-rank", "ds"],
                {"done": True},
                None,
            ),
            (
                lambda peer, server: peer.missing_images(server),
                ["images", "hikari"],
                {"missing": ["image:1"]},
                ["image:1"],
            ),
            (
                lambda peer, server: peer.without_key(server),
                ["without-key", "hikari"],
                {"answer": "HTTP 200"},
                "HTTP 200",
            ),
            (lambda peer, server: peer.context(server), ["context", "hikari"], {"context": 5}, 5),
            (
                lambda peer, server: peer.context(server),
                ["context", "hikari"],
                {"context": None},
                None,
            ),
            (
                lambda peer, server: peer.rank(server),
                ["rank", "hikari"],
                {"inspected": None},
                {"inspected": None},
            ),
            (
                lambda peer, server: peer.filesystems(["/a", "/b c"]),
                ["filesystems", "/a", "/b c"],
                {"/a": "ext4", "/b c": None},
                {"/a": "ext4", "/b c": None},
            ),
        ],
    )
    def test_verbs(
        self, ssh: Ssh, ask: Ask, words: list[str], answer: dict[str, Any], result: object
    ) -> None:
        peer = PeerNode(pair_with_rails())
        ssh.answer = lambda _: Result(0, json.dumps(answer), "")
        assert ask(peer, peer.description.server("hikari")) == result
        assert ssh.order[4:] == words

    def test_weights_are_asked_about_only_where_some_are_described(self, ssh: Ssh) -> None:
        peer = PeerNode(pair_with_rails())
        ssh.answer = lambda _: Result(0, json.dumps({"problems": ["rank 1 is another"]}), "")
        hikari = peer.description.server("hikari")
        assert peer.weight_problems(hikari) == []
        described = replace(hikari, weights=Weights("45ee5d0f", None, None))
        assert peer.weight_problems(described) == ["rank 1 is another"]
        assert ssh.order[4:] == ["weights", "hikari"]

    def test_a_stop_there_gets_its_whole_time(self, ssh: Ssh, peer: PeerNode) -> None:
        ssh.answer = lambda _: Result(0, "{}", "")
        peer.stop_unit("x.service", 120)
        assert ssh.timeouts[0] > 120

    def test_a_probe_there_may_need_three_tries(self, ssh: Ssh, peer: PeerNode) -> None:
        server = peer.description.server("hikari")
        ssh.answer = lambda _: Result(0, json.dumps(ProbeResult("ok", "").as_dict()), "")
        peer.probe(server)
        assert ssh.timeouts[0] > 3 * server.probe.timeout

    @pytest.mark.parametrize("out", ["", "Welcome to b!\n{}", "[1]", "null", "{"])
    def test_garbage_is_an_error_with_the_hosts_name(
        self, ssh: Ssh, peer: PeerNode, out: str
    ) -> None:
        ssh.answer = lambda _: Result(0, out, "")
        with pytest.raises(NodeError, match=r"b answered 'node observe' with something else"):
            peer.observe()


class TestRunAsUser:
    @pytest.fixture
    def ran(self, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
        made: list[Sequence[str]] = []

        def run(argv: Sequence[str], *, timeout: float) -> Result:
            made.append(argv)
            return Result(0, "", "")

        monkeypatch.setattr(nodes, "run", run)
        return made

    def test_as_another_user(self, ran: list[Sequence[str]]) -> None:
        run_as_user(Host("a", "nobody-else", "/", ("x",)), ["true"], 5)
        assert ran == [["runuser", "-u", "nobody-else", "--", "true"]]

    def test_as_oneself(self, ran: list[Sequence[str]]) -> None:
        me = pwd.getpwuid(os.geteuid()).pw_name
        run_as_user(Host("a", me, "/", ("x",)), ["true"], 5)
        assert ran == [["true"]]


def test_control_folder_is_the_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nodes, "RUN", tmp_path / "run")
    me = pwd.getpwuid(os.geteuid()).pw_name
    folder = nodes.control_folder(Host("a", me, "/", ("x",)))
    assert folder == tmp_path / "run/ssh"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert nodes.control_folder(Host("a", "nobody-else", "/", ("x",))) == folder


class Programs:
    """Stands in for the host's programs: answers by the first words, keeps the calls."""

    def __init__(self, **answers: Result) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def __call__(self, argv: Sequence[str], *, timeout: float, **_: Any) -> Result:
        self.calls.append(" ".join(argv))
        return self.answers.get("_".join(argv[:2]), Result(0, "", ""))


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs()
    monkeypatch.setattr(nodes, "run", made)
    return made


@pytest.fixture
def here(tmp_path: Path) -> LocalNode:
    def change(data: dict[str, Any]) -> None:
        me = pwd.getpwuid(os.geteuid()).pw_name
        data["hosts"]["head"] |= {"user": me, "home": str(tmp_path)}

    return LocalNode(describe(change))


class TestLocalNode:
    def test_a_stopped_unit_may_be_started_again(self, programs: Programs, here: LocalNode) -> None:
        here.stop_unit("x.service", 30)
        assert programs.calls == [
            "systemctl stop -- x.service",
            "systemctl reset-failed -- x.service",
        ]

    @pytest.mark.parametrize(("restart", "verb"), [(True, "restart"), (False, "start")])
    def test_a_start_does_not_wait(
        self, programs: Programs, here: LocalNode, restart: bool, verb: str
    ) -> None:
        here.start_unit("x.service", restart=restart)
        assert programs.calls[-1] == f"systemctl {verb} --no-block -- x.service"

    def test_nothing_is_ever_disabled(self, programs: Programs, here: LocalNode) -> None:
        here.stop_unit("x.service", 30)
        here.start_unit("x.service", restart=True)
        assert not any("able" in call for call in programs.calls)

    def test_a_unit_that_does_not_stop(self, programs: Programs, here: LocalNode) -> None:
        programs.answers["systemctl_stop"] = Result(124, "", "no end after 30 s")
        with pytest.raises(NodeError, match=r"x.service did not stop on a: no end after 30 s"):
            here.stop_unit("x.service", 30)

    def test_a_failing_reset_does_not_matter(self, programs: Programs, here: LocalNode) -> None:
        programs.answers["systemctl_reset-failed"] = Result(1, "", "not loaded")
        here.stop_unit("x.service", 30)
        here.start_unit("x.service", restart=False)

    def test_a_rank_is_removed_with_its_log_kept(
        self, programs: Programs, here: LocalNode, tmp_path: Path
    ) -> None:
        programs.answers["docker_logs"] = Result(0, "out\n", "err\n")
        here.remove_rank("ds")
        assert programs.calls[-1] == "docker rm --force -- ds"
        (kept,) = (tmp_path / ".cache/dsv41-tensorfold/logs").iterdir()
        assert kept.name.endswith("-ds.log.gz")
        assert gzip.decompress(kept.read_bytes()) == b"out\nerr\n"

    def test_a_full_disk_does_not_keep_a_rank_alive(
        self, programs: Programs, here: LocalNode, tmp_path: Path
    ) -> None:
        (tmp_path / ".cache").write_text("no folder can be made here")
        programs.answers["docker_logs"] = Result(0, "out", "")
        here.remove_rank("ds")
        assert programs.calls[-1] == "docker rm --force -- ds"

    def test_a_rank_that_is_gone_already(
        self, programs: Programs, here: LocalNode, tmp_path: Path
    ) -> None:
        programs.answers |= {
            "docker_logs": Result(1, "", "Error: No such container: ds"),
            "docker_rm": Result(1, "", "Error response from daemon: No such container: ds"),
        }
        here.remove_rank("ds")
        assert list(tmp_path.iterdir()) == []

    def test_a_rank_that_cannot_be_removed(self, programs: Programs, here: LocalNode) -> None:
        programs.answers["docker_rm"] = Result(1, "", "device busy")
        with pytest.raises(NodeError, match="container ds on a cannot be removed: device busy"):
            here.remove_rank("ds")

    def test_missing_images(self, programs: Programs, here: LocalNode) -> None:
        deepseek = here.description.server("deepseek")
        assert here.missing_images(deepseek) == []
        programs.answers["docker_image"] = Result(1, "", "No such image")
        assert here.missing_images(deepseek) == ["image:1"]
        assert here.missing_images(here.description.server("hikari")) == []

    def test_weights_are_asked_of_the_record(
        self, here: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paths, "VAR", tmp_path)
        deepseek = here.description.server("deepseek")
        first, second = here.weight_problems(deepseek)
        assert "no file of rank 0 is on record" in first and "Engram" in second
        here.role = "worker"
        assert "no file of rank 1 is on record" in here.weight_problems(deepseek)[0]
        assert here.weight_problems(here.description.server("hikari")) == []
        (tmp_path / "provenance.json").write_text("{")
        (words,) = here.weight_problems(deepseek)
        assert words.startswith("the record of its weights cannot be read: ")

    def test_no_rank_no_container(self, here: LocalNode) -> None:
        assert here.rank(here.description.server("hikari")) == {}

    def test_folders_of_this_host(self, here: LocalNode) -> None:
        assert here.filesystems(["/proc"]) == {"/proc": "proc"}

    def test_no_rank_no_context(self, here: LocalNode) -> None:
        assert here.context(here.description.server("hikari")) is None

    def test_hello_says_which_release(self, here: LocalNode) -> None:
        assert here.hello() == {"release": release()}


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("/opt/spark-pair/releases/0123456789ab/venv", "0123456789ab"),
        ("/usr", "source"),
        ("/home/one/checkout/.venv", "source"),
    ],
)
def test_release(monkeypatch: pytest.MonkeyPatch, prefix: str, name: str) -> None:
    monkeypatch.setattr("sys.prefix", prefix)
    assert release() == name
