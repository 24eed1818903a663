"""What a graft is asked for, what root believes of it, and how its state lies on the disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graft_host import CONFIG, OVERLAY_COMMIT, SHARDS, TOUCHED, GraftHost

from spark_pair.errors import DescriptionError
from spark_pair.weights import graft_state
from spark_pair.weights.graft_order import GraftOrder
from spark_pair.weights.graft_state import GraftState, Phase, Shard
from spark_pair.weights.provenance import Artefact, Held, Origin


@pytest.fixture
def host(tmp_path: Path) -> GraftHost:
    return GraftHost(tmp_path)


class TestOrder:
    def test_it_knows_the_places(self, host: GraftHost) -> None:
        order = GraftOrder.from_dict(host.order())
        assert (order.derived, order.folder) == (host.derived, host.folder)
        assert order.snapshot == host.cache.snapshot("own/checkpoint", order.manifest.commit)
        assert [file.path for file in order.shards] == list(SHARDS)

    def test_to_undo_it_the_overlays_commit_is_enough(self, host: GraftHost) -> None:
        order = GraftOrder.from_dict(host.order("undo_graft", overlay={"commit": OVERLAY_COMMIT}))
        assert order.derived == host.derived and order.sidecar is None

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"schema": 2}, "of another release; run --tags tools"),
            ({"kind": "shard"}, "'shard' for kind"),
            ({"method": "magic"}, "'magic' for method"),
            ({"former": "grafted"}, "'grafted' for former"),
            ({"home": "home"}, "'home' for home"),
            ({"tensors": True}, "True for tensors"),
            ({"floor_bytes": -1}, "-1 for floor_bytes"),
            ({"files": "all"}, "'all' for files"),
            ({"files": ["nothing"]}, "has no file nothing"),
            ({"files": [CONFIG]}, "names no shard"),
            ({"overlay": []}, "which overlay"),
            ({"overlay": {"commit": OVERLAY_COMMIT}}, "no single file with the overlay's tensors"),
            ({"overlay": {"commit": "main"}}, "not a commit"),
            ({"method": "recipe"}, "no image or no command"),
            ({"more": 1}, "unknown keys: more"),
        ],
    )
    def test_what_is_wrong_with_it_is_said(
        self, host: GraftHost, changes: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(DescriptionError, match=words):
            GraftOrder.from_dict({**host.order(), **changes})

    def test_a_key_that_lacks_is_named(self, host: GraftHost) -> None:
        data = host.order()
        del data["work"]
        with pytest.raises(DescriptionError, match="lacks work"):
            GraftOrder.from_dict(data)


class TestAcceptance:
    """Root's own copy of the order decides, not what the account writes."""

    def order(self, host: GraftHost, kind: str = "graft", **more: Any) -> GraftOrder:
        return GraftOrder.from_dict(host.order(kind, **more))

    def held(self, host: GraftHost, path: str, **more: Any) -> Held:
        file = host.manifest.file(path)
        sha1 = "" if file.sha256 else file.git_sha1
        return replace(Held(file.size, 1, 1, 1.0, "read", file.sha256 or "", sha1), **more)

    def test_all_files_count_together(self, host: GraftHost) -> None:
        order = self.order(host)
        assert order.whole == {file.path for file in host.manifest.files} and not order.gone

    def test_a_shard_with_the_overlay_may_have_any_hash_of_its_size(self, host: GraftHost) -> None:
        order = self.order(host)
        artefact = order.artefact(TOUCHED)
        other = "a" * 64
        assert order.accepts(artefact, TOUCHED[0], self.held(host, TOUCHED[0], sha256=other))
        assert not order.accepts(
            artefact, TOUCHED[0], self.held(host, TOUCHED[0], sha256=other, size=1)
        )

    @pytest.mark.parametrize("path", [SHARDS[2], CONFIG])
    def test_any_other_file_must_be_the_hubs(self, host: GraftHost, path: str) -> None:
        order = self.order(host)
        artefact = order.artefact(TOUCHED)
        assert order.accepts(artefact, path, self.held(host, path))
        wrong = {"sha256": "a" * 64} if path in SHARDS else {"git_sha1": "a" * 40}
        assert not order.accepts(artefact, path, self.held(host, path, **wrong))
        assert not order.accepts(artefact, path, self.held(host, path, failed_at=1.0))

    @pytest.mark.parametrize(
        "change",
        [
            {"origin": Origin.DOWNLOADED},
            {"folder": "/elsewhere"},
            {"name": "engram"},
            {"commit": "f" * 40},
            {"details": {}},
            {"details": {"overlay": "f" * 40, "grafted": list(TOUCHED), "former": "downloaded"}},
            {"details": {"overlay": OVERLAY_COMMIT, "grafted": [], "former": "downloaded"}},
            {"details": {"overlay": OVERLAY_COMMIT, "grafted": [CONFIG], "former": "downloaded"}},
            {"details": {"overlay": OVERLAY_COMMIT, "grafted": "all", "former": "downloaded"}},
            {"details": {"overlay": OVERLAY_COMMIT, "grafted": [1], "former": "downloaded"}},
        ],
        ids=str,
    )
    def test_it_must_be_about_this_graft(self, host: GraftHost, change: dict[str, Any]) -> None:
        order = self.order(host)
        artefact: Artefact = replace(order.artefact(TOUCHED), **change)
        assert not order.accepts(artefact, CONFIG, self.held(host, CONFIG))

    def test_a_way_back_takes_the_hubs_own_hashes_only(self, host: GraftHost) -> None:
        order = self.order(host, "undo_graft", former="adopted")
        artefact = order.artefact()
        assert (artefact.origin, artefact.details) == (Origin.ADOPTED, {})
        assert order.accepts(artefact, TOUCHED[0], self.held(host, TOUCHED[0]))
        assert not order.accepts(artefact, TOUCHED[0], self.held(host, TOUCHED[0], sha256="a" * 64))

    def test_a_script_may_write_a_shard_of_another_size(self, host: GraftHost) -> None:
        order = self.order(host, method="recipe", image="x", command=["y"])
        held = self.held(host, TOUCHED[0], size=1, sha256="a" * 64)
        assert order.accepts(order.artefact(TOUCHED), TOUCHED[0], held)


class TestState:
    def state(self) -> GraftState:
        shards = {SHARDS[0]: Shard(10, "a" * 64), "deep/er.safetensors": Shard(0, "b" * 64)}
        return GraftState("own/x", "1" * 40, "2" * 40, "in_place", Phase.UNDOING, shards)

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        graft_state.write(tmp_path, self.state())
        assert graft_state.read(tmp_path) == self.state()
        graft_state.forget(tmp_path)
        assert graft_state.read(tmp_path) is None

    @pytest.mark.parametrize("key", sorted(GraftState("", "", "", "", Phase.GRAFTED, {}).as_dict()))
    @pytest.mark.parametrize("value", [None, 7, "x", [], {"x": 1}, {"x": {"size": -1}}], ids=str)
    def test_anything_else_is_none_of_ours(self, key: str, value: Any) -> None:
        data = {**self.state().as_dict(), key: value}
        found = GraftState.from_dict(data)
        assert found is None or key in ("repo", "method") or (key, value) == ("shards", {})
        del data[key]
        assert GraftState.from_dict(data) is None
        assert GraftState.from_dict(value) is None

    @pytest.mark.parametrize("path", ["../x", "/x", "a//b", ""])
    def test_a_path_that_leaves_its_folder_is_none_of_ours(self, path: str) -> None:
        data = self.state().as_dict()
        data["shards"] = {path: {"size": 1, "sha256": "a" * 64}}
        assert GraftState.from_dict(json.loads(json.dumps(data))) is None

    def test_no_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        graft_state.write(tmp_path / "a", self.state())
        (tmp_path / "b" / graft_state.NAME).symlink_to(tmp_path / "a" / graft_state.NAME)
        assert graft_state.read(tmp_path / "b") is None

    def test_shards_are_counted_where_they_lie(self, tmp_path: Path) -> None:
        state = self.state()
        assert state.there(tmp_path) == {}
        staged = tmp_path / graft_state.STAGING / SHARDS[0]
        staged.parent.mkdir()
        staged.write_bytes(b"x" * 10)
        assert state.there(tmp_path) == {SHARDS[0]: 10}
        final = tmp_path / "checkpoint" / SHARDS[0]
        final.parent.mkdir()
        staged.rename(final)
        assert state.there(tmp_path) == {SHARDS[0]: 10}
        final.unlink()
        final.symlink_to("/etc/hostname")
        assert state.there(tmp_path) == {}
