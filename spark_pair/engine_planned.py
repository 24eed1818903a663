"""What was declared, what a dry run plans and what runs: where they differ, in words. Pure.

Three questions, each answered by lines such as `rank 1: TF_DS_GRAPHS is 0, declared 1`: does the
dry run's plan match the declaration (`judge`), do the folders of its weights lie on a disk of their
machine (`weight_folders`), and is what runs what was planned (`running`).
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from .engine_dry_run import DryRun, Mount, Rank, tidy

_OPTIONS: Mapping[int, Mapping[str, str]] = {
    0: {
        "--host": "HOST",
        "--port": "PORT",
        "--name": "SERVED_NAME",
        "--context": "CONTEXT",
        "--parallel": "PARALLEL",
        "--max-tokens": "MAX_TOKENS",
    },
    1: {"--pool": "CONTEXT", "--graphs": "GRAPHS"},
}
"""Options of each rank's engine, with the setting that each of them carries."""

_ENVIRONMENT: Mapping[str, str] = {
    "TF_DS_ROUND_ROWS": "ROUND_ROWS",
    "TF_DS_GRAPHS": "GRAPHS",
    "TF_DS_PREFILL_INTERLEAVE_MS": "PREFILL_INTERLEAVE_MS",
    "TF_DS_STREAMS": "PARALLEL",
    "TF_DS_REASONING_EFFORT": "REASONING_EFFORT",
    "TF_TP_PORT": "MASTER_PORT",
    "NCCL_MIN_NCHANNELS": "NCCL_CHANNELS",
    "NCCL_MAX_NCHANNELS": "NCCL_CHANNELS",
}
"""Variables in both ranks' environment, with the setting that each of them carries."""

_ASSUMED = frozenset(
    ("TF_DS_STREAMS", "TF_DS_REASONING_EFFORT", "TF_TP_PORT", "NCCL_MIN_NCHANNELS",
     "NCCL_MAX_NCHANNELS")
)  # fmt: skip
"""Names that nobody promised to mean what is thought here: where one says something else than was
declared, the operator is asked."""

_MUST_SAY = {
    0: ("--port", "--name", "--context", "--parallel", "TF_DS_ROUND_ROWS", "TF_DS_GRAPHS",
        "TF_DS_PREFILL_INTERLEAVE_MS"),
    1: ("--pool",),
}  # fmt: skip
"""What the recipe's own account says is handed on by this name. Where it is missing, it is unknown
whether the declared value reaches the engine at all. That rank 1 has its graphs by either name is
asked by itself."""

_THE_RECIPES_OWN = frozenset(
    f"TF_DS_{name}"
    for name in (
        "KIT", "RANK_CACHE", "ENGRAM", "TOKEN_MAP", "HC_SIDE", "L2_PREFETCH", "ENGRAM_AIO",
        "REPLAY_FLOOR", "ROUND_MS", "ARENA_GIB", "SERVED_K",
    )
)  # fmt: skip
"""Variables of the engine that the recipe sets by itself, whatever is declared."""

_DEVICES = ("TF_RDMA_DEVICES", "NCCL_IB_HCA")
_INTERFACE = "NCCL_SOCKET_IFNAME"
_OF_THE_LINK = frozenset(
    (*_DEVICES, _INTERFACE, "NCCL_IB_GID_INDEX", "NCCL_DEBUG", "TF_TP_WORLD", "TF_TP_MASTER")
)
"""Variables that the recipe sets from the link that it finds, each looked at by itself."""

_WORLD = "2"
"""Ranks of a pair, as the engine is told."""

_KEYS = "TENSORFOLD_API_KEY"
_WEIGHTS = ("TF_DS_RANK_CACHE", "TF_DS_ENGRAM")
_PASSED_ON = re.compile(r"(TF_|NCCL_|TENSORFOLD_)\w+")
_MUST_BE_KNOWN = re.compile(r"(TF_DS|TF_TP|TF_RDMA|NCCL)_\w+")
"""Variables that change what the engine computes, or over which network."""

_HIDDEN_NAME = (
    r"(?!(?:\w*TOKENS|API_KEY|\w*TOKEN_MAP)=)(?=\w*(?:TOKEN|SECRET|PASSW|API_KEY))[A-Z]\w*"
)
_HIDDEN_OPTION = r"--[\w-]*(?:key|token|secret|password)(?:=|['\"]?(?:\s|\\\n)+)"
"""With the place of its value; `--api-key-file` names a path, which is no secret."""
_WORD = r"""(?:\$'(?:\\.|[^'\\])*'?|\\.|'[^']*'?|"(?:\\.|[^"\\])*"?|[^\s\\'"])+"""
"""A word of a shell's; one whose quote is not closed goes on to the end."""
_HIDDEN_PLACE = r"""
    (?:(?<=')(?P<single>)|(?<=")(?P<double>)|)       # what is quoted as a whole ends with its quote
    (?P<before>(?<![A-Z0-9_])(?:%s)=|(?<![\w-])%s)
    (?(single)(?:\\.|[^'\\])*|(?(double)(?:\\.|[^"\\])*|%s))
"""
_LONG_ENOUGH = 4
_SHORTENED = 60


@dataclass(frozen=True)
class Declared:
    """A generation's settings as it carries them."""

    settings: Mapping[str, str]
    """By their name in local.sh, without secret ones."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Values that are never shown and never kept."""

    @staticmethod
    def read(manifest: object, local_sh: str) -> Declared | None:
        """From a generation's `generation.json` and `local.sh`; None when the former says nothing.

        Secret values are in local.sh alone.
        """
        known = manifest if isinstance(manifest, Mapping) else {}
        settings, secret = known.get("settings"), known.get("secret_settings", [])
        if not isinstance(settings, Mapping) or not isinstance(secret, list):
            return None
        values = {}
        for line in local_sh.splitlines():
            name, equals, quoted = line.partition("=")
            if equals and name in secret:
                values[name] = _unquoted(quoted)
        return Declared({str(key): str(value) for key, value in settings.items()}, values)

    def hiding(self, name: str, value: str) -> Declared:
        """The same with one more secret, which is in no setting."""
        return replace(self, secrets={**self.secrets, name: value})


@dataclass(frozen=True)
class Expected:
    """What both ranks are expected to be, beside the declaration."""

    declared: Declared
    containers: Mapping[int, str]
    rails: int
    masters: Sequence[str] = ()
    """Addresses of the head on the rails; empty where the inventory names none."""
    interfaces: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Each rank's rails by their interfaces; empty likewise."""


@dataclass
class Judgement:
    """What speaks against a plan."""

    different: list[str] = field(default_factory=list)
    """Says something else than was declared."""
    unknown: list[str] = field(default_factory=list)
    """Does not say what it would have to say, or says what may mean something else than is thought
    here; the operator may accept it."""
    silent: list[str] = field(default_factory=list)
    """Does not say, and nobody promised that it would; worth a line, nothing more."""


def _unquoted(text: str) -> str:
    try:
        return "".join(shlex.split(text))
    except ValueError:  # edited by hand: hidden as it stands there
        return text


def judge(plan: DryRun, expected: Expected) -> Judgement:
    """Compare a dry run's plan with what was declared."""
    found = Judgement()
    for number, rank in sorted(plan.ranks.items()):
        _Rank(number, rank, expected, found).judge()
        if plan.rails is None and not devices(rank):
            found.unknown.append(
                f"rank {number}: nothing says which rails it uses ({', '.join(_DEVICES)}, --rdma, "
                f"or the line of the link), declared {expected.rails}"
            )
    if plan.rails is not None and plan.rails != expected.rails:
        found.different.append(f"the link has {plan.rails} rail(s), declared {expected.rails}")
    return found


class _Rank:
    """One rank of a plan, or of what runs, against the declaration."""

    def __init__(self, number: int, rank: Rank, expected: Expected, found: Judgement) -> None:
        self.number = number
        self.rank = rank
        self.expected = expected
        self.settings = expected.declared.settings
        self.found = found

    def judge(self) -> None:
        self._same("the container", self.rank.container, self.expected.containers[self.number])
        self._same("the image", self.rank.image, self.settings.get("IMAGE"))
        for name, setting in _OPTIONS[self.number].items():
            self._value(name, self.rank.option(name), self.settings.get(setting))
        for name, setting in _ENVIRONMENT.items():
            self._value(name, self.rank.env.get(name), self.settings.get(setting))
        if self.number == 0:
            self._thinking()
            self._key()
        self._passed_on()
        self._rails()
        self._network()
        self._master()
        if self.number == 1:
            self._graphs()
            self._cache()
        self._engram()

    def _differs(self, words: str) -> None:
        self.found.different.append(f"rank {self.number}: {words}")

    def _unclear(self, words: str) -> None:
        self.found.unknown.append(f"rank {self.number}: {words}")

    def _same(self, what: str, got: str, wanted: str | None) -> None:
        if wanted is not None and got != wanted:
            say = self._unclear if what in _ASSUMED else self._differs
            say(f"{what} is {got}, declared {wanted}")

    def _value(self, name: str, got: str | None, wanted: str | None) -> None:
        if wanted is None:
            return
        if got is not None:
            self._same(name, got, wanted)
        elif name in _MUST_SAY[self.number]:
            self._unclear(f"{name} is not there, declared {wanted}")
        else:
            self.found.silent.append(f"rank {self.number} does not say {name}")

    def _thinking(self) -> None:
        wanted = self.settings.get("THINKING")
        said = [word for word in self.rank.argv if word in ("--thinking", "--no-thinking")]
        if wanted is None:
            return
        if said:
            self._same("thinking", "1" if said[-1] == "--thinking" else "0", wanted)
        else:
            self.found.silent.append(f"rank {self.number} does not say --thinking")

    def _key(self) -> None:
        """Without its keys the engine would serve everybody who reaches its port."""
        given = any(word.startswith("--api-key") for word in self.rank.argv)
        if self.settings.get("API_KEY") == "1" and not (given or self.rank.env.get(_KEYS)):
            self._unclear(
                f"nothing hands it an API key (--api-key… or {_KEYS}), and one is declared"
            )

    def _passed_on(self) -> None:
        """Variables of the engine and of NCCL that nobody declared, or with another value."""
        declared, secrets = self.settings, self.expected.declared.secrets
        for name, value in sorted(self.rank.env.items()):
            if name in secrets:
                if value != secrets[name]:
                    self._differs(f"{name} is not what secret settings declare")
            elif _PASSED_ON.fullmatch(name) and name in declared:
                self._same(name, value, declared[name])
            elif _MUST_BE_KNOWN.fullmatch(name) and not self._known(name):
                self._unclear(
                    f"{name} is {value}, and nobody declared it (extra settings are the place)"
                )

    def _known(self, name: str) -> bool:
        # A setting that was left out is the recipe's to choose.
        return name in _THE_RECIPES_OWN or name in _OF_THE_LINK or name in _ENVIRONMENT

    def _graphs(self) -> None:
        """Where a rank alone is without graphs, nothing that is found out about them is true."""
        wanted = self.settings.get("GRAPHS")
        said = self.rank.env.get("TF_DS_GRAPHS") or self.rank.option("--graphs")
        if wanted is not None and not said:
            self._unclear(
                f"neither TF_DS_GRAPHS nor --graphs hands it its graphs, declared {wanted}"
            )

    def _rails(self) -> None:
        for name in _DEVICES:
            if name not in self.rank.env:
                self.found.silent.append(f"rank {self.number} does not say {name}")
        for name, text in _texts_of_devices(self.rank):
            if text.startswith("^"):
                self._unclear(f"{name} is {text}, which names rails that are not used")
                continue
            found = _devices(text)
            if len(found) != self.expected.rails:
                self._differs(
                    f"{name} has {len(found)} rail(s) ({', '.join(found)}), declared "
                    f"{self.expected.rails}"
                )

    def _network(self) -> None:
        """Over which interface the ranks find each other."""
        text, rails = self.rank.env.get(_INTERFACE), self.expected.interfaces.get(self.number, ())
        if text is None or not rails or _INTERFACE in self.settings:
            return
        names = [one for one in text.removeprefix("=").split(",") if one]
        if names and all(one in rails for one in names):
            return
        words = f"{_INTERFACE} is {text}, and the rails of that machine are {', '.join(rails)}"
        # NCCL takes the beginning of a name too, which other interfaces may share.
        begin = all(any(rail.startswith(one) for rail in rails) for one in names)
        if text.startswith("^") or (names and begin):
            self._unclear(words)
        else:
            self._differs(words)

    def _master(self) -> None:
        """Where the ranks meet: the head, on a rail."""
        world = self.rank.env.get("TF_TP_WORLD", _WORLD)
        if world != _WORLD:
            self._unclear(f"TF_TP_WORLD is {world}, and a pair has {_WORLD} ranks")
        said = [("TF_TP_MASTER", self.rank.env.get("TF_TP_MASTER"))]
        if self.number == 1:
            said += [("an address in its command", one) for one in self.rank.argv if _address(one)]
        masters = self.expected.masters
        for name, got in said:
            if got is not None and masters and got not in masters:
                self._differs(f"{name} is {got}, and the head's rails are {', '.join(masters)}")

    def _cache(self) -> None:
        """The worker's own folder: without it its weights would come over NFS."""
        sources = [one.source for one in self.rank.mounts]
        cache = self.settings.get("NFS_VOLUME")
        if cache is not None and tidy(cache) not in sources:
            self._differs(f"nothing is mounted from {cache}, declared for its weights")

    def _engram(self) -> None:
        """Both ranks need the tables, and serve without them too, only worse. Where the head's lie
        is the recipe's to choose."""
        engram = self.settings.get("WORKER_ENGRAM_DIR")
        inside = self.rank.env.get("TF_DS_ENGRAM") or self.rank.option("--engram")
        if engram is None:
            return
        if not inside:
            declared = f", declared {engram}" if self.number == 1 else ""
            self._unclear(
                f"nothing hands it the Engram tables (TF_DS_ENGRAM or --engram){declared}, and "
                "without them its replies are worse"
            )
        elif self.number == 1 and (got := outside(self.rank, inside)) != tidy(engram):
            self._differs(f"the Engram tables come from {got or 'the image'}, declared {engram}")
        elif outside(self.rank, inside) is None:
            self._unclear(f"the Engram tables at {inside} lie in no folder of its machine")


def devices(rank: Rank) -> list[str]:
    """The RDMA devices that a rank is started with, each once; [] where nothing names them."""
    return _devices(",".join(text for _, text in _texts_of_devices(rank)))


def _texts_of_devices(rank: Rank) -> Iterator[tuple[str, str]]:
    for name in _DEVICES:
        if name in rank.env:
            yield name, rank.env[name]
    option = rank.option("--rdma")
    if option is not None:
        yield "--rdma", option


def _devices(text: str) -> list[str]:
    """Names in a list such as NCCL's, where a port may follow each; the same one counts once."""
    names = (one.partition(":")[0] for one in text.removeprefix("=").split(","))
    return list(dict.fromkeys(one for one in names if one))


def _address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def outside(rank: Rank, inside: str) -> str | None:
    """Where a path in the container lies on its machine; None when it is in the image."""
    inside = tidy(inside)
    mount = rank.folder_of(inside)
    return tidy(f"{mount.source}/{inside[len(mount.target) :]}") if mount else None


def weight_folders(rank: Rank) -> Iterator[tuple[str, str, Mount]]:
    """What a rank reads while it serves: its name, its place on the machine, the mount it is on."""
    places = [(name, rank.env[name]) for name in _WEIGHTS if name in rank.env]
    if option := rank.option("--engram"):
        places.append(("--engram", option))
    places += [("the command", word) for word in rank.argv if word.startswith("/")]
    seen = set()
    for name, inside in places:
        mount, place = rank.folder_of(tidy(inside)), outside(rank, inside)
        if mount is not None and place is not None and place not in seen:
            seen.add(place)
            yield name, place, mount


# ---- what runs ------------------------------------------------------------------------------


def seen(inspected: Mapping[str, Any]) -> Rank:
    """A running container as `docker container inspect` tells, its image's variables included.

    Raises KeyError, TypeError or AttributeError when the answer has another form.
    """
    config, host = inspected["Config"], inspected["HostConfig"]
    return Rank(
        container=str(inspected["Name"]).lstrip("/"),
        image=config["Image"],
        env=dict(one.partition("=")[::2] for one in config["Env"] or []),
        mounts=tuple(sorted(_mount(one) for one in inspected["Mounts"] or [] if _chosen(one))),
        network=host["NetworkMode"],
        devices=tuple(sorted(str(one["PathOnHost"]) for one in host.get("Devices") or [])),
        argv=tuple(config["Cmd"] or []),
    )


def _mount(one: Mapping[str, Any]) -> Mount:
    volume = one["Type"] == "volume"
    source = str(one["Name"] if volume else one["Source"])
    return Mount(tidy(one["Destination"]), tidy(source), not one["RW"], volume)


def _chosen(one: Mapping[str, Any]) -> bool:
    """Whether somebody chose it: an image may declare places for volumes without a name."""
    return one["Type"] != "volume" or not re.fullmatch(r"[0-9a-f]{64}", str(one.get("Name")))


def given(rank: Rank, of_image: Collection[str]) -> Rank:
    """A rank without the variables (NAME=value) that its image brings and nobody gave it."""
    env = {name: text for name, text in rank.env.items() if f"{name}={text}" not in of_image}
    return Rank.from_dict({**rank.as_dict(), "env": env})


def running(number: int, planned: Rank, got: Rank, of_image: Collection[str] = ()) -> list[str]:
    """Where a running rank differs from the plan. A variable that the plan does not have counts if
    it is of the engine's or NCCL's kind, and not among those (NAME=value) that the image brings."""
    found = []
    for name, value in sorted(planned.env.items()):
        if name not in got.env:
            found.append(f"{name} is not there, planned {value}")
        elif got.env[name] != value:
            found.append(f"{name} is {got.env[name]}, planned {value}")
    found += [
        f"{name} is {value}, and was not planned"
        for name, value in sorted(given(got, of_image).env.items())
        if name not in planned.env and _PASSED_ON.fullmatch(name)
    ]
    if got.image != planned.image:
        found.append(f"the image is {got.image}, planned {planned.image}")
    found += _other_mounts(planned, got)
    if got.network != planned.network:
        found.append(f"the network is {got.network}, planned {planned.network}")
    if planned.argv and got.argv != planned.argv:
        pairs = zip(got.argv, planned.argv, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        found.append(f"the command is {_from(same, got.argv)}, planned {_from(same, planned.argv)}")
    return [f"rank {number}: {words}" for words in found]


def _other_mounts(planned: Rank, got: Rank) -> Iterator[str]:
    wanted = {one.target: one for one in planned.mounts}
    there = {one.target: one for one in got.mounts}
    for target in sorted(wanted.keys() | there.keys()):
        if target not in there:
            yield f"nothing is mounted on {target}, planned {_words(wanted[target])}"
        elif target not in wanted:
            yield f"{_words(there[target])} is mounted on {target}, and was not planned"
        elif there[target] != wanted[target]:
            yield f"{target} is {_words(there[target])}, planned {_words(wanted[target])}"


def _words(mount: Mount) -> str:
    return mount.source + (" (read only)" if mount.read_only else "")


def _from(same: int, argv: Sequence[str]) -> str:
    """A command from its first word that is another one, which may stand far behind."""
    words = masked(shlex.join(argv[same:]), None)[:_SHORTENED]
    return repr(f"… {words}".rstrip() if same else words)


# ---- what may be shown ----------------------------------------------------------------------


def without_secrets(rank: Rank, declared: Declared | None) -> Rank:
    """A rank as it may be written down: what is secret is left out of it."""
    hidden = declared.secrets if declared else {}
    env = {
        name: value
        for name, value in rank.env.items()
        if name not in hidden and masked(f"{name}={value}", declared) == f"{name}={value}"
    }
    # A word may be secret by itself, or by the option before it.
    words = (*rank.argv, shlex.join(rank.argv))
    argv = rank.argv if all(masked(word, declared) == word for word in words) else ()
    return Rank.from_dict({**rank.as_dict(), "env": env, "argv": argv})


def masked(text: str, declared: Declared | None) -> str:
    """A text as it may be shown: secret values, and what looks like one by the name of its variable
    or option, are hidden, however a shell's quotes stand around it."""
    hidden = declared.secrets if declared else {}
    for value in hidden.values():
        if len(value) >= _LONG_ENOUGH:  # a secret "1" would make every text unreadable
            quoted = shlex.quote(value)
            escaped = re.sub(r"([^\w@%+=:,./-])", r"\\\1", value)
            for form in (value, quoted, quoted.strip("'"), escaped):
                text = text.replace(form, "…")

    names = "|".join([*map(re.escape, hidden), _HIDDEN_NAME])
    places = _HIDDEN_PLACE % (names, _HIDDEN_OPTION, _WORD)
    return re.sub(places, r"\g<before>…", text, flags=re.VERBOSE | re.DOTALL)
