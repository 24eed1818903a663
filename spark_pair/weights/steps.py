"""The steps that are left to do, in a given order, from what both machines hold. Pure.

Every kind of step looks at the state so far and either has nothing to do or gives one step and
the state after it. So a plan that was interrupted between two steps is planned again as its rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from . import budget
from .budget import Disks, Effects
from .goal import Goal, Options, Order
from .holdings import RANKS, Pair, RankFile, Wanted, holder
from .manifest import File, HostRole

Kind = Literal["download", "transfer", "graft", "shard", "prune", "image"]

FETCHED = ("checkpoint", "overlay")
"""Sources with a part of their own in a plan; all others are only fetched."""


@dataclass(frozen=True)
class Step:
    """One piece of work. `host` is the machine where its bytes end up or go away."""

    id: str
    kind: Kind
    host: HostRole
    bytes: int
    """To fetch, send, write or delete; what is there already is not among them."""
    words: str
    needs: tuple[str, ...] = ()
    """Steps of the same plan that must be done before, for the data or for the room."""
    effects: Effects = ()
    credited: int = 0
    """Bytes of the same files that are there already and only need proving."""
    source: str = ""
    """Of a download or transfer of files of the Hub: the name of their source."""
    files: tuple[str, ...] = ()
    """The same files, by their paths in the repository."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; effects and the list of files stay inside."""
        return {
            "id": self.id,
            "kind": self.kind,
            "host": self.host,
            "bytes": self.bytes,
            "credited": self.credited,
            "words": self.words,
            "needs": list(self.needs),
        }


Done = tuple[Step, Pair]
"""A step and the state after it."""

Intent = Callable[[Pair], Done | None]


def lay_out(order: Order, goal: Goal, pair: Pair, options: Options, disks: Disks) -> list[Done]:
    """The steps left to do, each with what the machines hold after it."""
    left: list[Done] = []
    for intent in _Work(goal, options, disks, order).intents():
        if done := intent(pair):
            pair = done[1]
            left.append(done)
    ids = {step.id for step, _ in left}
    return [
        (dataclasses.replace(step, needs=tuple(one for one in step.needs if one in ids)), after)
        for step, after in left
    ]


def begun(goal: Goal, pair: Pair) -> bool:
    """Whether shards were grafted or cut although not everything else is where it is needed.

    Then the order that works on the checkpoint first is under way, and stays.
    """
    cut = any(goal.cut(pair[host], rank) for host in pair for rank in RANKS)
    head, checkpoint = pair["head"], goal.checkpoint
    grafted = (
        checkpoint is not None
        and head.graft is not None
        and head.graft == goal.graft
        and head.has(checkpoint.name, checkpoint.files)
    )
    lacking = (
        not pair[host].has(one.name, one.files) for one in goal.others for host in one.source.hosts
    )
    return (cut or grafted) and any(lacking)


def credited(goal: Goal, pair: Pair, options: Options, disks: Disks) -> dict[budget.Spot, int]:
    """Bytes of the plan's files that are there already, by file system."""
    sums = dict.fromkeys(disks.spots, 0)
    for host, held in pair.items():
        cache = sum(held.credit(one.name, one.files) for one in goal.wanted)
        wanted = (goal.rank_file(held, rank) for rank in RANKS)
        ranks = sum(
            one.size if one else held.begun(rank, options.rank_bytes)
            for rank, one in zip(RANKS, wanted, strict=True)
        )
        sums[disks.spot(host, "cache")] += cache - held.moved
        sums[disks.spot(host, "work")] += held.work + held.moved
        sums[disks.spot(host, "ranks")] += ranks
        sums[disks.spot(host, "images")] += options.image_bytes if held.image else 0
    return sums


class _Work:
    """The kinds of step, for one goal, set of options and layout of disks."""

    def __init__(self, goal: Goal, options: Options, disks: Disks, order: Order) -> None:
        self.goal, self.options, self.disks, self.order = goal, options, disks, order

    def intents(self) -> Iterator[Intent]:
        """Everything that may have to be done, in order."""
        fetch_others = [part for one in self.goal.others for part in self._brought(one)]
        yield from (self._image_head, self._image_worker)
        if self.goal.checkpoint is None:
            yield from fetch_others
            return
        yield self._undo
        yield from self._brought(self.goal.checkpoint)
        if self.goal.overlay:
            yield from self._brought(self.goal.overlay)
        if self.order == "download_first":
            yield from fetch_others
        yield from (self._graft, self._shard(1), self._send, self._shard(0), self._prune)
        if self.order == "minimal":
            yield from fetch_others

    # ---- what is needed in a state

    def _cutting(self, pair: Pair) -> bool:
        """Whether a rank file is still to be cut, so that all shards are needed."""
        head = pair["head"]
        has_one = any(self.goal.cut(pair[host], 1) for host in pair)
        return not (has_one and self.goal.cut(head, 0))

    def _must_graft(self, pair: Pair) -> bool:
        """Whether rank files are cut with the overlay, or the shards were left half-way to it."""
        head, overlay = pair["head"], self.goal.graft
        if overlay is None:
            return False
        return overlay == head.unfinished or (self._cutting(pair) and overlay != head.graft)

    def _files(self, wanted: Wanted, pair: Pair) -> tuple[File, ...]:
        """The files of a source that some step still needs."""
        whole = self._cutting(pair) or self._must_graft(pair)
        if wanted is self.goal.checkpoint and not whole:
            return self.goal.kept
        if wanted is self.goal.overlay and not self._must_graft(pair):
            return ()
        return wanted.files

    # ---- fetching

    def _brought(self, wanted: Wanted) -> list[Intent]:
        """Download once, then send to the other machine if that one needs it too."""
        sends = [self._sender(wanted, host) for host in wanted.source.hosts]
        return [lambda pair: self._download(wanted, pair), *sends]

    def _sender(self, wanted: Wanted, host: HostRole) -> Intent:
        return lambda pair: self._transfer(wanted, host, pair)

    def _download(self, wanted: Wanted, pair: Pair) -> Done | None:
        files = self._files(wanted, pair)
        if holder(wanted.name, files, pair) is not None:
            return None
        host = self._downloads(wanted, files, pair)
        what = f"{wanted.source.repo} at {wanted.commit[:8]}"
        return self._fetched("download", wanted, host, pair, files=files, origin=f"from {what}")

    @staticmethod
    def _downloads(wanted: Wanted, files: tuple[File, ...], pair: Pair) -> HostRole:
        """The machine that has most of it, from which it is sent over the rails; else the first."""
        hosts = wanted.source.hosts
        half = sum(file.size for file in files) / 2
        most = (host for host in hosts if pair[host].credit(wanted.name, files) > half)
        return next(most, hosts[0])

    def _transfer(self, wanted: Wanted, host: HostRole, pair: Pair) -> Done | None:
        files = self._files(wanted, pair)
        origin = holder(wanted.name, files, pair)
        if origin is None or origin == host or pair[host].has(wanted.name, files):
            return None
        words = f"from the {origin}"
        return self._fetched("transfer", wanted, host, pair, files=files, origin=words)

    def _fetched(
        self,
        kind: Literal["download", "transfer"],
        wanted: Wanted,
        host: HostRole,
        pair: Pair,
        *,
        files: tuple[File, ...],
        origin: str,
    ) -> Done:
        held = pair[host]
        missing = [file for file in files if not held.has(wanted.name, (file,))]
        there = held.credit(wanted.name, missing)
        left = sum(file.size for file in missing) - there
        words = f"{_count(missing)} of {wanted.name} {origin}"
        if there:
            words += f"; {budget.words(there)} there already, to be verified"
        step = Step(
            f"{kind}-{wanted.name}-{host}",
            kind,
            host,
            left,
            words,
            self._fetch_needs(kind, wanted, host),
            self.disks.effects(grows=[(host, "cache", left)]),
            there,
            wanted.name,
            tuple(file.path for file in missing),
        )
        after = held.proven(wanted.name, missing)
        if wanted is self.goal.checkpoint:
            # Shards with and without the overlay lie side by side now; the graft is gone on with,
            # if there is anything that it could go into.
            whole = after.has(wanted.name, wanted.files)
            after = dataclasses.replace(
                after, graft=None, unfinished=held.overlaid if whole else None
            )
        return step, {**pair, host: after}

    def _fetch_needs(self, kind: str, wanted: Wanted, host: HostRole) -> tuple[str, ...]:
        before = {f"download-{wanted.name}-{host}" for host in wanted.source.hosts}
        needs = sorted(before) if kind == "transfer" else []
        if self.order == "minimal" and host == "head" and wanted in self.goal.others:
            needs.append("prune-checkpoint-head")  # for the room
        if wanted is self.goal.checkpoint:
            needs.append("undo-graft-head")
        return tuple(needs)

    # ---- the image

    def _image_head(self, pair: Pair) -> Done | None:
        return self._image("head", "build the engine's image", pair)

    def _image_worker(self, pair: Pair) -> Done | None:
        return self._image("worker", "send the engine's image", pair)

    def _image(self, host: HostRole, words: str, pair: Pair) -> Done | None:
        size = self.options.image_bytes
        if pair[host].image or not size:
            return None
        needs = ("image-head",) if host == "worker" else ()
        # It travels as an archive, which lies on both machines until the image is there.
        both: tuple[HostRole, ...] = ("head", "worker") if host == "worker" else ()
        archives: list[tuple[HostRole, budget.Purpose, int]] = [
            (each, "scratch", size) for each in both
        ]
        effects = self.disks.effects(grows=[(host, "images", size), *archives], frees=archives)
        step = Step(f"image-{host}", "image", host, size, words, needs, effects)
        return step, {**pair, host: dataclasses.replace(pair[host], image=True)}

    # ---- the overlay

    def _undo(self, pair: Pair) -> Done | None:
        """Other weights than the wanted ones are not left lying about, cut from or not."""
        head = pair["head"]
        if head.overlaid in (None, self.goal.graft):
            return None
        back = 0 if self._one_file_system() else head.moved
        step = Step(
            "undo-graft-head",
            "graft",
            "head",
            head.work + back,
            f"take the overlay {str(head.overlaid)[:8]} out of the shards again",
            effects=self.disks.effects(
                grows=[("head", "cache", back)], frees=[("head", "work", head.work + back)]
            ),
        )
        after = dataclasses.replace(head, graft=None, unfinished=None, work=0, moved=0)
        return step, {**pair, "head": after}

    def _graft(self, pair: Pair) -> Done | None:
        overlay = self.goal.overlay
        if overlay is None or not self._must_graft(pair):
            return None
        head = pair["head"]
        shards = sum(file.size for file in self.goal.prunable)
        rewritten = min(self.options.rewritten_bytes, shards)
        if self.options.graft == "recipe":
            kept, moved = self._anew(rewritten), 0
            written, words = kept, "write the affected shards anew with"
        else:
            # What undoes it is as long as what is overwritten, which is what the overlay holds.
            kept, moved = sum(file.size for file in overlay.files), max(0, rewritten - head.moved)
            written, words = 2 * kept, "overwrite ranges of the shards with"
        step = Step(
            "graft-checkpoint-head",
            "graft",
            "head",
            written if self._one_file_system() else written + moved,
            f"{words} the overlay {overlay.commit[:8]}",
            (
                "undo-graft-head",
                *(f"{kind}-{name}-head" for kind in ("download", "transfer") for name in FETCHED),
            ),
            self.disks.effects(
                grows=[("head", "work", max(0, kept - head.work)), *self._move(moved)],
                frees=self._moved_away(moved),
            ),
        )
        after = dataclasses.replace(
            head,
            graft=overlay.commit,
            unfinished=None,
            work=max(head.work, kept),
            moved=head.moved + moved,
        )
        return step, {**pair, "head": after}

    def _anew(self, rewritten: int) -> int:
        """Unchanged shards are hard links, which cannot lead to another file system."""
        checkpoint = self.goal.checkpoint
        if self._one_file_system() or checkpoint is None:
            return rewritten
        return sum(file.size for file in checkpoint.files)

    def _one_file_system(self) -> bool:
        return self.disks.spot("head", "cache") == self.disks.spot("head", "work")

    def _move(self, moved: int) -> list[tuple[HostRole, budget.Purpose, int]]:
        """Within a file system moving is renaming and takes nothing."""
        return [] if self._one_file_system() else [("head", "work", moved)]

    def _moved_away(self, moved: int) -> list[tuple[HostRole, budget.Purpose, int]]:
        return [] if self._one_file_system() else [("head", "cache", moved)]

    # ---- rank files

    def _shard(self, rank: int) -> Intent:
        return lambda pair: self._cut(rank, pair)

    def _cut(self, rank: int, pair: Pair) -> Done | None:
        checkpoint = self.goal.checkpoint
        homes: tuple[HostRole, ...] = ("head", "worker") if rank else ("head",)
        if checkpoint is None or any(self.goal.cut(pair[host], rank) for host in homes):
            return None
        size = self.options.rank_bytes
        needs = [
            "image-head",
            "undo-graft-head",
            "download-checkpoint-head",
            "transfer-checkpoint-head",
            "graft-checkpoint-head",
        ]
        if rank == 0:
            needs.append("transfer-rank1-worker")  # for the room
        words = f"cut rank {rank} from the checkpoint"
        if any(one.rank == rank for one in pair[homes[-1]].ranks):
            words += "; the present file was cut from other weights and stays where it is"
        step = Step(
            f"shard-rank{rank}-head",
            "shard",
            "head",
            size,
            words,
            tuple(needs),
            self.disks.effects(grows=[("head", "ranks", size - pair["head"].begun(rank, size))]),
        )
        made = RankFile(rank, size, checkpoint.commit, self.goal.graft)
        head = pair["head"].settled(rank)
        after = dataclasses.replace(head, ranks=(*head.ranks, made))
        return step, {**pair, "head": after}

    def _send(self, pair: Pair) -> Done | None:
        head, worker = pair["head"], pair["worker"]
        mine, theirs = self.goal.rank_file(head, 1), self.goal.rank_file(worker, 1)
        if mine is None:
            return None
        # A wrong one over there stays until the new one is whole.
        there = min(mine.size, worker.staged.get(1, 0))
        size, words = mine.size - there, "send rank 1, then delete the head's copy"
        if theirs:
            size, words = 0, "delete the head's copy of rank 1"
        step = Step(
            "transfer-rank1-worker",
            "transfer",
            "worker",
            size,
            words,
            ("shard-rank1-head",),
            self.disks.effects(
                grows=[("worker", "ranks", size)], frees=[("head", "ranks", mine.size)]
            ),
        )
        kept = tuple(one for one in head.ranks if one != mine)
        more = () if theirs else (mine,)
        worker = worker if theirs else worker.settled(1)
        return step, {
            **pair,
            "head": dataclasses.replace(head.settled(1), ranks=kept),
            "worker": dataclasses.replace(worker, ranks=(*worker.ranks, *more)),
        }

    def _prune(self, pair: Pair) -> Done | None:
        """Every order comes here with both rank files in place; the steps before see to it."""
        checkpoint, head = self.goal.checkpoint, pair["head"]
        files = [file for file in self.goal.prunable if file.path not in head.elsewhere]
        if not self.options.prune or checkpoint is None:
            return None
        shards = head.credit(checkpoint.name, files)
        freed = shards + head.work
        if not freed:
            return None
        step = Step(
            "prune-checkpoint-head",
            "prune",
            "head",
            freed,
            f"delete {_count(files)} of the checkpoint that the rank files replace",
            (
                "undo-graft-head",
                "download-checkpoint-head",
                "transfer-checkpoint-head",
                "graft-checkpoint-head",
                "shard-rank0-head",
                "transfer-rank1-worker",
            ),
            self.disks.effects(
                frees=[
                    ("head", "cache", shards - head.moved),
                    ("head", "work", head.work + head.moved),
                ]
            ),
        )
        left = head.without(checkpoint.name, files)
        after = dataclasses.replace(left, graft=None, unfinished=None, work=0, moved=0)
        return step, {**pair, "head": after}


def _count(files: Iterable[File]) -> str:
    number = len(tuple(files))
    return f"{number} {'file' if number == 1 else 'files'}"
