"""The start as the recipe's dry run plans it: against the declaration, and against what runs.

Before anything is stopped the plan is compared with what was declared; after the start the running
ranks are compared with the plan. Both on the word of whoever knows: the recipe, then Docker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .. import engine_planned
from ..description import ROLES, Role, Server
from ..engine_dry_run import RANKS, DryRun, DryRunError, Rank, digest, parse
from ..engine_planned import Declared, Expected, Judgement
from ..filesystems import over_a_network
from ..system import Result
from .bench import Bench
from .world import StepError

_RAILS = 2
_MOST_LINES = 60
_LONGEST_LINE = 4000
_WHOLE = "'launch DRY_RUN=1 start.sh' of its generation prints all"
_VARIABLE = "tensorfold_service_accept_dry_run"


def _shortened(text: str) -> Iterator[str]:
    """The lines of a text that are shown, and how much was left out."""
    lines = text.splitlines()
    for line in lines[:_MOST_LINES]:
        cut = len(line) - _LONGEST_LINE
        yield line[:_LONGEST_LINE] + (f"… {cut} more characters ({_WHOLE})" if cut > 0 else "")
    if len(lines) > _MOST_LINES:
        yield f"… {len(lines) - _MOST_LINES} more lines ({_WHOLE})"


class Planned:
    """What the switch knows of a start that was planned. Rank 0 is the head's, rank 1 the worker's.

    A plan is kept in the job, so that a switch that was cut off still has it.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def problems(self, server: Server, declared: Declared, done: Result) -> Iterator[str]:
        """Reasons to refuse, from the server's dry run, which ended well."""
        self.bench.job.plan = None
        output = done.out
        expected = self._expected(server, declared)
        try:
            plan = parse(output, self._homes())
            found = engine_planned.judge(plan, expected)
            self._look_at_folders(plan, found)
        except DryRunError as error:
            plan, found = None, Judgement(unknown=[str(error)])
        for words in found.silent:
            self.bench.say(f"dry run of {server.name}: {self._shown(words, declared)}")
        if found.different:
            yield self._differs(server, found, declared)
            return
        if found.unknown and server.accept_dry_run != digest(output):
            yield self._unknown(server, found, declared, done)
            return
        if found.unknown:
            self.bench.note(
                f"the dry run of {server.name} was accepted without being understood "
                f"({self._reasons(found, declared)})"
            )
        if plan is not None:
            self.bench.job.plan = {
                str(number): engine_planned.without_secrets(rank, declared).as_dict()
                for number, rank in plan.ranks.items()
            }

    def _expected(self, server: Server, declared: Declared) -> Expected:
        hosts = self.bench.description.hosts
        rails = hosts["head"].addresses[1:]
        wanted = declared.settings.get("NCCL_RAILS", "")
        return Expected(
            declared=declared,
            containers={ROLES.index(rank.host): rank.container for rank in server.ranks},
            rails=int(wanted) if wanted.isdecimal() else len(rails) or _RAILS,
            masters=rails,
            interfaces={ROLES.index(role): hosts[role].rails for role in ROLES},
        )

    def _homes(self) -> dict[int, str]:
        return {ROLES.index(role): self.bench.description.hosts[role].home for role in ROLES}

    def _look_at_folders(self, plan: DryRun, found: Judgement) -> None:
        """The weights lie on a disk of their machine: over NFS the server is slow, not broken."""
        for number, rank in plan.ranks.items():
            role = ROLES[number]
            places = {}
            for name, place, mount in engine_planned.weight_folders(rank):
                if mount.volume:
                    found.different.append(
                        f"rank {number}: {name} lies on Docker's volume {mount.source}, and must "
                        f"lie in a folder of {self.bench.name(role)}'s own disk"
                    )
                else:
                    places[place] = name
            kinds = self.bench.world.nodes[role].filesystems(list(places)) if places else {}
            for place, name in places.items():
                kind = kinds.get(place)
                where = f"rank {number}: {place} on {self.bench.name(role)} ({name})"
                if kind is None:
                    found.unknown.append(f"{where} lies on an unknown file system")
                elif over_a_network(kind):
                    found.different.append(
                        f"{where} lies on {kind}, and must lie on a disk of that machine"
                    )

    def _differs(self, server: Server, found: Judgement, declared: Declared) -> str:
        lines = [self._shown(words, declared) for words in (*found.different, *found.unknown)]
        for line in lines:
            self.bench.say(f"dry run of {server.name}: {line}")
        return (
            f"the dry run of {server.name} does not start what is declared ({'; '.join(lines)}): "
            "mend the variables, or the recipe's commit and patches, then run --tags service"
        )

    def _unknown(self, server: Server, found: Judgement, declared: Declared, done: Result) -> str:
        for said, text in (("said", done.out), ("complained", done.err)):
            for line in _shortened(self._shown(text, declared)):
                self.bench.say(f"dry run of {server.name} {said}: {line}")
        return (
            f"the dry run of {server.name} is not understood ({self._reasons(found, declared)}), "
            "so nobody knows whether it would start what is declared. Its output is shown above; "
            f"if it is right, set {_VARIABLE}: {digest(done.out)} and run --tags service"
        )

    def _reasons(self, found: Judgement, declared: Declared) -> str:
        return "; ".join(self._shown(words, declared) for words in found.unknown)

    @staticmethod
    def _shown(text: str, declared: Declared) -> str:
        return engine_planned.masked(text, declared)

    # -- after the start --

    def prove(self, server: Server) -> None:
        """Compare the ranks that run with the plan. StepError with every difference."""
        if not server.ranks or server.generation is None:
            return
        declared = self.bench.world.declared(server.generation)
        if declared is None:
            return
        wrong: list[str] = []
        ranks: dict[int, Rank] = {}
        of_images: dict[int, list[str]] = {}
        for number in RANKS:
            told = self._told(server, ROLES[number])
            if told is None:
                continue
            try:
                rank = engine_planned.seen(told["inspected"])
            except (LookupError, TypeError, AttributeError):
                wrong.append(f"rank {number}: Docker does not say how its container was made")
                continue
            if told["inspected"]["Image"] != told["image_id"]:
                wrong.append(
                    f"rank {number}: its image is another one than the name {rank.image} means now"
                )
            ranks[number], of_images[number] = rank, told["image_env"]
            wrong += self._as_said(number, server, told["ready"])
        wrong += self._against_plan(server, ranks, of_images, declared)
        if wrong:
            lines = [self._shown(words, declared) for words in wrong]
            raise StepError(f"{server.name} runs otherwise than planned: {'; '.join(lines)}")
        self.bench.say(f"{server.name}: both ranks run as planned")

    def _told(self, server: Server, role: Role) -> Mapping[str, Any] | None:
        return self.bench.world.nodes[role].rank(server) if server.ranks_on(role) else None

    def _against_plan(
        self,
        server: Server,
        ranks: Mapping[int, Rank],
        of_images: Mapping[int, list[str]],
        declared: Declared,
    ) -> list[str]:
        plan = self.bench.job.plan
        if plan is not None:
            return [
                words
                for number, rank in ranks.items()
                if str(number) in plan
                for words in engine_planned.running(
                    number,
                    Rank.from_dict(plan[str(number)]),
                    engine_planned.without_secrets(rank, declared),
                    of_images[number],
                )
            ]
        # The plan was accepted without being understood: what the ranks say must still be true.
        given = {
            number: engine_planned.given(rank, of_images[number]) for number, rank in ranks.items()
        }
        found = engine_planned.judge(DryRun(given, None), self._expected(server, declared))
        for words in found.unknown:
            self.bench.say(f"{server.name} runs, and {self._shown(words, declared)}")
        return found.different

    @staticmethod
    def _as_said(number: int, server: Server, ready: Mapping[str, Any]) -> Iterator[str]:
        """What a rank says of itself; the context of rank 0 has a check of its own."""
        said, drafts = ready.get("context"), ready.get("drafts")
        wanted = server.context.expect if server.context else None
        if number > 0 and None not in (said, wanted) and said != wanted:
            yield f"rank {number} has a pool of {said} tokens, declared {wanted}"
        if server.expect_drafts and drafts is not True and (number == 0 or drafts is False):
            state = "off" if drafts is False else "not mentioned in its ready line"
            yield f"rank {number}: drafts are {state} (tensorfold_service_expect_drafts)"
