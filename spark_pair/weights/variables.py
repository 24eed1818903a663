"""What the operator wants of the weights, read from the variables of a pair. Pure.

Errors are one sentence that names the variable, its value and the host; the token is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .. import pair_variables
from ..errors import DescriptionError
from ..jobs.shapes import check_name
from . import layout
from .budget import GIB, Purpose
from .goal import ORDERS, Options
from .manifest import SHORTEST_PREFIX, HostRole, ManifestError, Source, is_prefix

HostVariables = Mapping[str, Mapping[str, Any]]

TOKEN = "weights_hub_token"  # noqa: S105 - the name of a variable
STOCK = "none"
"""What weights_adopt_overlay says of rank files without an overlay."""

EXPECTED = ("rank_file", "image", "rewritten")
_ENGINE_OVERLAY = "tensorfold_service_ablit"
CAPS = ("megabytes_per_second", "memory_gib", "io_weight", "cpu_weight")
METHODS = ("in_place", "recipe")
TRANSPORTS = ("daemon", "ssh")
PORTS = (1024, 65535)
"""Those that an ordinary account may listen on."""
GRAFT_PLACES = ("src", "sidecar", "dst", "script", "recipe")
CUT_PLACES = ("model", "out", "rank")
"""What may stand in braces in the commands that are run in the engine's image."""

PAIR_WIDE = (
    "weights_sources",
    "weights_sources_extra",
    "weights_hub_endpoint",
    TOKEN,
    "weights_disk_order",
    "weights_disk_floor_gib",
    "weights_expected_bytes",
    "weights_allow_while_serving",
    "weights_adopt_checkpoint",
    "weights_adopt_overlay",
    "ablit_graft_enabled",
    "ablit_graft_method",
    "ablit_graft_tensors",
    "ablit_graft_image",
    "ablit_graft_command",
    "ablit_graft_dtypes_command",
    "ablit_graft_recipe",
    "ablit_graft_memory_gib",
    "rank_files_image",
    "rank_files_command",
    "rank_files_memory_gib",
    "rank_files_prune_sources",
    "engine_image_build_memory_gib",
    "engine_image_prune",
    "hf_download_workers",
    "hf_download_while_serving",
    "hf_transfer_transport",
    "hf_transfer_streams",
    "hf_transfer_ports",
    "hf_transfer_while_serving",
)
"""There is one plan for both machines, so both must want the same."""

_ENVIRONMENT = "hf_download_environment"
_PLACE = re.compile(r"\{(\w*)\}")
_IMAGE_NAME = re.compile(r"[a-z0-9][\w./:@-]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

_MOST = 1e18
"""Above any count of bytes."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""`-e name=true` arrives as text."""


@dataclass(frozen=True)
class Limits:
    """What a download or transfer may take beside a running server; None is no limit."""

    bytes_per_second: int | None
    memory_max: int | None
    """Bytes."""
    io_weight: int | None
    cpu_weight: int | None

    @property
    def caps(self) -> dict[str, int]:
        """Those that systemd enforces, as spark_pair.jobs takes them."""
        known = {
            "memory_max": self.memory_max,
            "io_weight": self.io_weight,
            "cpu_weight": self.cpu_weight,
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class Machine:
    """How one machine reaches the other."""

    user: str
    """The account that owns the weights there."""
    addresses: tuple[str, ...]
    """Management first, then the rails in the order of the inventory."""
    port: int
    """Of ssh."""

    @property
    def rails(self) -> tuple[str, ...]:
        """Addresses of the rails alone."""
        return self.addresses[1:]


@dataclass(frozen=True)
class Transfer:
    """How weights are sent between the machines."""

    transport: str
    """One of TRANSPORTS."""
    streams: int
    ports: tuple[int, int]
    """First and last of those that the sender may listen on."""
    limits: Limits


@dataclass(frozen=True)
class Graft:
    """How the overlay gets into the checkpoint."""

    tensors: int
    """How many it must have; 0 is not checked."""
    image: str
    """For the recipe's way."""
    command: tuple[str, ...]
    dtypes_command: tuple[str, ...]
    """Empty when there is no such step."""
    recipe: str
    """Folder of the recipe's checkout; empty when none is needed."""
    memory_bytes: int


@dataclass(frozen=True)
class Cut:
    """How rank files are cut."""

    image: str
    command: tuple[str, ...]
    memory_bytes: int


@dataclass(frozen=True)
class Settings:
    """Everything that the variables of a pair say about its weights."""

    names: Mapping[HostRole, str]
    homes: Mapping[HostRole, str]
    machines: Mapping[HostRole, Machine]
    sources: tuple[Source, ...]
    options: Options
    endpoint: str
    image: str
    """Name and tag of the image that the wanted engine runs; empty without an engine."""
    allow_while_serving: bool
    adopt_checkpoint: str
    """Commit or the beginning of one; empty when nothing is stated."""
    adopt_overlay: str
    """The same, or STOCK."""
    workers: int
    limits: Limits
    transfer: Transfer
    graft: Graft
    cut: Cut
    build_memory_bytes: int
    """What building an image takes of the head's memory."""
    prune_images: tuple[str, ...]
    """Names of images that are to be removed."""

    @property
    def images(self) -> tuple[str, ...]:
        """Names of the images that steps may need, each once."""
        named = (self.image, self.cut.image, self.graft.image)
        return tuple(dict.fromkeys(name for name in named if name))

    @property
    def wanted(self) -> tuple[Source, ...]:
        """Sources of which something is wanted at all."""
        return tuple(
            one
            for one in self.sources
            if (self.options.overlay if one.name == "overlay" else one.enabled)
        )

    def asked(self, role: HostRole) -> dict[str, Any]:
        """What one machine is asked about what it holds."""
        return {
            "home": self.homes[role],
            "places": places(self.homes[role]),
            "repos": [{"repo": one.repo, "revision": one.revision} for one in self.sources],
            "image": self.image,
            "images": list(self.images),
        }


def places(home: str) -> dict[Purpose, str]:
    """Where an account with this home keeps what the plan is about.

    Rank files lie where the recipe looks for them; shards are worked on beside them.
    """
    work = str(layout.work(Path(home)))
    return {
        "cache": f"{home}/.cache/huggingface/hub",
        "work": work,
        "ranks": work,
        "images": "/var/lib/docker",
        "scratch": f"{home}/.cache/spark-pair",
    }


def settings_of(host: str, variables: HostVariables) -> Settings:
    """What the pair of `host` wants. Raises DescriptionError."""
    pair = pair_variables.pair_of(host, variables)
    _agree(pair, variables)
    reader = _Reader(pair["head"], variables)
    for name in pair.values():
        _check_environment(_Reader(name, variables))
    token_of(host, variables)
    image = _image(pair["head"], variables)
    return Settings(
        names=pair,
        homes={role: pair_variables.account_of(name, variables)[1] for role, name in pair.items()},
        machines={
            role: _machine(_Reader(name, variables), variables) for role, name in pair.items()
        },
        sources=tuple(_sources(reader)),
        options=_options(reader, image=bool(image)),
        endpoint=_endpoint(reader),
        image=image,
        allow_while_serving=reader.flag("weights_allow_while_serving"),
        adopt_checkpoint=_revision(reader, "weights_adopt_checkpoint"),
        adopt_overlay=_revision(reader, "weights_adopt_overlay", STOCK),
        workers=int(reader.number("hf_download_workers", 1, 64, whole=True)),
        limits=_limits(reader, "hf_download_while_serving"),
        transfer=_transfer(reader),
        graft=_graft(reader, image),
        cut=_cut(reader, image),
        build_memory_bytes=int(reader.number("engine_image_build_memory_gib", 1) * GIB),
        prune_images=_image_names(reader, "engine_image_prune"),
    )


def token_of(host: str, variables: HostVariables) -> str:
    """The Hub's token, empty when there is none. Raises DescriptionError without its value."""
    value = pair_variables.value_of(host, variables, TOKEN)
    if value is None or value == "":
        return ""
    # What no header can carry would be a traceback that shows it.
    if not isinstance(value, str) or not value.strip().isascii() or len(value.split()) != 1:
        raise DescriptionError(
            f"{TOKEN} is not one word of plain letters (host {host}; its value is not shown): set "
            "it anew, or leave it out where nothing is gated"
        )
    return value.strip()


def _agree(pair: Mapping[HostRole, str], variables: HostVariables) -> None:
    head, worker = pair["head"], pair["worker"]
    for name in PAIR_WIDE:
        mine, theirs = (pair_variables.value_of(one, variables, name) for one in (head, worker))
        if mine == theirs:
            continue
        said = (
            "differs between"
            if name == TOKEN
            else f"is {pair_variables.shown(mine)} for {head} but "
            f"{pair_variables.shown(theirs)} for"
        )
        both = f"{head} and {worker}" if name == TOKEN else worker
        raise DescriptionError(
            f"{name} {said} {both}: set it once for both, in group_vars/spark_pair of the inventory"
        )


def _sources(reader: _Reader) -> Iterable[Source]:
    base = reader.mapping("weights_sources")
    merged = pair_variables.merge(base, reader.mapping("weights_sources_extra"))
    for name, entry in merged.items():
        where = f"weights_sources.{name}" if name in base else f"weights_sources_extra.{name}"
        if not isinstance(entry, Mapping):
            raise reader.wrong(where, entry, "a mapping with repo, revision, files and hosts")
        try:
            # Names become parts of the names of jobs, which know no underscore.
            check_name(f"download-{name}-worker")
            yield Source.from_dict({**entry, "name": name})
        except (ManifestError, DescriptionError) as error:
            words = str(error).rstrip(".")
            raise DescriptionError(f"{where}: {words} (host {reader.host})") from error


def _options(reader: _Reader, *, image: bool) -> Options:
    expected = reader.numbers("weights_expected_bytes", EXPECTED)
    return Options(
        order=reader.choice("weights_disk_order", ("auto", *ORDERS)),
        prune=reader.flag("rank_files_prune_sources"),
        overlay=_overlay(reader),
        graft=reader.choice("ablit_graft_method", METHODS),
        rank_bytes=expected["rank_file"],
        # Whether an image without a name is there cannot be known, so nothing is planned for it.
        image_bytes=expected["image"] if image else 0,
        rewritten_bytes=expected["rewritten"],
        floor_bytes=int(reader.number("weights_disk_floor_gib", 0) * GIB),
    )


def _overlay(reader: _Reader) -> bool:
    """Whether the overlay is wanted; the engine must start with the weights that are made."""
    wanted = reader.flag("ablit_graft_enabled")
    engine = str(reader.get(_ENGINE_OVERLAY)).strip()
    # Other values are refused by whoever checks the engine's settings.
    if engine in ("0", "1") and (engine == "1") != wanted:
        raise DescriptionError(
            f"{_ENGINE_OVERLAY} is {engine}, but ablit_graft_enabled is {str(wanted).lower()} "
            f"(host {reader.host}): rank files would be made for other weights than the server "
            "runs. Set ablit_graft_enabled alone, the other one follows from it"
        )
    return wanted


def _endpoint(reader: _Reader) -> str:
    name = "weights_hub_endpoint"
    value = reader.get(name)
    shape = "an address such as https://huggingface.co, without an account in it"
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        right = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        right = False
    if not right:
        raise reader.wrong(name, "what it is now" if "@" in str(value) else value, shape)
    return str(value).rstrip("/")


def _revision(reader: _Reader, name: str, *words: str) -> str:
    value = reader.get(name)
    if value in (None, "", *words):
        return str(value or "")
    if not isinstance(value, str) or not is_prefix(value):
        also = "".join(f", or {word}" for word in words)
        shape = f"a commit, at least its first {SHORTEST_PREFIX} hex digits in quotes{also}"
        raise reader.wrong(name, value, shape)
    return value


def _machine(reader: _Reader, variables: HostVariables) -> Machine:
    user, _ = pair_variables.account_of(reader.host, variables)
    port = 22
    if reader.get("ansible_port") is not None:
        port = int(reader.number("ansible_port", 1, 65535, whole=True))
    return Machine(user, tuple(pair_variables.addresses(reader.host, variables)), port)


def _transfer(reader: _Reader) -> Transfer:
    name = "hf_transfer_ports"
    given = reader.get(name)
    pair = given if isinstance(given, list) and len(given) == 2 else ("", "")
    try:
        first, last = (int(reader.checked(name, one, *PORTS, whole=True)) for one in pair)
    except DescriptionError:
        first, last = 1, 0
    if first > last:
        shape = f"the first and the last of some ports, from {PORTS[0]} to {PORTS[1]}"
        raise reader.wrong(name, given, shape)
    return Transfer(
        transport=reader.choice("hf_transfer_transport", TRANSPORTS),
        streams=int(reader.number("hf_transfer_streams", 1, 16, whole=True)),
        ports=(first, last),
        limits=_limits(reader, "hf_transfer_while_serving"),
    )


def _image(head: str, variables: HostVariables) -> str:
    """The image of the engine that is wanted, or else of the first one; "" without any."""
    images = {one.name: one.image for one in pair_variables.engines_of(head, variables)}
    wanted = pair_variables.value_of(head, variables, "model_server_wanted")
    return images.get(str(wanted)) or next(iter(images.values()), "")


def _image_names(reader: _Reader, name: str) -> tuple[str, ...]:
    given = reader.get(name)
    if given in (None, ""):
        return ()
    if not isinstance(given, list) or not all(
        isinstance(one, str) and _IMAGE_NAME.fullmatch(one) for one in given
    ):
        raise reader.wrong(name, given, "a list of names of images")
    return tuple(dict.fromkeys(given))


def _graft(reader: _Reader, engine: str) -> Graft:
    recipe = reader.text("ablit_graft_recipe")
    if recipe and not recipe.startswith("/"):
        raise reader.wrong("ablit_graft_recipe", recipe, "an absolute path on the head, or empty")
    asked = reader.flag("ablit_graft_enabled") and reader.get("ablit_graft_method") == "recipe"
    words = [
        word
        for name in ("ablit_graft_command", "ablit_graft_dtypes_command")
        for word in reader.command(name, GRAFT_PLACES)
    ]
    if asked and not recipe and any("{recipe}" in word for word in words):
        raise DescriptionError(
            "ablit_graft_method is recipe, and its commands speak of {recipe}, but "
            f"ablit_graft_recipe is empty (host {reader.host}): name the recipe's checkout on the "
            "head, or set ablit_graft_method: in_place"
        )
    return Graft(
        tensors=int(reader.number("ablit_graft_tensors", 0, 10**6, whole=True)),
        image=reader.text("ablit_graft_image") or engine,
        command=reader.command("ablit_graft_command", GRAFT_PLACES, needed=("src", "dst")),
        dtypes_command=reader.command("ablit_graft_dtypes_command", GRAFT_PLACES),
        recipe=recipe,
        memory_bytes=int(reader.number("ablit_graft_memory_gib", 1) * GIB),
    )


def _cut(reader: _Reader, engine: str) -> Cut:
    return Cut(
        image=reader.text("rank_files_image") or engine,
        command=reader.command("rank_files_command", CUT_PLACES, needed=CUT_PLACES),
        memory_bytes=int(reader.number("rank_files_memory_gib", 1) * GIB),
    )


def _limits(reader: _Reader, name: str) -> Limits:
    given = reader.mapping(name)
    reader.keys(name, given, CAPS)
    rate, memory = (
        None if given[key] is None else reader.checked(f"{name}.{key}", given[key], least)
        for key, least in (("megabytes_per_second", 0.1), ("memory_gib", 0.5))
    )
    io, cpu = (
        None
        if given[key] is None
        else int(reader.checked(f"{name}.{key}", given[key], 1, 10_000, whole=True))
        for key in ("io_weight", "cpu_weight")
    )
    return Limits(
        None if rate is None else int(rate * 10**6),
        None if memory is None else int(memory * GIB),
        io,
        cpu,
    )


def _check_environment(reader: _Reader) -> None:
    """What a host's downloads get besides; each host may have its own way to the Hub."""
    for key, value in reader.mapping(_ENVIRONMENT).items():
        if not _VARIABLE.fullmatch(key):
            raise DescriptionError(
                f"{_ENVIRONMENT} has {key!r}, which cannot name a variable (host {reader.host})"
            )
        name = f"{_ENVIRONMENT}.{key}"
        if "@" in str(value):
            raise DescriptionError(
                f"{name} has an account in it (host {reader.host}; its value is not shown), and "
                "everybody can read a job's environment: use a proxy that asks for none"
            )
        if not isinstance(value, str) or not value.isprintable():
            raise reader.wrong(name, value, "one line of text (numbers in quotes)")


def _braced(names: Iterable[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in names)


class _Reader:
    """Variables of one host, each checked as it is read."""

    def __init__(self, host: str, variables: HostVariables) -> None:
        self.host = host
        self._variables = variables

    def get(self, name: str) -> Any:
        """The value as it is; None when it is not set."""
        return pair_variables.plain(pair_variables.value_of(self.host, self._variables, name))

    def mapping(self, name: str) -> Mapping[str, Any]:
        """A mapping; {} when it is not set."""
        given = pair_variables.mapping_of(self.host, self._variables, name)
        return {str(key): pair_variables.plain(value) for key, value in given.items()}

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.get(name)
        if isinstance(value, str):
            value = _WORDS.get(value.strip().lower(), value)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str:
        """One line of text; empty when it is not set."""
        value = self.get(name)
        if value is None:
            return ""
        if not isinstance(value, str) or not value.isprintable():
            raise self.wrong(name, value, "one line of text")
        return value.strip()

    def command(
        self, name: str, places: tuple[str, ...], *, needed: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """The words of a command with places in braces; it may be empty where none is needed."""
        words = self.get(name)
        if words in (None, "") and not needed:
            return ()
        if not isinstance(words, list) or not all(isinstance(one, str) for one in words):
            raise self.wrong(name, words, "a list of words")
        used = {place for word in words for place in _PLACE.findall(word)}
        if unknown := sorted(used - set(places)):
            raise DescriptionError(
                f"{name} has {{{unknown[0]}}}, but only {_braced(places)} can stand there "
                f"(host {self.host})"
            )
        if lacking := [one for one in needed if one not in used]:
            raise DescriptionError(
                f"{name} lacks {_braced(lacking)}: nobody would tell the program where to work "
                f"(host {self.host})"
            )
        return tuple(words)

    def choice(self, name: str, among: Iterable[str]) -> Any:
        """One of some words."""
        value, known = self.get(name), tuple(among)
        if value not in known:
            raise self.wrong(name, value, f"one of {', '.join(known)}")
        return value

    def number(self, name: str, least: float, most: float = _MOST, *, whole: bool = False) -> float:
        """A number within bounds."""
        return self.checked(name, self.get(name), least, most, whole=whole)

    def numbers(self, name: str, keys: tuple[str, ...]) -> dict[str, int]:
        """A mapping with exactly these keys, each a count of bytes."""
        given = self.mapping(name)
        self.keys(name, given, keys)
        return {key: int(self.checked(f"{name}.{key}", given[key], 0, whole=True)) for key in keys}

    def keys(self, name: str, given: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        """Refuse a mapping with other keys than these: a misspelt one would be no limit."""
        if set(given) != set(keys):
            raise self.wrong(name, sorted(map(str, given)), f"a mapping with {', '.join(keys)}")

    def checked(
        self, name: str, value: Any, least: float, most: float = _MOST, *, whole: bool = False
    ) -> float:
        """A number within bounds, given as such or as text."""
        kind = "a whole number" if whole else "a number"
        bounds = f"from {least:g} up" if most == _MOST else f"from {least:g} to {most:g}"
        try:
            number: float = (int if whole else float)(value) if isinstance(value, str) else value
        except ValueError:
            raise self.wrong(name, value, f"{kind} {bounds}") from None
        right = type(number) is int or (type(number) is float and not whole)
        if not right or not least <= number <= most:
            raise self.wrong(name, value, f"{kind} {bounds}")
        return number

    def wrong(self, name: str, value: object, shape: str) -> DescriptionError:
        """The sentence about a value that is not what it must be."""
        words = pair_variables.shown(value)
        return DescriptionError(f"{name} is {words}, but must be {shape} (host {self.host})")
