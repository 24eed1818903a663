"""What a machine lends to its peer: to nobody else, nothing else, and not a second longer."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from two_caches import BIG, OFFER, SMALL, TwoCaches

from spark_pair.errors import DescriptionError
from spark_pair.weights import peer_offer
from spark_pair.weights.offer import Line, OfferError, Request, new_secret, pattern, resolve
from spark_pair.weights.peer_offer import PeerOffer, PeerOfferError
from spark_pair.weights.transfer_order import Peer

WAIT_SECONDS = 20.0


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoCaches:
    spool = tmp_path / "tmp"
    spool.mkdir()
    monkeypatch.setenv("TMPDIR", str(spool))
    monkeypatch.setattr(tempfile, "tempdir", None)
    pair = TwoCaches(tmp_path)
    pair.fill()
    return pair


def request(pair: TwoCaches, **changes: Any) -> Request:
    lines = tuple(Line(listen=rail["peer"], allow=rail["here"]) for rail in pair.rails)
    words: dict[str, Any] = {
        "secret": new_secret(),
        "lines": lines,
        "ports": (18730, 18739),
        "home": pair.there,
        "repo": pair.manifest.repo,
        "commit": pair.manifest.commit,
        "files": pair.manifest.files,
        "folder": None,
        **changes,
    }
    return Request(**words)


class Lending:
    """An offer that stands."""

    def __init__(self, asked: Request, program: str = OFFER) -> None:
        self.asked = asked
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(asked.as_dict()).encode() + b"\n")
        self.process.stdin.flush()
        self.answer = json.loads(self.process.stdout.readline())

    def fetch(self, number: int, target: Path, *more: str, **changes: Any) -> int:
        """An rsync that fetches a file; its exit code."""
        return self.start(number, target, *more, **changes).wait(60)

    def start(
        self,
        number: int,
        target: Path,
        *more: str,
        name: str = "",
        secret: str = "",
        here: str = "",
    ) -> subprocess.Popen[bytes]:
        file, line = self.answer["files"][number], self.asked.lines[0]
        port = self.answer["ports"][0]
        listed = target.with_suffix(".names")
        listed.write_bytes((name or file["name"]).encode() + b"\0")
        return subprocess.Popen(
            ["rsync", "--inplace", "--no-relative", "--from0", f"--files-from={listed}",
             f"--address={here or line.allow}", *more,
             f"rsync://transfer@{line.listen}:{port}/{file['module']}/", target],
            env={**os.environ, "RSYNC_PASSWORD": secret or self.asked.secret},
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def children(self) -> list[int]:
        """Processes that the offer has started."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(one) for one in found.split()]

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@contextmanager
def lending(asked: Request, program: str = OFFER) -> Iterator[Lending]:
    one = Lending(asked, program)
    try:
        yield one
    finally:
        one.close()


def until(true: Callable[[], bool]) -> None:
    """Wait for something that must come to pass."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def number_of(pair: TwoCaches, path: str) -> int:
    return [file.path for file in pair.manifest.files].index(path)


class TestWhatCanBeHad:
    def test_a_file_that_was_asked_for(self, pair: TwoCaches, tmp_path: Path) -> None:
        with lending(request(pair)) as one:
            assert one.fetch(number_of(pair, BIG), tmp_path / "got") == 0
        assert (tmp_path / "got").read_bytes() == pair.contents[BIG]

    def test_nothing_else_in_its_folder(self, pair: TwoCaches, tmp_path: Path) -> None:
        blobs = pair.path(BIG, pair.lender).resolve().parent
        (blobs / "other").write_bytes(b"other")
        with lending(request(pair)) as one:
            assert one.fetch(0, tmp_path / "got", name="other") == 23
            assert one.fetch(0, tmp_path / "got", name="../refs/main") != 0
            assert one.fetch(0, tmp_path / "got", name="/etc/hostname") != 0
        assert not (tmp_path / "got").exists()

    def test_nothing_can_be_written(self, pair: TwoCaches, tmp_path: Path) -> None:
        with lending(request(pair)) as one:
            line, port = one.asked.lines[0], one.answer["ports"][0]
            done = subprocess.run(
                ["rsync", f"--address={line.allow}", __file__,
                 f"rsync://transfer@{line.listen}:{port}/m0/x"],
                env={**os.environ, "RSYNC_PASSWORD": one.asked.secret},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        assert done.returncode and "read only" in done.stderr

    def test_only_with_the_secret(self, pair: TwoCaches, tmp_path: Path) -> None:
        with lending(request(pair)) as one:
            assert one.fetch(0, tmp_path / "got", secret="wrong") == 5
        assert not (tmp_path / "got").exists()

    def test_only_from_the_peers_address_of_that_rail(
        self, pair: TwoCaches, tmp_path: Path
    ) -> None:
        with lending(request(pair)) as one:
            for stranger in ("127.0.0.1", pair.rails[1]["here"], pair.rails[0]["peer"]):
                assert one.fetch(0, tmp_path / "got", here=stranger) != 0
            until(lambda: not one.children())
        assert not (tmp_path / "got").exists()

    def test_a_single_file_of_a_folder(self, pair: TwoCaches, tmp_path: Path) -> None:
        folder = tmp_path / "rank-cache %HOME% "
        folder.mkdir()
        file = pair.file(BIG)
        (folder / BIG).write_bytes(pair.contents[BIG])
        (folder / "token").write_bytes(b"hf_secret")
        asked = request(pair, repo="", commit="", files=(file,), folder=folder)
        with lending(asked) as one:
            assert one.fetch(0, tmp_path / "got", name="token") == 23
            assert one.fetch(0, tmp_path / "got") == 0
        assert (tmp_path / "got").read_bytes() == pair.contents[BIG]

    @given(some.text(some.characters(exclude_characters="/\0\n\r", exclude_categories=["Cs"])))
    def test_a_pattern_has_no_wild_card_left(self, name: str) -> None:
        made = pattern(name)
        assert made.startswith("/")
        if any(one in name for one in "*?["):
            plain, escaped = [], False
            for character in made[1:]:
                assert escaped or character not in "*?["
                if character == "\\" and not escaped:
                    escaped = True
                    continue
                plain.append(character)
                escaped = False
            assert "".join(plain) == name
        else:
            assert made[1:] == name


class TestHowLong:
    @pytest.fixture
    def busy(self, pair: TwoCaches, tmp_path: Path) -> Iterator[Lending]:
        """An offer at which somebody fetches slowly."""
        one = Lending(request(pair))
        fetching = one.start(number_of(pair, BIG), tmp_path / "got", "--bwlimit=100")
        until(lambda: any(_name(child) == "rsync" for child in one.children()))
        yield one
        one.close()
        assert fetching.wait(WAIT_SECONDS) != 0

    def test_it_ends_with_its_input(self, busy: Lending, tmp_path: Path) -> None:
        children = busy.children()
        assert busy.process.stdin
        busy.process.stdin.close()
        assert busy.process.wait(WAIT_SECONDS) == 0
        until(lambda: not any(_runs(one) for one in children))
        assert not list((tmp_path / "tmp").iterdir())

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_it_ends_when_it_is_told_to(
        self, busy: Lending, tmp_path: Path, number: signal.Signals
    ) -> None:
        children = busy.children()
        busy.process.send_signal(number)
        assert busy.process.wait(WAIT_SECONDS) == 128 + number
        until(lambda: not any(_runs(one) for one in children))
        assert not list((tmp_path / "tmp").iterdir())

    def test_killed_it_takes_all_it_has_started_along(self, busy: Lending) -> None:
        children = busy.children()
        busy.process.kill()
        busy.process.wait()
        until(lambda: not any(_runs(one) for one in children))

    def test_it_ends_when_nobody_is_there_any_more(self, pair: TwoCaches) -> None:
        program = OFFER.replace("sys.exit", "import spark_pair.weights.offer as o\n"
                                "o.SILENT_SECONDS = 0.5\nsys.exit")  # fmt: skip
        with lending(request(pair), program) as one:
            assert one.process.wait(WAIT_SECONDS) == 0

    def test_words_about_how_far_it_is_keep_it_going(self, pair: TwoCaches) -> None:
        program = OFFER.replace("sys.exit", "import spark_pair.weights.offer as o\n"
                                "o.SILENT_SECONDS = 1.5\nsys.exit")  # fmt: skip
        with lending(request(pair), program) as one:
            assert one.process.stdin
            for line in (
                b"[[0, 100000]]\n",
                b"nonsense\n",
                b'[[99, 1], ["x"]]\n',
                b"[[0,",
                b"5]]\n",
            ):
                one.process.stdin.write(line)
                one.process.stdin.flush()
                time.sleep(0.5)
            assert one.process.poll() is None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestTheSecret:
    def test_it_is_in_one_file_only_which_others_cannot_read(
        self, pair: TwoCaches, tmp_path: Path
    ) -> None:
        with lending(request(pair)) as one:
            (spool,) = (tmp_path / "tmp").iterdir()
            assert spool.stat().st_mode & 0o777 == 0o700
            for path in spool.iterdir():
                found = one.asked.secret.encode() in path.read_bytes()
                assert found == (path.name == "secrets")
                assert not found or path.stat().st_mode & 0o777 == 0o600
            assert one.asked.secret not in json.dumps(one.answer)

    def test_no_list_of_processes_shows_it(self, pair: TwoCaches, tmp_path: Path) -> None:
        with lending(request(pair)) as one:
            fetching = one.start(0, tmp_path / "got", "--bwlimit=100")
            until(lambda: bool(one.children()))
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    assert one.asked.secret.encode() not in path.read_bytes()
            fetching.kill()
            fetching.wait()

    def test_each_is_another(self) -> None:
        assert len({new_secret() for _ in range(10)}) == 10


class TestPorts:
    def test_one_that_is_taken_is_passed_over(self, pair: TwoCaches) -> None:
        with socket.create_server((pair.rails[0]["peer"], 18730)), lending(request(pair)) as one:
            assert one.answer["ports"] == [18731, 18730]

    def test_none_is_free(self, pair: TwoCaches) -> None:
        with (
            socket.create_server((pair.rails[0]["peer"], 18730)),
            lending(request(pair, ports=(18730, 18730))) as one,
        ):
            assert one.answer["ports"] == [None, 18730]
            assert one.answer["troubles"] == ["no port from 18730 to 18730 is free", ""]

    def test_over_ssh_nobody_listens(self, pair: TwoCaches) -> None:
        with lending(request(pair, lines=())) as one:
            assert one.answer["ports"] == []
            assert {Path(file["folder"]) for file in one.answer["files"]} == {
                pair.lender.folder(pair.manifest.repo) / "blobs"
            }


class TestWhichFiles:
    def test_all_troubles_are_told_and_not_more_than_some(self, pair: TwoCaches) -> None:
        for path in pair.contents:
            pair.path(path, pair.lender).unlink()
            pair.lender.blob(pair.manifest.repo, pair.file(path)).unlink()
        with pytest.raises(OfferError, match=r"is not there .*; and 1 more$"):
            resolve(request(pair))

    def test_a_blob_without_a_link_is_found(self, pair: TwoCaches) -> None:
        pair.path(SMALL, pair.lender).unlink()
        assert len(resolve(request(pair))) == len(pair.contents)

    def test_a_folder_in_its_place(self, pair: TwoCaches, tmp_path: Path) -> None:
        (tmp_path / BIG).mkdir()
        with pytest.raises(OfferError, match="is no file"):
            resolve(request(pair, folder=tmp_path, files=(pair.file(BIG),)))

    def test_one_that_may_not_be_read(
        self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(OfferError, match="may not be read by the account"):
            resolve(request(pair))


class TestRequest:
    def test_there_and_back(self, pair: TwoCaches) -> None:
        asked = request(pair)
        assert Request.from_dict(json.loads(json.dumps(asked.as_dict()))) == asked

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"schema": 2}, "both machines need the same release of the tool"),
            ({"secret": "a b"}, "no secret"),
            ({"files": []}, "names no file"),
            ({"files": [{"path": "../x"}]}, "cannot be understood"),
            ({"commit": "main"}, "'main' for the commit"),
            ({"ports": [1]}, "cannot be understood"),
            ({"lines": [{}]}, "cannot be understood"),
        ],
    )
    def test_what_is_wrong_is_said(
        self, pair: TwoCaches, changes: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(DescriptionError, match=words):
            Request.from_dict({**request(pair).as_dict(), **changes})

    @pytest.mark.parametrize("said", ["", "nonsense\n", "[1]\n", "{}"])
    def test_nonsense_is_answered_in_words(self, said: str) -> None:
        done = subprocess.run(
            [sys.executable, "-I", "-c", OFFER], input=said, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 1 and not done.stderr
        assert json.loads(done.stdout)["error"]


class TestTheConnection:
    """The receiver's end."""

    PEER = Peer("spark-1", "operator", Path("/home/operator"), ("192.0.2.11", "192.0.2.12"), 22)

    def open(self, pair: TwoCaches, *scripts: str) -> PeerOffer:
        left = list(scripts)

        def command(_: Peer, __: str) -> list[str]:
            return ["bash", "-c", left.pop(0)]

        return PeerOffer(self.PEER, request(pair), command)

    def test_the_addresses_are_tried_in_turn(self, pair: TwoCaches) -> None:
        lent = f"exec {sys.executable} -I -c {shlex.quote(OFFER)}"
        one = self.open(pair, "echo 'ssh: no route' >&2; exit 255", lent)
        assert one.alive and len(one.files) == len(pair.contents)
        one.close()
        assert not one.alive

    def test_none_answers(self, pair: TwoCaches) -> None:
        script = "echo 'ssh: no route' >&2; exit 255"
        with pytest.raises(PeerOfferError) as caught:
            self.open(pair, script, script)
        assert str(caught.value) == (
            "spark-1 cannot be reached over ssh as operator (192.0.2.11: ssh: no route; "
            "192.0.2.12: ssh: no route)"
        )

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            ("echo 'argument VERB: invalid choice' >&2; exit 2", "same release of the tool"),
            ('echo \'{"error": "x is not there"}\'; exit 1', "as ordered: x is not there"),
            ("echo Welcome; cat", "something else than an offer: 'Welcome'"),
            ("cat", "something else than an offer: .*'secret': '…'"),
            ("echo '{}'; cat", "something else than an offer"),
        ],
    )
    def test_another_answer_is_told(self, pair: TwoCaches, script: str, words: str) -> None:
        with pytest.raises(PeerOfferError, match=words):
            self.open(pair, script)

    def test_no_answer_is_told(self, pair: TwoCaches, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(peer_offer, "ANSWER_SECONDS", 0.3)
        with pytest.raises(PeerOfferError, match="did not answer within"):
            self.open(pair, "cat > /dev/null")

    def test_ssh_asks_nobody_and_shares_no_connection(self) -> None:
        words = peer_offer.over_ssh(self.PEER, "192.0.2.11")
        assert words[0] == "ssh" and words[-2] == "operator@192.0.2.11"
        assert words[-1] == "/usr/local/bin/spark-pair weights offer"
        for option in ("BatchMode=yes", "ControlMaster=no", "ControlPath=none"):
            assert option in words
