"""An image comes to the other machine once, whole, and under its own name."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from docker_images import ARCHIVE_BYTES, Images
from two_caches import HASTY, TwoCaches

from spark_pair.errors import DescriptionError
from spark_pair.image import ship_job
from spark_pair.image.identity import inspect
from spark_pair.image.order import ExportOrder, FetchOrder
from spark_pair.image.ship_job import export, fetch
from spark_pair.jobs.inside import Reporter
from spark_pair.jobs.shapes import JobFailedError, JobStoppedError
from spark_pair.weights import transfer
from spark_pair.weights.parts import Part
from spark_pair.weights.transfer import Patience

IMAGE = "tensorfold-dsv41:0123456789ab"
Told = tuple[str, Mapping[str, Any]]


@pytest.fixture(autouse=True)
def _an_archive_is_no_small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SMALL_BYTES", 1000)


class Pair:
    """Two machines with a Docker each, of which the head has the image."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ways = TwoCaches(root)
        self.monkeypatch = monkeypatch
        self.head, self.worker = Images(root / "docker-a"), Images(root / "docker-b")
        self.head.put(IMAGE, "one")
        self.origin = self.ways.there / ".cache/spark-pair/images"
        self.folder = self.ways.here / ".cache/spark-pair/images"

    @property
    def identity(self) -> str:
        self.head.use(self.monkeypatch)
        found = inspect(IMAGE)
        assert found is not None
        return found.identity

    def export_order(self, **changes: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "image_export",
            "home": str(self.ways.there),
            "floor_bytes": 0,
            "image": IMAGE,
            "identity": self.identity,
            "folder": str(self.origin),
            **changes,
        }

    def export(self, reporter: Reporter | None = None, **changes: Any) -> Told:
        order = ExportOrder.from_dict(self.export_order(**changes))
        return export(order, reporter or Reporter())

    def fetch_order(self, archive: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "image_fetch",
            "home": str(self.ways.here),
            "floor_bytes": 0,
            "image": IMAGE,
            "identity": self.identity,
            "folder": str(self.folder),
            "from": str(self.origin),
            "archive": dict(archive),
            **self.ways.way(),
            "limit_bytes_per_second": None,
            **changes,
        }

    def fetch(
        self,
        archive: Mapping[str, Any],
        reporter: Reporter | None = None,
        patience: Patience = HASTY,
        **changes: Any,
    ) -> Told:
        order = json.loads(json.dumps(self.fetch_order(archive, **changes)))
        self.worker.use(self.monkeypatch)
        return fetch(
            FetchOrder.from_dict(order),
            reporter or Reporter(),
            command=self.ways.command,
            patience=patience,
        )

    def loads(self) -> int:
        return sum(words[0] == "load" for words in self.worker.calls)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


class TestExport:
    def test_an_archive_that_the_other_machine_can_prove(self, pair: Pair) -> None:
        words, data = pair.export()
        assert f"{IMAGE} is in an archive of" in words
        assert data["path"] == f"{pair.identity}.tar"
        path = pair.origin / data["path"]
        assert path.stat().st_size == data["size"] == ARCHIVE_BYTES
        assert {one.name for one in pair.origin.iterdir()} == {"archive.json", path.name}

    def test_one_that_is_there_is_not_written_again(self, pair: Pair) -> None:
        first = pair.export()
        again = pair.export()
        assert first == again
        assert sum(words[0] == "save" for words in pair.head.calls) == 1

    @pytest.mark.parametrize("harm", ["changed", "gone", "no note"])
    def test_one_that_was_touched_is(self, pair: Pair, harm: str) -> None:
        path = pair.origin / pair.export()[1]["path"]
        if harm == "changed":
            path.write_bytes(b"other")
        elif harm == "gone":
            path.unlink()
        else:
            (pair.origin / "archive.json").write_text("{")
        _, data = pair.export()
        assert path.stat().st_size == data["size"] == ARCHIVE_BYTES

    def test_that_of_another_image_is_replaced(self, pair: Pair) -> None:
        old = pair.export()[1]["path"]
        pair.head.put(IMAGE, "two")
        new = pair.export()[1]["path"]
        assert new != old and not (pair.origin / old).exists()

    def test_an_image_that_was_changed_meanwhile(self, pair: Pair) -> None:
        with pytest.raises(JobFailedError, match="not the image any more"):
            pair.export(identity="0" * 64)

    def test_a_failure_leaves_nothing(self, pair: Pair) -> None:
        order = ExportOrder.from_dict(pair.export_order())
        pair.head.fault("save")
        with pytest.raises(JobFailedError, match="no space left on device"):
            export(order, Reporter())
        assert not pair.origin.exists()

    def test_without_room_nothing_is_begun(self, pair: Pair) -> None:
        with pytest.raises(JobFailedError, match="make room"):
            pair.export(floor_bytes=1 << 60)
        assert not [words for words in pair.head.calls if words[0] == "save"]

    def test_a_stop(self, pair: Pair) -> None:
        reporter = Reporter()
        reporter.stop_asked.set()
        with pytest.raises(JobStoppedError):
            pair.export(reporter)
        assert not pair.origin.exists()


class TestFetch:
    def test_it_is_there_and_the_same(self, pair: Pair) -> None:
        archive = pair.export()[1]
        words, data = pair.fetch(archive)
        assert words.startswith(f"{IMAGE} is there and the same as on spark-1")
        assert data == {"identity": pair.identity, "payload_bytes": ARCHIVE_BYTES}
        assert pair.worker.all == pair.head.all
        assert not pair.folder.exists()

    def test_one_that_is_there_already_costs_nothing(self, pair: Pair) -> None:
        archive = pair.export()[1]
        pair.worker.put(IMAGE, "one")
        pair.folder.mkdir(parents=True)
        words, _ = pair.fetch(archive)
        assert words == f"{IMAGE} is there already"
        assert pair.ways.offers == 0 and not pair.folder.exists()

    def test_one_of_other_content_is_replaced_and_stays_findable(self, pair: Pair) -> None:
        archive = pair.export()[1]
        pair.worker.put(IMAGE, "old")
        pair.fetch(archive)
        (kept,) = [name for name in pair.worker.all if name != IMAGE]
        assert kept.startswith(f"{IMAGE}-was-")
        assert pair.worker.all[kept]["layers"] == ["base", "old"]
        assert pair.worker.all[IMAGE] == pair.head.all[IMAGE]

    def test_one_that_was_cut_off_goes_on(self, pair: Pair) -> None:
        archive = pair.export()[1]
        pair.folder.mkdir(parents=True)
        whole = (pair.origin / archive["path"]).read_bytes()
        with Part(pair.folder, FetchOrder.from_dict(pair.fetch_order(archive)).archive) as (part):
            part.write(whole[:30_000])
        # What a kill leaves: the bytes, and the note that they are of this boot.
        part_path = pair.folder / f"{archive['sha256']}.part"
        state = {"schema": 1, "path": archive["path"], "size": archive["size"], "marks": []}
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        (pair.folder / f"{archive['sha256']}.json").write_text(json.dumps({**state, "boot": boot}))
        assert part_path.stat().st_size == 30_000
        _, data = pair.fetch(archive)
        assert data["payload_bytes"] == 10_000
        assert pair.worker.all == pair.head.all

    def test_an_archive_that_is_there_whole_is_only_loaded(self, pair: Pair) -> None:
        archive = pair.export()[1]
        pair.worker.fault("load")
        with pytest.raises(JobFailedError, match="invalid tar header"):
            pair.fetch(archive)
        pair.worker.fault("")
        _, data = pair.fetch(archive)
        assert data["payload_bytes"] == 0
        assert pair.worker.all == pair.head.all

    def test_what_is_left_of_another_image_is_removed(self, pair: Pair) -> None:
        archive = pair.export()[1]
        pair.folder.mkdir(parents=True)
        for name in (f"{'9' * 64}.part", f"{'9' * 64}.json", f"{'9' * 64}.tar"):
            (pair.folder / name).write_text("x")
        pair.worker.fault("load")
        with pytest.raises(JobFailedError):
            pair.fetch(archive)
        assert [path.name for path in pair.folder.iterdir()] == [archive["path"]]

    def test_a_load_that_brings_nothing_is_a_failure(self, pair: Pair) -> None:
        archive = pair.export()[1]
        pair.worker.fault("load nothing")
        with pytest.raises(JobFailedError, match="Docker made no image of that name of it"):
            pair.fetch(archive)

    def test_without_room_for_both_nothing_is_begun(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        archive = pair.export()[1]
        monkeypatch.setattr(ship_job, "free_bytes", lambda _: 2 * ARCHIVE_BYTES - 1)
        with pytest.raises(JobFailedError, match="make room"):
            pair.fetch(archive)
        assert pair.ways.offers == 0
        monkeypatch.setattr(ship_job, "free_bytes", lambda _: 2 * ARCHIVE_BYTES)
        pair.fetch(archive)

    def test_an_archive_that_was_changed_is_never_loaded(self, pair: Pair) -> None:
        archive = pair.export()[1]
        (pair.origin / archive["path"]).write_bytes(b"x" * ARCHIVE_BYTES)
        with pytest.raises(JobFailedError, match="not the expected one"):
            pair.fetch(archive)
        assert not pair.loads() and not pair.worker.all

    def test_a_stop_keeps_what_came(self, pair: Pair) -> None:
        archive = pair.export()[1]
        reporter = Reporter()
        threading.Timer(0.0, reporter.stop_asked.set).start()
        reporter.stop_asked.wait()
        with pytest.raises(JobStoppedError):
            pair.fetch(archive, reporter)
        assert not pair.loads()


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": "abc"},
        {"folder": "images"},
        {"from": ""},
        {"archive": {"path": "../x.tar", "size": 1, "sha256": "0" * 64}},
        {"archive": {"path": f"{'0' * 64}.tar", "size": 0, "sha256": "0" * 64}},
        {"archive": {}},
        {"rails": []},
        {"transport": "carrier"},
        {"streams": 0},
        {"limit_bytes_per_second": "1"},
        {"more": 1},
    ],
    ids=str,
)
def test_an_order_that_is_none_is_refused(pair: Pair, changes: dict[str, Any]) -> None:
    archive = {"path": f"{'0' * 64}.tar", "size": 1, "sha256": "0" * 64}
    FetchOrder.from_dict(pair.fetch_order(archive))
    with pytest.raises(DescriptionError):
        FetchOrder.from_dict({**pair.fetch_order(archive), **changes})


@pytest.mark.parametrize("changes", [{"identity": ""}, {"image": 1}, {"kind": "image_build"}])
def test_an_export_that_is_none_is_refused(pair: Pair, changes: dict[str, Any]) -> None:
    with pytest.raises(DescriptionError, match="an export's order"):
        ExportOrder.from_dict({**pair.export_order(), **changes})
