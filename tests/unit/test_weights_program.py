"""The program of a download against every fault of the stand-in Hub: its exit code, its sentence,
what it has noted as proven, and what lies in the cache afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_server
import pytest
from hub_server import NARROW_TOKEN, STRANGER_TOKEN, TOKEN, noise_repository

from spark_pair import cli
from spark_pair.jobs.inside import FOLDER, RUN
from spark_pair.weights import fetch as fetch_module
from spark_pair.weights import hub as hub_module
from spark_pair.weights.cache import Cache
from spark_pair.weights.fetch import Patience
from spark_pair.weights.hub import Hub

OPEN, GATED = "own/open", "own/gated"
BIG, SMALL = "big.safetensors", "d/config.json"
MIB = 1 << 20
SIZES = {BIG: 5 * MIB + 11, "a.safetensors": MIB, SMALL: 2000, "empty": 0}
AT = 3 * MIB
QUICK = Patience(stall_seconds=10, seconds=0, tries=3, progress_bytes=MIB // 2, wait_factor=0.01)

Fault = dict[str, Any]


@pytest.fixture(scope="module", params=["http", "xet"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[hub_server.Hub]:
    repositories = [noise_repository(OPEN, SIZES), noise_repository(GATED, SIZES, gated=True)]
    folder = tmp_path_factory.mktemp(f"hub-{request.param}")
    with hub_server.Hub(folder, repositories, xet=request.param == "xet") as running:
        yield running


class Job:
    """One run of the program, as its unit would start it."""

    def __init__(
        self,
        server: hub_server.Hub,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.server, self.folder = server, folder / "job"
        self.cache = Cache.of_account(folder)
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.folder.mkdir()
        monkeypatch.setenv(FOLDER, str(self.folder))
        monkeypatch.setenv(RUN, "run-1")
        monkeypatch.setattr(fetch_module, "Patience", lambda: QUICK)
        monkeypatch.setattr(hub_module, "wait_before", lambda attempt, asked=None: 0.0)

    def run(self, repo: str = OPEN, token: str = "", *, listed: list[Fault] | None = None) -> int:
        """Order all files of a repository and run the program; its exit code.

        `listed`: faults that are there while the list of files is asked for, and only then.
        """
        if listed:
            self.server.fault(*listed)
        manifest = Hub(self.server.url, TOKEN).manifest(
            repo, self.server.state.held[repo].wanted.commit
        )
        if listed:
            self.server.fault()
        order = {
            **{"schema": 1, "source": "checkpoint", "endpoint": self.server.url},
            **{"home": str(self.folder.parent), "manifest": manifest.as_dict()},
            **{"files": [file.path for file in manifest.files], "gated": repo == GATED},
        }
        (self.folder / "order.json").write_text(json.dumps(order))
        if token:
            credentials = self.folder.parent / "credentials"
            credentials.mkdir(exist_ok=True)
            (credentials / "hf-token").write_text(token + "\n")
            self._monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
        code = cli.main(["weights", "download"])
        said = self._capsys.readouterr()
        self.words = said.err.strip() if code else said.out.strip()
        assert self.words and "\n" not in self.words and "Traceback" not in self.words
        result = json.loads((self.folder / "result.json").read_text())
        assert (result["exit"], result["ok"]) == (code, code == 0)
        assert result["message"] == self.words
        self._nothing_wrong(repo)
        return code

    def _nothing_wrong(self, repo: str) -> None:
        """Whatever is in place is right, and nothing else is noted as proven."""
        commit = self.server.state.held[repo].wanted.commit
        right = set()
        for path in SIZES:
            entry = self.cache.snapshot(repo, commit) / path
            if entry.exists():
                assert entry.read_bytes() == self.server.content(repo, path), path
                right.add(path)
        assert self.proven <= right
        self.right = right
        # A file is named at once after it got its place: a kill may come between the two.
        assert (self.cache.folder(repo) / "trees").exists() <= (right == set(SIZES))

    @property
    def proven(self) -> set[str]:
        """Files that root will record."""
        noted = self.folder / "verified.jsonl"
        lines = noted.read_text().split("\n") if noted.exists() else []
        return {json.loads(line)["path"] for line in lines if line}

    def texts(self) -> str:
        """All that it has left in the job's folder."""
        return "".join(path.read_text() for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def job(
    server: hub_server.Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Job:
    server.fault()
    return Job(server, tmp_path, monkeypatch, capsys)


def on_bytes(fault: Fault) -> list[Fault]:
    """The fault where it meets the big file's bytes, whichever way they come."""
    return [{"files": BIG, **fault, "on": kind} for kind in ("content", "xorb")]


PASSING: dict[str, Fault] = {
    "drop": {"what": "drop", "at": AT, "times": 1},
    "reset": {"what": "reset", "at": AT, "times": 1},
    "503": {"what": "status", "status": 503, "times": 2},
    "429": {"what": "status", "status": 429, "retry_after": 1, "times": 1},
    "corrupt byte": {"what": "corrupt", "at": AT, "times": 1},
    "truncated": {"what": "truncate", "at": AT, "times": 1},
    "slow": {"what": "slow", "bytes_per_second": 8 * MIB},
}


@pytest.mark.parametrize("name", PASSING)
def test_after_a_fault_that_passes_everything_is_there(job: Job, name: str) -> None:
    by_xet = job.server.file(OPEN, BIG).xet_hash is not None
    job.server.fault(on_bytes(PASSING[name])[by_xet])
    assert job.run() == 0
    assert job.right == job.proven == set(SIZES)
    assert "4 files of checkpoint" in job.words and "proven" in job.words


STAYING: dict[str, tuple[Fault, str]] = {
    "drop": ({"what": "drop", "at": 0}, "next to nothing"),
    "reset": ({"what": "reset", "at": 0}, "next to nothing"),
    "503": ({"what": "status", "status": 503}, "503"),
    "429": ({"what": "status", "status": 429, "retry_after": 1}, "429"),
    "corrupt byte": ({"what": "corrupt", "at": AT}, "came twice with content that is not"),
    "truncated": ({"what": "truncate", "at": AT}, "next to nothing"),
}


@pytest.mark.parametrize("name", STAYING)
def test_a_fault_that_stays_is_told_and_the_next_run_mends_it(job: Job, name: str) -> None:
    fault, words = STAYING[name]
    job.server.fault(*on_bytes(fault))
    assert job.run() == 1
    # The content store's client has words of its own, and not always the same.
    by_xet = job.server.file(OPEN, BIG).xet_hash is not None
    assert BIG in job.words
    assert words in job.words or (by_xet and "next to nothing" in job.words), job.words
    assert job.right == job.proven == set(SIZES) - {BIG}
    job.server.fault()
    assert job.run() == 0 and job.right == job.proven == set(SIZES)


def test_a_file_that_is_missing_is_named(job: Job) -> None:
    job.server.fault({"what": "missing", "files": SMALL, "on": "content"})
    assert job.run() == 1
    assert SMALL in job.words and "404" in job.words
    assert job.right == set(SIZES) - {SMALL}


@pytest.mark.parametrize("more", [-1, 1])
def test_a_size_that_is_wrong_is_never_filled(job: Job, more: int) -> None:
    size = {"what": "size", "files": BIG, "on": "tree", "size": SIZES[BIG] + more}
    assert job.run(listed=[size]) == 1
    assert BIG in job.words and job.right == set(SIZES) - {BIG}
    assert job.run() == 0


@pytest.mark.parametrize("page", [1, 3])
def test_a_list_in_pages_misses_nothing(job: Job, page: int) -> None:
    before, job.server.state.page = job.server.state.page, page
    try:
        assert job.run() == 0
    finally:
        job.server.state.page = before
    assert job.right == set(SIZES)


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "given only to those who logged in (401)"),
        ("hf_NobodyKnowsThisTokenOfNobodysAccount", "does not accept the token (401"),
        (STRANGER_TOKEN, "accept the terms"),
        (NARROW_TOKEN, "right to read gated"),
    ],
)
def test_a_gated_repository_ends_at_its_first_small_file(job: Job, token: str, words: str) -> None:
    job.server.forget_requests()
    assert job.run(GATED, token) == 2
    assert words in job.words and f"{job.server.url}/" in job.words
    assert not job.right and job.server.bytes_served(GATED) == 0
    assert not token or token not in job.words + job.texts()


def test_a_gated_repository_comes_with_the_right_token(job: Job) -> None:
    assert job.run(GATED, TOKEN) == 0
    assert job.right == set(SIZES) and TOKEN not in job.words + job.texts()
