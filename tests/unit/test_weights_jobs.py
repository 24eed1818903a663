"""The programs of the jobs about weights, and what `spark-pair weights` says of a host."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import hub_server
import pytest
from hub_server import STRANGER_TOKEN, TOKEN, noise_repository

from spark_pair import cli, jsonfile, paths
from spark_pair.errors import DescriptionError
from spark_pair.jobs import inside
from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError, kept_order, read_result
from spark_pair.weights import commands
from spark_pair.weights.cache import Cache
from spark_pair.weights.download_job import download
from spark_pair.weights.download_order import DownloadOrder
from spark_pair.weights.hub import Hub, HubError
from spark_pair.weights.pace import Meter
from spark_pair.weights.provenance import Artefact, Origin, Provenance
from spark_pair.weights.record import ProofError, Proofs, take_over
from spark_pair.weights.verify_job import verify_all

REPO, GATED = "own/open", "own/gated"
BIG, SECOND, SMALL = "a.safetensors", "b.safetensors", "config.json"
MIB = 1 << 20
SIZES = {BIG: 3 * MIB, SECOND: 2 * MIB, SMALL: 200}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hub_server.Hub]:
    repositories = [noise_repository(REPO, SIZES), noise_repository(GATED, SIZES, gated=True)]
    with hub_server.Hub(tmp_path_factory.mktemp("hub"), repositories) as running:
        yield running


@pytest.fixture
def server(served: hub_server.Hub) -> hub_server.Hub:
    served.fault()
    served.forget_requests()
    return served


class Host:
    """A host with one account, and the folder of one job."""

    def __init__(self, root: Path, server: hub_server.Hub) -> None:
        self.server = server
        self.home = root / "home"
        self.cache = Cache.of_account(self.home)
        self.folder = root / "var/jobs/download"
        self.folder.mkdir(parents=True)
        self.provenance = Provenance(root / "var/provenance.json")
        self.reporter = Reporter(self.folder, "r1")

    def order(self, repo: str = REPO, **more: Any) -> dict[str, Any]:
        commit = self.server.state.held[repo].wanted.commit
        return {
            "schema": 1,
            "source": "checkpoint",
            "endpoint": self.server.url,
            "home": str(self.home),
            "manifest": Hub(self.server.url, TOKEN).manifest(repo, commit).as_dict(),
            "files": sorted(SIZES),
            "workers": 2,
            **more,
        }

    def download(self, token: str | None = TOKEN, **more: Any) -> tuple[str, Mapping[str, Any]]:
        order = DownloadOrder.from_dict(self.order(**more))
        return download(order, self.reporter, token, Proofs(self.folder), self.provenance)

    def verify(self) -> tuple[str, Mapping[str, Any]]:
        return verify_all(self.reporter, Proofs(self.folder), self.provenance, 2)

    def take_over(self) -> Artefact:
        """What root does at the end; the record of the checkpoint then."""
        take_over(self.folder, self.provenance, self.order())
        return self.provenance.load()["checkpoint"]

    def path(self, name: str, repo: str = REPO) -> Path:
        return self.cache.snapshot(repo, self.server.state.held[repo].wanted.commit) / name

    def spoil(self, name: str) -> None:
        """Change a byte behind the file system's back."""
        path = self.path(name).resolve()
        before = path.stat()
        with path.open("r+b") as stream:
            first = stream.read(1)
            stream.seek(0)
            stream.write(bytes([first[0] ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def host(tmp_path: Path, server: hub_server.Hub) -> Host:
    return Host(tmp_path, server)


class TestDownload:
    def test_what_came_is_recorded_as_written(self, host: Host) -> None:
        words, data = host.download()
        assert words == (
            "3 files of checkpoint (5.2 MB) are there and proven, 5.2 MB came over the network"
        )
        assert data["fetched"] == sum(SIZES.values()) and not data["problems"]
        record = host.take_over()
        assert (record.repo, record.origin, record.kind) == (
            REPO,
            Origin.DOWNLOADED,
            "repository",
        )
        assert set(record.files) == set(SIZES)
        for name, held in record.files.items():
            status = host.path(name).stat()
            assert held.how == "written" and held.digest == host.server.file(REPO, name).etag
            assert (held.size, held.mtime_ns, held.inode) == (
                status.st_size,
                status.st_mtime_ns,
                status.st_ino,
            )

    def test_what_is_recorded_is_not_read_again(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.download()
        before = host.take_over()

        def reads(*_: object) -> bool:
            raise AssertionError("a recorded file was read")

        monkeypatch.setattr("spark_pair.weights.fetch._Fetcher._proves", reads)
        words, data = host.download()
        assert data["fetched"] == 0 and "nothing came over the network" in words
        assert host.take_over().files == before.files

    def test_files_without_a_record_are_read_and_recorded(self, host: Host) -> None:
        host.download()
        (host.folder / "verified.jsonl").unlink()
        _, data = host.download()
        assert data["fetched"] == 0
        assert {held.how for held in host.take_over().files.values()} == {"read"}

    def test_a_run_that_fails_keeps_what_it_has(self, host: Host) -> None:
        host.server.fault({"what": "missing", "files": SECOND, "on": "content"})
        with pytest.raises(JobFailedError, match=SECOND) as raised:
            host.download()
        assert raised.value.data["files"][SECOND] == "failed"
        assert set(host.take_over().files) == {BIG, SMALL}
        host.server.fault()
        host.server.forget_requests()
        host.download()
        assert host.server.bytes_served(REPO, BIG) == 0
        assert set(host.take_over().files) == set(SIZES)

    def test_a_stop_ends_the_waiting_for_a_hub_that_is_busy(self, host: Host) -> None:
        host.server.fault({"what": "status", "status": 429, "retry_after": 3000, "on": "head"})
        timer = threading.Timer(0.5, host.reporter.stop_asked.set)
        timer.start()
        with pytest.raises(JobStoppedError):
            host.download(repo=GATED, gated=True)
        assert sum(one.kind == "head" for one in host.server.requests) == 1

    def test_a_stop_keeps_what_it_has(self, host: Host) -> None:
        host.server.fault({"what": "hang", "files": BIG, "at": MIB, "seconds": 60})
        timer = threading.Timer(1.0, host.reporter.stop_asked.set)
        timer.start()
        with pytest.raises(JobStoppedError):
            host.download()
        assert set(host.take_over().files) <= {SECOND, SMALL}

    def test_files_that_are_fetched_leave_the_adopted_ones(self, host: Host) -> None:
        host.download()
        record = host.take_over()
        adopted = {name: replace(held, how="adopted") for name, held in record.files.items()}
        host.provenance.record(replace(record, origin=Origin.ADOPTED, files=adopted))
        host.path(SMALL).resolve().unlink()
        host.download(files=[SMALL])
        after = host.take_over()
        assert after.origin is Origin.ADOPTED
        assert after.files[SMALL].how == "written"
        assert {name: after.files[name] for name in (BIG, SECOND)} == {
            name: adopted[name] for name in (BIG, SECOND)
        }

    def test_a_gated_source_is_asked_for_a_small_file_first(self, host: Host) -> None:
        with pytest.raises(HubError, match="accept the terms"):
            host.download(STRANGER_TOKEN, repo=GATED, gated=True)
        kinds = [(one.method, one.path) for one in host.server.requests if one.path]
        assert kinds == [("HEAD", SMALL)]
        host.download(repo=GATED, gated=True)

    def test_a_record_that_cannot_be_read_does_not_keep_it_from_downloading(
        self, host: Host
    ) -> None:
        host.provenance.path.write_text("{")
        host.download()
        assert host.path(BIG).is_file()

    def test_a_disk_that_takes_no_note_is_told_and_costs_no_byte(self, host: Host) -> None:
        (host.folder / "verified.jsonl").mkdir()
        with pytest.raises(ProofError, match="make room there"):
            host.download()
        (host.folder / "verified.jsonl").rmdir()
        host.server.forget_requests()
        host.download()
        assert host.server.bytes_served(REPO) == 0
        assert set(host.take_over().files) == set(SIZES)

    def test_a_file_that_somebody_takes_away_at_once_is_not_recorded(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = Cache.place

        def taken(cache: Cache, *arguments: Any) -> Path:
            entry = place(cache, *arguments)
            if entry.name == SECOND:
                entry.unlink()
            return entry

        monkeypatch.setattr(Cache, "place", taken)
        with pytest.raises(ProofError, match="1 of them could not be noted"):
            host.download()
        assert set(host.take_over().files) == {BIG, SMALL}

    def test_a_write_after_the_last_byte_was_read_is_not_recorded(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.download()
        (host.folder / "verified.jsonl").unlink()
        there = Meter.there

        def write(meter: Meter, path: str, count: int) -> None:
            if path == SECOND and count == SIZES[SECOND]:
                with host.path(SECOND).open("r+b") as stream:
                    stream.write(b"GRAFTED!")
            there(meter, path, count)

        monkeypatch.setattr(Meter, "there", write)
        with pytest.raises(JobFailedError, match="written to while it was checked"):
            host.download()
        assert set(host.take_over().files) == {BIG, SMALL}

    def test_a_write_after_a_file_was_put_in_its_place_is_noticed(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = Cache.place

        def written(cache: Cache, *arguments: Any) -> Path:
            entry = place(cache, *arguments)
            if entry.name == SECOND:
                os.utime(entry, ns=(1, 1))
            return entry

        monkeypatch.setattr(Cache, "place", written)
        with pytest.raises(ProofError):
            host.download()
        assert set(host.take_over().files) == {BIG, SMALL}

    def test_the_line_tells_of_trouble_and_not_of_every_file(self, host: Host) -> None:
        host.download()
        told = host.reporter.progress()
        assert told.step == "download checkpoint"
        assert (told.done, told.total) == (sum(SIZES.values()),) * 2


class TestOrder:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"schema": 2}, "run --tags tools"),
            ({"files": []}, "names no file"),
            ({"files": ["nothing.bin"]}, "has no file nothing.bin"),
            ({"files": "a"}, "has no list of files"),
            ({"home": "~"}, "'~' for home"),
            ({"source": ""}, "'' for source"),
            ({"workers": 0}, "0 for workers"),
            ({"workers": True}, "True for workers"),
            ({"limit_bytes_per_second": 0}, "0 for limit_bytes_per_second"),
            ({"floor_bytes": -1}, "-1 for floor_bytes"),
            ({"gated": "no"}, "'no' for gated"),
            ({"manifest": {}}, "no manifest"),
            ({"token": "x"}, "unknown keys: token"),
        ],
    )
    def test_bad_ones_are_refused_by_name(
        self, host: Host, change: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(DescriptionError, match=words):
            DownloadOrder.from_dict({**host.order(), **change})

    def test_what_is_left_out(self, host: Host) -> None:
        order = host.order()
        del order["workers"]
        read = DownloadOrder.from_dict(order)
        assert (read.workers, read.limit_bytes_per_second, read.floor_bytes) == (4, None, 0)
        assert read.where().root == host.cache.root and not read.gated
        with pytest.raises(DescriptionError, match="lacks files, home"):
            DownloadOrder.from_dict(
                {key: order[key] for key in order if key not in ("home", "files")}
            )


class TestVerify:
    def test_all_as_recorded(self, host: Host) -> None:
        host.download()
        before = host.take_over()
        words, data = host.verify()
        assert words == "3 files (5.2 MB) read, all as recorded"
        assert data == {"files": 3, "bytes": sum(SIZES.values()), "differences": []}
        after = host.take_over()
        for name, held in after.files.items():
            assert held.verified_at > before.files[name].verified_at

    def test_nothing_recorded(self, host: Host) -> None:
        words, _ = host.verify()
        assert "nothing is recorded" in words and "--tags adopt" in words

    def test_a_change_behind_the_file_system_is_found_and_mended(self, host: Host) -> None:
        host.download()
        host.take_over()
        host.spoil(BIG)
        with pytest.raises(JobFailedError, match="1 of 3 files is not as recorded") as raised:
            host.verify()
        assert "--tags download" in str(raised.value)
        (difference,) = raised.value.data["differences"]
        assert (difference["path"], difference["trouble"]) == (BIG, "content")
        assert host.take_over().files[BIG].failed_at is not None
        host.server.forget_requests()
        host.download()
        assert host.server.bytes_served(REPO) == SIZES[BIG]
        assert host.path(BIG).read_bytes() == host.server.content(REPO, BIG)
        held = host.take_over().files[BIG]
        assert held.failed_at is None and held.how == "written"
        host.verify()

    def test_a_stop_keeps_what_was_read(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        host.download()
        before = host.take_over()
        monkeypatch.setattr(host.reporter, "advance", lambda _: host.reporter.stop_asked.set())
        with pytest.raises(JobStoppedError, match=r"after .* of 5\.2 MB; what was read is noted"):
            host.verify()
        assert set(host.take_over().files) == set(before.files)

    def test_what_to_do_about_a_rank_file(self, host: Host) -> None:
        host.download()
        record = host.take_over()
        host.provenance.record(replace(record, name="rank0", kind="rank_file"))
        host.path(SECOND).resolve().unlink()
        with pytest.raises(JobFailedError, match="2 of 6 files are not as recorded") as raised:
            host.verify()
        assert "cut it anew" in str(raised.value) and "--tags download" in str(raised.value)

    def test_what_is_read_leaves_the_page_cache(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.download()
        host.take_over()
        dropped = dict.fromkeys(SIZES, 0)
        advise = os.posix_fadvise

        def noted(handle: int, start: int, length: int, advice: int) -> None:
            if advice == os.POSIX_FADV_DONTNEED:
                here = Path(f"/proc/self/fd/{handle}").readlink()
                for name in SIZES:
                    if host.path(name).resolve() == here:
                        dropped[name] += length
            advise(handle, start, length, advice)

        monkeypatch.setattr(os, "posix_fadvise", noted)
        host.verify()
        assert dropped == SIZES


class TestCommand:
    @pytest.fixture(autouse=True)
    def _var(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(paths, "VAR", host.provenance.path.parent)
        monkeypatch.setenv(inside.FOLDER, str(host.folder))
        monkeypatch.setenv(inside.RUN, "r1")
        for name in ("RUST_LOG", "HF_XET_TELEMETRY_ENABLED"):  # which a download sets for good
            monkeypatch.setenv(name, "off")

    def test_nothing_yet(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["weights"]) == 0
        assert "nothing is recorded" in capsys.readouterr().out
        assert cli.main(["weights", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"artefacts": {}, "differences": []}

    def test_from_the_order_to_the_record(
        self, host: Host, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (host.folder / "order.json").write_text(json.dumps(host.order()))
        jsonfile.write(kept_order(host.folder.parent, "download"), host.order())
        assert cli.main(["weights", "download"]) == 0
        assert cli.main(["weights", "record", "download"]) == 0
        assert cli.main(["weights", "verify", "--threads", "1"]) == 0
        capsys.readouterr()
        assert cli.main(["weights"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        commit = host.server.state.held[REPO].wanted.commit
        assert line.startswith(f"checkpoint  own/open@{commit[:8]}  3 files  5.2 MB  downloaded")
        host.path(SMALL).resolve().unlink()
        assert cli.main(["weights"]) == 1
        assert f"NOT AS RECORDED  checkpoint: {SMALL} is not there" in capsys.readouterr().out
        assert cli.main(["weights", "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert told["differences"] == [f"checkpoint: {SMALL} is not there"]
        assert told["artefacts"]["checkpoint"]["commit"] == commit

    def test_the_store_s_client_is_quiet_unless_it_is_asked_to_speak(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RUST_LOG")
        monkeypatch.setenv("HF_XET_TELEMETRY_ENABLED", "true")
        assert cli.main(["weights", "download"]) == 2
        assert os.environ["RUST_LOG"] == "warn"
        assert os.environ["HF_XET_TELEMETRY_ENABLED"] == "true"

    def test_a_bad_order_is_a_failed_job(self, host: Host) -> None:
        assert cli.main(["weights", "download"]) == 2
        result = read_result(host.folder, "r1")
        assert result and not result.ok and "order.json cannot be read" in result.message
        (host.folder / "order.json").write_text("{}")
        assert cli.main(["weights", "download"]) == 2
        result = read_result(host.folder, "r1")
        assert result and "schema None" in result.message

    def test_by_hand_an_order_has_to_be_named(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv(inside.FOLDER)
        assert cli.main(["weights", "download"]) == 2
        assert "name the file of the order" in capsys.readouterr().err

    def test_a_grafted_artefact_names_its_overlay(self, host: Host) -> None:
        host.download()
        record = host.take_over()
        grafted = replace(record, details={"overlay": "0bdc2036" * 5}, origin=Origin.GRAFTED)
        line = commands.table({"checkpoint": grafted}, [])
        assert f"@{record.commit[:8]} with 0bdc2036 " in line
