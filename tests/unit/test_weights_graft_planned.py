"""What is planned of a checkpoint whose graft, or its undoing, ended anywhere in between.

Every other point is tried: the job itself is tried at each of them elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graft_host import OVERLAY_REPO, REPO, GraftHost, digest
from pair_hostvars import hostvars

from spark_pair.errors import SparkPairError
from spark_pair.weights import graft_disk, graft_job, planning
from spark_pair.weights.cache import Cache
from spark_pair.weights.graft_order import GraftOrder
from spark_pair.weights.look import look
from spark_pair.weights.manifest import HOST_ROLES, Manifest, Source
from spark_pair.weights.planning import Planned
from spark_pair.weights.provenance import Origin, Provenance
from spark_pair.weights.record import Proofs, take_over
from spark_pair.weights.variables import Settings, settings_of

CUTS = ["shard-rank1-head", "transfer-rank1-worker", "shard-rank0-head"]
_STEPS = ("make", "move", "remove", "link", "write_at", "remove_empty")


DEFAULTS = hostvars()
"""Read once: there are hundreds of plans here."""


def variables(**changes: Any) -> dict[str, dict[str, Any]]:
    engine = {"tensorfold_service_ablit": int(changes["ablit_graft_enabled"])}
    return {host: {**own, **changes, **engine} for host, own in DEFAULTS.items()}


class Killed(BaseException):
    """The process ends here."""


class Planning:
    """A head with a checkpoint and its overlay, and a worker that holds nothing."""

    def __init__(self, root: Path) -> None:
        self.host = GraftHost(root / "head")
        self.root = root

    def settings(self, *, overlay: bool) -> Settings:
        sources = {
            "checkpoint": {"repo": REPO, "revision": self.host.manifest.commit, "files": ["*"]},
            "engram": {"enabled": False},
            "overlay": {
                "repo": OVERLAY_REPO, "revision": self.host.sidecar.commit, "files": ["*"],
                "gated": False,
            },
        }  # fmt: skip
        both = variables(
            weights_hub_token="",
            weights_sources_extra=sources,
            weights_expected_bytes={"rank_file": 100, "image": 0, "rewritten": 10**9},
            weights_disk_floor_gib=0,
            ablit_graft_enabled=overlay,
            ablit_graft_tensors=6,
        )
        both["spark-a"]["spark_home"] = str(self.host.home)
        both["spark-b"]["spark_home"] = str(self.root / "worker")
        return settings_of("spark-a", both)

    def manifest(self, source: Source) -> Manifest:
        """Answers like the Hub."""
        return self.host.sidecar if source.name == "overlay" else self.host.manifest

    def probe(self, manifest: Manifest, path: str) -> None:
        raise SparkPairError("nothing here is gated")

    def seens(self, settings: Settings) -> dict[Any, Any]:
        records = {"head": self.host.provenance, "worker": Provenance(self.root / "worker.json")}
        return {
            role: look(
                {**settings.asked(role), "image": "", "images": []}, provenance=records[role]
            )
            for role in HOST_ROLES
        }

    def made(self, *, overlay: bool) -> Planned:
        settings = self.settings(overlay=overlay)
        return planning.make(settings, self.seens(settings), self)

    def steps(self, *, overlay: bool) -> list[str]:
        made = self.made(overlay=overlay).plan
        assert not made.problems
        return [step.id for step in made.steps]

    def carry_out(self, step: str, *, overlay: bool) -> None:
        """As the plan orders it, with root's last step; whatever ends it."""
        settings = self.settings(overlay=overlay)
        seens = self.seens(settings)
        order = planning.order(step, settings, planning.make(settings, seens, self), seens)
        host = self.host
        try:
            graft_job.run(
                GraftOrder.from_dict(order), host.reporter, Proofs(host.job), host.provenance,
                threads=1,
            )  # fmt: skip
        finally:
            assert not take_over(host.job, host.provenance, order).skipped


def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], bool]:
    """Let the process end before its step number `at`; whether it got that far."""
    count = 0

    def wrap(really: Callable[..., Any]) -> Callable[..., Any]:
        def step(*words: Any) -> Any:
            nonlocal count
            count += 1
            if count >= at:
                raise Killed
            return really(*words)

        return step

    for name in _STEPS:
        monkeypatch.setattr(graft_disk, name, wrap(getattr(graft_disk, name)))
    for name in ("place", "link"):
        monkeypatch.setattr(Cache, name, wrap(getattr(Cache, name)))
    return lambda: count >= at


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def killed(pair: Planning, monkeypatch: pytest.MonkeyPatch, step: str, at: int) -> bool:
    """Whether the step was killed at that point, and not done before."""
    with monkeypatch.context() as patched:
        died = dying(patched, at)
        with contextlib.suppress(Killed):
            pair.carry_out(step, overlay=step.startswith("graft"))
        return died()


GRAFT, UNDO = "graft-checkpoint-head", "undo-graft-head"
OVERLAY = "download-overlay-head"


def test_a_graft_and_its_undoing_are_planned_from_what_is_there(tmp_path: Path) -> None:
    pair = Planning(tmp_path)
    assert pair.steps(overlay=False) == CUTS
    assert pair.steps(overlay=True) == [OVERLAY, GRAFT, *CUTS]
    pair.carry_out(GRAFT, overlay=True)
    assert pair.steps(overlay=True) == CUTS
    assert pair.steps(overlay=False) == [UNDO, *CUTS]
    assert pair.host.provenance.load()["checkpoint"].origin is Origin.GRAFTED
    pair.carry_out(UNDO, overlay=False)
    assert pair.steps(overlay=False) == CUTS
    assert pair.host.provenance.load()["checkpoint"].origin is Origin.DOWNLOADED
    assert pair.steps(overlay=True) == [OVERLAY, GRAFT, *CUTS]


@pytest.mark.parametrize("then", [GRAFT, UNDO])
def test_a_killed_graft_needs_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    at, died = 0, True
    while died:
        at += 2
        pair = Planning(tmp_path / str(at))
        died = killed(pair, monkeypatch, GRAFT, at)
        overlay = then == GRAFT
        steps = pair.steps(overlay=overlay)
        if then in steps:
            assert steps == [*([OVERLAY] if overlay else []), then, *CUTS], at
            pair.carry_out(then, overlay=overlay)
        else:
            assert steps == CUTS, at
            assert died is not overlay or at < 10  # done, or nothing was touched yet
        assert pair.steps(overlay=overlay) == CUTS, at
    assert at > 20


@pytest.mark.parametrize("then", [GRAFT, UNDO])
def test_a_killed_undoing_needs_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    at, died = 0, True
    while died:
        at += 2
        pair = Planning(tmp_path / str(at))
        pair.carry_out(GRAFT, overlay=True)
        grafted = pair.host.grafted_content()
        died = killed(pair, monkeypatch, UNDO, at)
        overlay = then == GRAFT
        for _ in range(2):
            steps = pair.steps(overlay=overlay)
            if then not in steps:
                break
            assert steps == [*([OVERLAY] if overlay else []), then, *CUTS], at
            pair.carry_out(then, overlay=overlay)
        assert pair.steps(overlay=overlay) == CUTS, at
        if overlay:
            assert pair.host.grafted_content() == grafted
        else:
            paths = [file.path for file in pair.host.manifest.files if file.sha256]
            assert all(
                digest(pair.host.entry(path)) == pair.host.manifest.file(path).sha256
                for path in paths
            )
    assert at > 20
