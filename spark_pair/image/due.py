"""What is left to do for the engines' images, from what both machines have. Pure.

An image that is named after its inputs is built on the head when it is not there. Any image is sent
to the worker when that one's differs in content. Everything that makes a start impossible is a
problem here, long before a server is stopped for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine_settings import Engine
from ..weights.manifest import HostRole
from .identity import whole_name

Seens = Mapping[HostRole, Mapping[str, Any]]
"""What each machine told, as `look` returns it."""
Names = Mapping[HostRole, str]

_VARIABLE = "tensorfold_service_image"
"""What names an image of the operator's own."""

UNKNOWN = "unknown"
"""Identity of an image that is only about to be built."""


@dataclass(frozen=True)
class Wanted:
    """One image, for all engines that run it."""

    engine: Engine
    """One of them: what its image must hold is enough for all."""
    servers: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called on both machines."""
        return self.engine.image


@dataclass(frozen=True)
class Step:
    """One piece of work."""

    kind: str
    """build or ship."""
    host: HostRole
    image: str
    words: str
    identity: str = UNKNOWN
    """Of the image that is sent."""

    @property
    def id(self) -> str:
        """Names the step for people and for whoever decides whether it may start."""
        return f"{self.kind}-image-{self.host}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a playbook."""
        return {
            "id": self.id,
            "kind": "image",
            "what": self.kind,
            "host": self.host,
            "image": self.image,
            "words": self.words,
            "identity": self.identity,
        }


@dataclass(frozen=True)
class Plan:
    """Nothing may start while there are problems."""

    steps: tuple[Step, ...] = ()
    problems: tuple[str, ...] = ()
    prune: Mapping[HostRole, tuple[str, ...]] = field(default_factory=dict)
    """Names that are removed, by machine."""
    words: tuple[str, ...] = ()
    """What there is, a line each."""


def wanted(engines: Iterable[Engine]) -> tuple[Wanted, ...]:
    """Every image once."""
    found: dict[str, Wanted] = {}
    for engine in engines:
        known = found.get(engine.image)
        if known is None:
            found[engine.image] = Wanted(engine, (engine.name,))
            continue
        # One without a kit is content with an image that has one.
        needs_more = engine.kit is not None and known.engine.kit is None
        found[engine.image] = Wanted(
            engine if needs_more else known.engine, (*known.servers, engine.name)
        )
    return tuple(found.values())


def needed(images: Sequence[Wanted], servers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Images that are never removed, each with why; `servers` are those of the description.

    One that does not run and has no container is the way back all the same.
    """
    found = {image.name: f"{', '.join(image.servers)} is to run it" for image in images}
    for name, server in servers.items():
        for image in server.get("images", ()):
            found.setdefault(image, f"it is an image of {name}")
    return found


def plan(
    images: Sequence[Wanted],
    seens: Seens,
    names: Names,
    prune: Sequence[str],
    *,
    needed: Mapping[str, str],
    check: bool,
) -> Plan:
    """What a run has to do.

    A `check` of a machine without Docker goes on as if it were empty, and one before the first run
    without a list of the kit, which the run itself would bring.
    """
    problems = [
        f"{names[role]} cannot be asked about images: {seen['docker']}"
        for role, seen in seens.items()
        if seen["docker"] and not (check and not seen["installed"])
    ]
    if problems:
        return Plan(problems=tuple(problems))
    steps: list[Step] = []
    words: list[str] = []
    for image in images:
        found = _of_image(image, seens, names, bare=not seens["head"]["installed"], check=check)
        steps += found.steps
        problems += found.problems
        words += found.words
    gone, refused = _pruned(needed, seens, names, prune)
    return Plan(tuple(steps), (*problems, *refused), gone, tuple(words))


def _of_image(image: Wanted, seens: Seens, names: Names, *, bare: bool, check: bool) -> Plan:
    here, there = (seens[role]["images"].get(image.name) for role in ("head", "worker"))
    head, worker = names["head"], names["worker"]
    if here is None:
        if not image.engine.image_built and not bare:
            return Plan(
                problems=(
                    f"the image {image.name} is not on {head}, and one that {_VARIABLE} names "
                    "is never built: load it there with 'docker load', or leave "
                    f"{_VARIABLE} empty to have one built from the recipe",
                )
            )
        if wrong := seens["head"]["builds"].get(image.name):
            return Plan(problems=(f"the image {image.name} is not built: {wrong}",))
        build = Step("build", "head", image.name, f"build {image.name}")
        ship = Step("ship", "worker", image.name, f"send {image.name}")
        return Plan((build, ship) if image.engine.image_built else (ship,))
    unseen: tuple[str, ...] = ()
    if check and here["unlisted"]:
        unseen = (f"whether {image.name} holds the kit is seen when its checkout is made",)
    elif here["kit"]:
        return Plan(problems=(_without_kit(image, here["kit"], head),))
    if there is not None and there["identity"] == here["identity"]:
        same = f"{image.name} is the same on both machines ({here['identity'][:12]})"
        return Plan(words=(*unseen, same))
    if "@" in image.name:
        return Plan(
            problems=(
                f"the image {image.name} is not the same on {worker}, and one that is named by a "
                f"digest cannot be sent under that name: give it a tag in {_VARIABLE}",
            )
        )
    why = f"{worker} has none" if there is None else f"that of {worker} has other content"
    words = f"send {image.name} ({why})"
    ship = Step("ship", "worker", image.name, words, here["identity"])
    return Plan((ship,), words=unseen)


def _without_kit(image: Wanted, wrong: str, head: str) -> str:
    said = f"the image {image.name} on {head} {wrong}"
    if image.engine.image_built:
        return f"{said}: remove it with 'docker image rm {image.name}' and run again to build it"
    return (
        f"{said}: build it with the kit, or leave {_VARIABLE} empty to have that done from "
        "the recipe"
    )


def _pruned(
    needed: Mapping[str, str], seens: Seens, names: Names, prune: Sequence[str]
) -> tuple[dict[HostRole, tuple[str, ...]], list[str]]:
    """What is removed where, and why some of it must not be."""
    why = {whole_name(name): words for name, words in needed.items()}
    for seen in seens.values():
        for name, who in seen["named"].items():
            why.setdefault(whole_name(name), f"it is the image of {who}")
    problems, gone = [], {}
    for name in prune:
        meant = sorted(_meant(name, seens) & why.keys())
        if meant:
            problems.append(f"engine_image_prune names {name}, but {why[meant[0]]}")
    for role, seen in seens.items():
        there = [name for name in prune if seen["prune"].get(name, {}).get("there")]
        for name in there:
            if users := seen["prune"][name]["containers"]:
                problems.append(
                    f"engine_image_prune names {name}, but on {names[role]} it is in use by "
                    f"{', '.join(users)}"
                )
        gone[role] = tuple(there)
    return gone, [f"{words}: take it out of the list" for words in problems]


def _meant(name: str, seens: Seens) -> set[str]:
    """The names that are gone with one. What is named by its id alone loses all that it has."""
    found = {whole_name(name)}
    for seen in seens.values():
        tags = {whole_name(tag) for tag in seen["prune"].get(name, {}).get("tags", ())}
        if whole_name(name) not in tags:
            found |= tags
    return found
