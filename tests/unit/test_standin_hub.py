"""The stand-in Hub answers the real client as the Hub does, and fails as it is told to."""

import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hf_xet
import pytest
from hub_server import (
    NARROW_TOKEN,
    STRANGER_TOKEN,
    TOKEN,
    Account,
    Hub,
    Repository,
    get,
    noise_repository,
    weights,
)
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from simulated_pair.standins.hub.hub_standin import faults, server

STANDINS = Path(__file__).resolve().parents[2] / "simulated_pair" / "standins"
NAME, BIG, SMALL = "own/noise", "big one.safetensors", "notes/-small.txt"
SIZE = 3_000_001


def noise(**more: Any) -> Repository:
    return noise_repository(NAME, {BIG: SIZE, SMALL: 700, "b.safetensors": 90_000}, **more)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; every Hub of this file finds it there."""
    return tmp_path_factory.mktemp("hub")


@pytest.fixture
def hub(content: Path) -> Iterator[Hub]:
    with Hub(content, [noise()]) as running:
        yield running


@pytest.fixture
def xet_hub(content: Path) -> Iterator[Hub]:
    with Hub(content, [noise()], xet=True) as running:
        yield running


def download(hub: Hub, cache: Path, name: str = NAME, **more: Any) -> Path:
    options = {"revision": hub.state.held[name].wanted.commit, "token": False, **more}
    return Path(snapshot_download(name, endpoint=hub.url, cache_dir=cache, **options))


def wrong_files(hub: Hub, snapshot: Path, name: str = NAME) -> list[str]:
    files = hub.state.held[name].files
    return [path for path in files if (snapshot / path).read_bytes() != hub.content(name, path)]


class TestDownloads:
    def test_by_http(self, hub: Hub, tmp_path: Path) -> None:
        assert wrong_files(hub, download(hub, tmp_path)) == []
        assert hub.bytes_served(NAME, BIG) == SIZE
        assert not list(tmp_path.glob("blobs/*"))

    def test_by_xet_into_the_shared_store(self, xet_hub: Hub, tmp_path: Path) -> None:
        assert wrong_files(xet_hub, download(xet_hub, tmp_path)) == []
        # The xorb's own headers come with the bytes.
        assert SIZE <= xet_hub.bytes_served(NAME, BIG) < SIZE * 1.01
        assert {request.kind for request in xet_hub.requests if request.path == BIG} >= {
            "cas",
            "xorb",
        }
        assert (tmp_path / "blobs" / ".huggingface-shared-blobs").is_file()

    def test_by_xet_from_a_directory(self, content: Path, tmp_path: Path) -> None:
        with Hub(content, [noise()], xet="local") as hub:
            assert wrong_files(hub, download(hub, tmp_path)) == []
            assert hub.bytes_served(NAME, BIG) == 0

    def test_a_branch_is_its_commit(self, hub: Hub, tmp_path: Path) -> None:
        snapshot = download(hub, tmp_path, revision="main")
        assert snapshot.name == hub.state.held[NAME].wanted.commit

    def test_pages_of_a_listing(self, content: Path, tmp_path: Path) -> None:
        with Hub(content, [noise()], page=1) as hub:
            assert wrong_files(hub, download(hub, tmp_path)) == []
            assert [request.kind for request in hub.requests].count("tree") == 3

    def test_the_hash_of_a_file_is_its_etag(self, hub: Hub) -> None:
        data, small = hub.content(NAME, BIG), hub.content(NAME, SMALL)
        git_sha1 = hashlib.sha1(b"blob 700\0" + small, usedforsecurity=False)
        assert hub.file(NAME, BIG).etag == hashlib.sha256(data).hexdigest()
        assert hub.file(NAME, SMALL).etag == git_sha1.hexdigest()

    def test_listing_says_sizes_and_hashes(self, xet_hub: Hub) -> None:
        commit = xet_hub.state.held[NAME].wanted.commit
        tree = HfApi(xet_hub.url, token=False).list_repo_tree(NAME, revision=commit, recursive=True)
        entries: dict[str, Any] = {entry.path: entry for entry in tree}
        assert entries[BIG].size == SIZE
        assert entries[BIG].lfs.sha256 == xet_hub.file(NAME, BIG).sha256
        assert entries[BIG].xet_hash == xet_hub.file(NAME, BIG).xet_hash
        assert entries[SMALL].lfs is None

    def test_refs_and_commits_to_resolve_a_prefix_with(self, content: Path) -> None:
        older = "0123456789abcdef0123456789abcdef01234567"
        with Hub(content, [noise(older=(older,))]) as hub:
            commit = hub.state.held[NAME].wanted.commit
            api = HfApi(hub.url, token=False)
            assert [ref.target_commit for ref in api.list_repo_refs(NAME).branches] == [commit]
            commits = [entry.commit_id for entry in api.list_repo_commits(NAME)]
            assert commits == [commit, older]

    def test_xet_stream_from_an_offset_sends_the_rest_only(self, xet_hub: Hub) -> None:
        file = xet_hub.file(NAME, BIG)
        commit = xet_hub.state.held[NAME].wanted.commit
        url = f"{xet_hub.url}/api/models/{NAME}/xet-read-token/{commit}"
        group = hf_xet.XetSession().new_download_stream_group(token_refresh_url=url)
        info = hf_xet.XetFileInfo(file.xet_hash, file.size)
        start = 2_000_000
        data = b"".join(bytes(part) for part in group.download_stream(info, start=start))
        assert data == xet_hub.content(NAME, BIG)[start:]
        assert xet_hub.bytes_served(NAME, BIG) < SIZE - start + 200_000

    def test_content_is_the_same_everywhere(self, content: Path, tmp_path: Path) -> None:
        here, there = Hub(content, [noise()]), Hub(tmp_path, [noise()])
        assert here.state.held[NAME].files == there.state.held[NAME].files
        here.close()
        there.close()

    def test_content_that_changed_is_made_again(self, tmp_path: Path) -> None:
        for size in (10, 20):
            Hub(tmp_path, [noise_repository(NAME, {"a.bin": size})]).close()
        hub = Hub(tmp_path, [noise_repository(NAME, {"a.bin": 20})])
        assert hub.file(NAME, "a.bin").size == 20
        hub.close()


class TestErrors:
    def test_unknown_repository_revision_and_file(self, hub: Hub, tmp_path: Path) -> None:
        api = HfApi(hub.url, token=False)
        with pytest.raises(RepositoryNotFoundError):
            api.model_info("own/other")
        with pytest.raises(RevisionNotFoundError):
            api.model_info(NAME, revision="f" * 40)
        with pytest.raises(EntryNotFoundError):
            api.hf_hub_download(NAME, "none.txt", cache_dir=tmp_path)

    def test_a_token_that_is_not_known(self, hub: Hub) -> None:
        with pytest.raises(HfHubHTTPError, match="401"):
            HfApi(hub.url, token="hf_unknown").model_info(NAME)

    def test_whoami(self, hub: Hub) -> None:
        assert HfApi(hub.url, token=TOKEN).whoami()["name"] == "accepted"
        with pytest.raises(HfHubHTTPError):
            HfApi(hub.url, token="hf_unknown").whoami()


class TestGated:
    @pytest.fixture(params=[False, True], ids=["http", "xet"])
    def gated(self, content: Path, request: pytest.FixtureRequest) -> Iterator[Hub]:
        with Hub(content, [weights.overlay()], xet=request.param) as running:
            yield running

    def test_an_account_that_accepted(self, gated: Hub, tmp_path: Path) -> None:
        snapshot = download(gated, tmp_path, weights.OVERLAY, token=TOKEN)
        assert wrong_files(gated, snapshot, weights.OVERLAY) == []

    @pytest.mark.parametrize(
        ("token", "status"), [(False, 401), (STRANGER_TOKEN, 403), (NARROW_TOKEN, 403)]
    )
    def test_an_account_that_may_not(
        self, gated: Hub, tmp_path: Path, token: str | bool, status: int
    ) -> None:
        with pytest.raises((HfHubHTTPError, LocalEntryNotFoundError)) as raised:
            download(gated, tmp_path, weights.OVERLAY, token=token)
        # Of a token without the right the client says that the file cannot be found locally.
        error = raised.value.__cause__ if token == NARROW_TOKEN else raised.value
        assert isinstance(error, HfHubHTTPError)
        assert error.response.status_code == status
        assert isinstance(error, GatedRepoError) == (token != NARROW_TOKEN)
        assert gated.bytes_served(weights.OVERLAY) == 0

    def test_the_token_stays_with_the_hub(self, gated: Hub, tmp_path: Path) -> None:
        download(gated, tmp_path, weights.OVERLAY, token=TOKEN)
        stored = [request for request in gated.requests if request.kind in {"content", "xorb"}]
        assert any(request.store for request in stored)
        assert not any(request.token for request in stored if request.store)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the Hub would have waited, in seconds; it does not wait."""
    seconds: list[float] = []
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=seconds.append)
    monkeypatch.setattr(faults, "time", clock)
    monkeypatch.setattr(server, "time", clock)
    return seconds


class TestFaultsOfHttp:
    def test_a_dropped_connection_is_resumed(self, hub: Hub, tmp_path: Path) -> None:
        hub.fault({"what": "drop", "files": BIG, "at": 1_000_000, "times": 1})
        assert wrong_files(hub, download(hub, tmp_path)) == []
        asked = [request.range for request in hub.requests if request.path == BIG and request.store]
        assert asked[0] == ""
        assert len(asked) == 2

    def test_a_range_that_is_ignored(self, hub: Hub, tmp_path: Path) -> None:
        drop = {"what": "drop", "files": BIG, "at": 1_000_000, "times": 1}
        hub.fault(drop, {"what": "ignore_range", "files": BIG})
        assert wrong_files(hub, download(hub, tmp_path)) == []

    def test_a_reset_connection_ends_the_client(self, hub: Hub, tmp_path: Path) -> None:
        hub.fault({"what": "reset", "files": BIG, "at": 1_000_000, "times": 1})
        with pytest.raises(Exception, match=r"reset|ReadError|peer"):
            download(hub, tmp_path)
        assert 0 < hub.bytes_served(NAME, BIG) < SIZE

    @pytest.mark.parametrize(("status", "again"), [(503, False), (429, True)])
    def test_a_status(self, hub: Hub, tmp_path: Path, status: int, again: bool) -> None:
        fault = {"what": "status", "on": "content", "files": BIG, "times": 1}
        hub.fault({**fault, "status": status, "retry_after": 0})
        with contextlib.nullcontext() if again else pytest.raises(HfHubHTTPError):
            assert wrong_files(hub, download(hub, tmp_path)) == []

    def test_a_store_that_refuses(self, hub: Hub, tmp_path: Path) -> None:
        hub.fault({"what": "status", "on": "store", "files": BIG, "status": 403, "times": 1})
        with pytest.raises(HfHubHTTPError, match="403"):
            download(hub, tmp_path)
        asked = [request for request in hub.requests if request.path == BIG]
        assert [(request.store, request.status) for request in asked][-2:] == [
            (False, 302),
            (True, 403),
        ]

    def test_a_wrong_byte_is_not_noticed_by_the_client(self, hub: Hub, tmp_path: Path) -> None:
        hub.fault({"what": "corrupt", "files": BIG, "at": 77_777, "times": 1})
        snapshot = download(hub, tmp_path)
        assert wrong_files(hub, snapshot) == [BIG]
        wrong, right = (snapshot / BIG).read_bytes(), hub.content(NAME, BIG)
        assert [at for at in range(SIZE) if wrong[at] != right[at]] == [77_777]

    def test_a_short_answer(self, hub: Hub, tmp_path: Path) -> None:
        hub.fault({"what": "truncate", "files": BIG, "at": 500_000})
        with pytest.raises(OSError, match=r"[Cc]onsistency|size"):
            download(hub, tmp_path)

    def test_a_wrong_size(self, hub: Hub, tmp_path: Path) -> None:
        hub.fault({"what": "size", "files": BIG, "size": 60_000_000_000})
        with pytest.raises(ValueError, match="too large"):
            download(hub, tmp_path)
        assert hub.bytes_served(NAME, BIG) == 0

    def test_a_missing_file(self, hub: Hub, tmp_path: Path) -> None:
        hub.fault({"what": "missing", "on": "head", "files": BIG})
        with pytest.raises(EntryNotFoundError):
            download(hub, tmp_path)
        hub.fault({"what": "missing", "files": BIG})
        assert not (download(hub, tmp_path / "other") / BIG).exists()

    def test_a_slow_hub_is_no_faster_than_asked(
        self, content: Path, tmp_path: Path, slept: list[float]
    ) -> None:
        with Hub(content, [noise()], bytes_per_second=20_000) as hub:
            download(hub, tmp_path)
        assert SIZE / 20_000 - 60 < max(slept) < SIZE / 20_000 + 10

    def test_one_slow_file(self, hub: Hub, tmp_path: Path, slept: list[float]) -> None:
        hub.fault({"what": "slow", "files": SMALL, "bytes_per_second": 1})
        download(hub, tmp_path)
        assert len(slept) == 1

    def test_a_hang_sends_nothing_for_a_while(
        self, hub: Hub, tmp_path: Path, slept: list[float]
    ) -> None:
        hub.fault({"what": "hang", "files": BIG, "at": 10, "seconds": 300, "times": 1})
        assert wrong_files(hub, download(hub, tmp_path)) == []
        assert slept == [300]

    def test_a_fault_nobody_knows_is_refused(self, hub: Hub) -> None:
        for bad in ({"what": "explode"}, {"what": "drop", "where": 3}, {"what": "slow"}):
            with pytest.raises(ValueError, match=r"fault|slow"):
                hub.fault(bad)


class TestFaultsOfXet:
    @pytest.mark.parametrize(
        "fault",
        [
            {"what": "drop", "at": 1_000_000},
            {"what": "reset", "at": 1_000_000},
            {"what": "status", "status": 503},
            {"what": "status", "status": 429, "retry_after": 0},
        ],
        ids=lambda fault: str(fault.get("status", fault["what"])),
    )
    def test_what_the_client_survives(
        self, xet_hub: Hub, tmp_path: Path, fault: dict[str, Any]
    ) -> None:
        xet_hub.fault({"on": "xorb", "files": BIG, "times": 1, **fault})
        assert wrong_files(xet_hub, download(xet_hub, tmp_path)) == []
        struck = [request for request in xet_hub.requests if request.kind == "xorb"]
        assert len([request for request in struck if request.path == BIG]) > 1

    def test_a_wrong_byte(self, xet_hub: Hub, tmp_path: Path) -> None:
        xet_hub.fault({"what": "corrupt", "on": "xorb", "files": BIG, "at": 1_000_003})
        assert wrong_files(xet_hub, download(xet_hub, tmp_path)) == [BIG]

    def test_a_store_that_refuses(self, xet_hub: Hub, tmp_path: Path) -> None:
        xet_hub.fault({"what": "status", "on": "cas", "files": BIG, "status": 403})
        with pytest.raises(Exception, match=r"403|[Ff]orbidden"):
            download(xet_hub, tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    hub = Hub(tmp_path_factory.mktemp("weights"), weights.account(3 << 20))
    hub.close()
    return hub


class TestWeights:
    @staticmethod
    def header(path: Path) -> dict[str, Any]:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        places = sorted(entry["data_offsets"] for entry in entries.values())
        assert [start for start, _ in places] == [0, *[end for _, end in places[:-1]]]
        assert 8 + length + places[-1][1] == path.stat().st_size
        return entries

    def headers(self, made: Hub, name: str) -> dict[str, dict[str, Any]]:
        shards = sorted(made.state.held[name].folder.glob("*.safetensors"))
        return {path.name: self.header(path) for path in shards}

    def test_shards_agree_with_their_index(self, made: Hub) -> None:
        for name, count in ((weights.CHECKPOINT, 39), (weights.ENGRAM, 48)):
            shards = self.headers(made, name)
            assert len(shards) == count
            index = json.loads(made.content(name, "model.safetensors.index.json"))
            held = {key: shard for shard, entries in shards.items() for key in entries}
            assert index["weight_map"] == held

    def test_the_overlay_fits_24_shards(self, made: Hub) -> None:
        shards = self.headers(made, weights.CHECKPOINT)
        (overlay,) = self.headers(made, weights.OVERLAY).values()
        assert len(overlay) == 104
        touched = set()
        for shard, entries in shards.items():
            for key in overlay.keys() & entries.keys():
                touched.add(shard)
                assert overlay[key]["dtype"] == entries[key]["dtype"]
                assert overlay[key]["shape"] == entries[key]["shape"]
        assert len(touched) == 24
        assert set(overlay) <= {key for entries in shards.values() for key in entries}

    def test_the_engine_stand_in_cuts_it(self, made: Hub, tmp_path: Path) -> None:
        source = made.state.held[weights.CHECKPOINT].folder
        path = ":".join(str(STANDINS / part) for part in ("engine", "common"))
        for rank in ("0", "1"):
            command = [sys.executable, str(STANDINS / "engine/bin/tf-dsv41-rank-cache")]
            subprocess.run(
                [*command, str(source), str(tmp_path), rank, "2"],
                check=True,
                capture_output=True,
                env={"PYTHONPATH": path},
            )
        assert len(list(tmp_path.glob("rank?of2-*.bin"))) == 2

    def test_the_overlays_script_applies_it(self, made: Hub, tmp_path: Path) -> None:
        source, overlay = (
            made.state.held[name].folder for name in (weights.CHECKPOINT, weights.OVERLAY)
        )
        arguments = ["--src", source, "--wo-b", overlay / weights.OVERLAY_FILE, "--dst", tmp_path]
        command = [sys.executable, overlay / "apply_mia29_wo_b_graft.py", *arguments]
        done = subprocess.run(
            [str(word) for word in command],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(STANDINS / "engine")},
        )
        assert done.stdout.endswith("edited 104\n")

    def test_sizes_follow_what_was_asked(self, made: Hub) -> None:
        for name in (weights.CHECKPOINT, weights.ENGRAM):
            total = sum(file.size for file in made.state.held[name].files.values())
            assert 0.8 < total / (1.5 * (1 << 20)) < 1.3

    def test_an_overlay_of_other_types(self, tmp_path: Path) -> None:
        hub = Hub(tmp_path, [weights.overlay(stock_dtypes=False)])
        hub.close()
        entries = self.header(hub.state.held[weights.OVERLAY].folder / weights.OVERLAY_FILE)
        assert entries["layers.10.attn.wo_b.suh"]["dtype"] == "F32"


class TestFromOutside:
    def test_faults_and_requests_over_http(self, hub: Hub) -> None:
        url = f"{hub.url}/{NAME}/resolve/main/{SMALL}"
        body = json.dumps({"faults": [{"what": "status", "status": 500, "times": 1}]}).encode()
        urllib.request.urlopen(
            urllib.request.Request(f"{hub.url}/control/faults", data=body, method="PUT"), timeout=30
        ).close()
        with pytest.raises(urllib.error.HTTPError, match="500"):
            get(url)
        assert get(url) == hub.content(NAME, SMALL)
        requests = json.loads(get(f"{hub.url}/control/requests"))
        assert [request["status"] for request in requests] == [500, 200]

    def test_faults_of_a_file(self, content: Path, tmp_path: Path) -> None:
        file = tmp_path / "hub.json"
        with Hub(content, [noise()], faults_file=file) as hub:
            url = f"{hub.url}/{NAME}/resolve/main/{SMALL}"
            assert get(url)
            file.write_text(json.dumps({"faults": [{"what": "missing", "files": SMALL}]}))
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(url)
            file.unlink()
            assert get(url)

    def test_the_program(self, tmp_path: Path) -> None:
        accounts = tmp_path / "accounts.json"
        account = {"name": "somebody", "accepted": [weights.OVERLAY]}
        accounts.write_text(json.dumps({TOKEN: account}))
        log = tmp_path / "requests.jsonl"
        command = [sys.executable, "-m", "hub_standin", "--directory", str(tmp_path / "content")]
        command += ["--size", "1000000", "--accounts", str(accounts), "--log", str(log)]
        with subprocess.Popen(
            command, cwd=STANDINS / "hub", stdout=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout is not None
            try:
                url = program.stdout.readline().split()[-1]
                path = f"{url}/{weights.OVERLAY}/resolve/main/README.md"
                assert get(path, TOKEN).startswith(b"# drowzeys/")
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    get(path)
            finally:
                program.send_signal(signal.SIGTERM)
            assert program.wait(30) == 0
        noted = {json.loads(line)["status"] for line in log.read_text().splitlines()}
        assert noted == {200, 401}

    def test_accounts_are_as_the_test_says(self, content: Path) -> None:
        with Hub(content, [noise()], accounts={"hf_mine": Account("me")}) as hub:
            assert HfApi(hub.url, token="hf_mine").whoami()["name"] == "me"
