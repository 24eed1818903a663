"""Every check that can be made while the old server still serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..description import NONE, ROLES, Command, Generation, Role, Server
from ..engine_planned import masked
from ..hostview import View
from ..verdict import State
from .bench import Bench
from .planned import Planned


def _remedy(unit: str, load: str) -> str:
    """What is to be done about a unit that systemd has not loaded."""
    if load == "masked":
        return f"run 'sudo systemctl unmask {unit}' there if it is to run again"
    return f"'systemctl status {unit}' there says why, and --tags service writes one of ours"


class Checks:
    """Finds reasons to refuse, before anything is touched."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def problems(self) -> Iterable[str]:
        views = self.bench.views()
        releases = {role: self.bench.world.nodes[role].hello()["release"] for role in ROLES}
        if len(set(releases.values())) > 1:
            # One of another release may not even know what it would be asked next.
            yield (
                f"the tool's releases differ ({self.bench.name('head')}: {releases['head']}, "
                f"{self.bench.name('worker')}: {releases['worker']}): run --tags tools,service"
            )
            return
        if self.bench.job.target == NONE:
            return
        target = self.bench.description.server(self.bench.job.target)
        yield from self._unit_problems(target, views)
        if self.bench.description.fallback not in (NONE, target.name):
            yield from self._unit_problems(
                self.bench.description.server(self.bench.description.fallback), views
            )
        yield from self._target_problems(target, views)
        if self.bench.job.restart:
            done = self.bench.world.restarts(target.name, self.bench.policy.restart_window)
            if done >= self.bench.policy.restart_limit:
                yield (
                    f"{target.name} is {self.bench.job.verdicts[target.name]}, and was already "
                    f"restarted {done} times within {self.bench.policy.restart_window / 60:g} "
                    "minutes: look at its log before trying again"
                )

    def _unit_problems(self, server: Server, views: Mapping[Role, View | None]) -> Iterable[str]:
        for unit in server.units:
            units = (views.get(unit.host) or {}).get("units")
            load = (units or {}).get(unit.unit, {}).get("load", "unknown")
            if load != "loaded":
                yield (
                    f"{unit.unit} on {self.bench.name(unit.host)} is {load}, so that "
                    f"{server.name} could not be started: {_remedy(unit.unit, load)}"
                )

    def _target_problems(self, target: Server, views: Mapping[Role, View | None]) -> Iterable[str]:
        if self.bench.job.verdicts[target.name].state is State.DOWN:
            for port in target.ports:
                listening = ((views.get(port.host) or {}).get("ports") or {}).get(str(port.port))
                if listening is not False:
                    yield (
                        f"port {port.port} on {self.bench.name(port.host)} is in use by "
                        f"something that is not {target.name}: find it with 'ss -ltnp'"
                    )
        if not self._brings_back(target):
            yield from self._image_problems(target)
        for role in ROLES:
            missing = self.bench.world.nodes[role].missing_images(target)
            if missing:
                yield (
                    f"image {missing[0]} is missing on {self.bench.name(role)}: bring it there "
                    "first with --tags image, since a start must not do it"
                )
            if not self._brings_back(target):
                for words in self.bench.world.nodes[role].weight_problems(target):
                    yield f"{self.bench.name(role)}: {words}"
            seen = (views.get(role) or {}).get("memory") or {}
            gate = target.memory_gate_gib
            if gate is not None and float(seen.get("total_gib", gate)) < gate:
                yield (
                    f"{self.bench.name(role)} has {seen['total_gib']} GiB in all, {target.name} "
                    f"needs {gate:g} available"
                )
        if wrong := self.bench.world.key_problem(target):
            yield wrong
        if target.generation and (wrong := self._generation_problem(target, target.generation)):
            yield wrong
        elif target.commands.dry_run:
            yield from self._dry_run_problems(target, target.commands.dry_run)

    def _generation_problem(self, target: Server, made: Generation) -> str | None:
        """A file that somebody left there must not keep a server down that ran beside it."""
        wrong = self.bench.world.generation_problem(made)
        if wrong and self._brings_back(target) and self.bench.world.only_strays(made):
            self.bench.note(wrong)
            return None
        return wrong

    def _image_problems(self, target: Server) -> Iterable[str]:
        """Two ranks of different images would not speak the same, or not to the end."""
        nodes, names = self.bench.world.nodes, self.bench.name
        here, there = (nodes[role].image_contents(target) for role in ROLES)
        for image in target.images:
            if image in here and image in there and here[image] != there[image]:
                yield (
                    f"image {image} is not the same on both machines ({names('head')}: "
                    f"{here[image][:12]}, {names('worker')}: {there[image][:12]}): send it with "
                    "--tags image"
                )
        if target.generation and (wrong := self.bench.world.kit_problem(target.generation)):
            yield wrong

    def _brings_back(self, target: Server) -> bool:
        """Whether what ran before is to run again; doubts about its weights do not hinder that."""
        made = target.generation
        same = made is None or self.bench.world.current(target) == made.hash
        return self.bench.job.hold or (self.bench.job.restart and same)

    def _dry_run_problems(self, target: Server, command: Command) -> Iterable[str]:
        done = self.bench.world.run_command(command, target.generation)
        made = target.generation
        declared = self.bench.world.declared(made) if made else None
        if not done.ok:
            yield (
                f"the dry run of {target.name} failed on {self.bench.name(command.host)} "
                f"({masked(done.last_words(), declared)}), so that a start would fail too: "
                "correct the variable that it names, or declare the patch that it needs in "
                "engine_image_patches, then run --tags service"
            )
            return
        if declared is not None:
            yield from Planned(self.bench).problems(target, declared, done)
            return
        for rank in target.ranks:
            if f"--name {rank.container} " not in done.out:
                yield (
                    f"the dry run of {target.name} does not start a container named "
                    f"{rank.container}: put the name in its output into "
                    f"model_server_extra.{target.name}.ranks"
                )
                return
