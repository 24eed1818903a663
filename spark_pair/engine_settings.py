"""The settings of a TensorFold engine: checked, written down as `local.sh`, named by a hash.

One engine entry (one server of the pair) becomes one *generation*: a directory named after a hash
of everything that decides how the engine runs. Pure functions and standard library only; the
controller's filter and action plugins call this before any host is touched.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from . import engine_inputs, paths, pool
from .engine_dry_run import tidy
from .errors import DescriptionError

PREFIX = "tensorfold_service_"
MAX_CONTEXT = 1_048_576
ROUND_ROWS = (16, 48)
PARALLEL = (1, 8)
ENGRAM_SNAPSHOT = (
    "models--deepseek-ai--DeepSeek-V4.1-Flash-1017/snapshots/"
    "1bae0e1088993b9b82de08f59de5be5a34e42170"
)
"""Where the Engram tables (shards 47 and 48) lie in a Hugging Face cache."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_UNIT = re.compile(r"[A-Za-z0-9:_.@-]+\.service")
_LINK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SSH_TARGET = re.compile(r"[a-z_][a-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.:-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*")
_KEY = re.compile(r"[!-~]{16,200}")
_KEY_WITHOUT = frozenset("\"'`:,")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_PASSED_STRAIGHT_ON = {
    "TF_DS_PREFILL_INTERLEAVE_MS": "prefill_interleave_ms",
    "TF_DS_ROUND_ROWS": "round_rows",
    "TF_DS_GRAPHS": "graphs",
    "TF_DS_STREAMS": "parallel",
    "TENSORFOLD_API_KEY": "api_key",
}
"""Variables that the recipe hands to the engine past its own setting of the same meaning."""


_FROM_RAIL = (f"{PREFIX}fabric_peer", f"{PREFIX}worker")


class EngineSettingsError(DescriptionError):
    """A setting is not usable; the message names the variable, its value and what is allowed."""


@dataclass(frozen=True)
class Place:
    """What an engine entry must know about the two machines: the head, and the worker from it."""

    user: str
    home: str
    peer_user: str
    peer_home: str
    peer_rail: str | None
    """The worker's address on the direct link; None when the inventory names no rail."""

    def derived(self) -> dict[str, str]:
        """Settings that follow from the inventory, by suffix, for variables that are left empty."""
        cache = f"{self.peer_home}/.cache/huggingface"
        found = {
            "state_dir": f"{self.home}/.cache/dsv41-tensorfold/state",
            "nfs_volume": cache,
            "memguard_remote_dir": f"{self.peer_home}/.cache/dsv41-tensorfold",
        }
        if self.peer_rail:
            found["fabric_peer"] = self.peer_rail
            found["worker"] = f"{self.peer_user}@{self.peer_rail}"
        return found


@dataclass(frozen=True)
class Engine:
    """An engine entry, ready to be written to the head."""

    name: str
    unit: str
    link: str | None
    recipe_url: str
    commit: str
    checkout: str
    settings: Mapping[str, str]
    secret: bool
    local_sh: str
    launch: str
    hash: str
    path: str
    current: str
    generation_json: str
    port: int
    model: str
    context: int
    recipe_id: str
    """Names the recipe's commit with the patches and the kit; see engine_inputs."""
    patches: tuple[engine_inputs.Patch, ...]
    kit: engine_inputs.Kit | None
    image: str
    image_built: bool
    """Whether the image is built from these inputs, and not one that the operator names."""
    build_command: tuple[str, ...]
    api_key: bool
    """Whether the API asks for a key. The key itself is in nothing that is made from an engine."""
    api_key_path: str | None
    """Where the engine reads its keys on the head; None where its API is open."""
    clients: tuple[pool.Client, ...]
    accept_dry_run: str | None
    """The output of the dry run that is accepted although it is not understood."""
    expect_drafts: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a playbook."""
        plain = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return plain | {
            "patches": [{**asdict(one), "name": one.name} for one in self.patches],
            "kit": {**asdict(self.kit), "name": self.kit.name} if self.kit else None,
            "build_command": list(self.build_command),
            "clients": [asdict(one) for one in self.clients],
        }


@dataclass(frozen=True)
class _Value:
    """One value with the name the operator knows it by."""

    label: str
    raw: Any

    def refuse(self, rule: str) -> EngineSettingsError:
        shown = "empty" if self.raw in (None, "") else repr(self.raw)[:80]
        if self.label in _FROM_RAIL and self.raw in (None, ""):
            rule += " (it follows from cx7_network_rails of the worker, where that is set)"
        return EngineSettingsError(f"{self.label} is {shown}, but must be {rule}")

    def text(self, pattern: re.Pattern[str] | None, rule: str) -> str:
        if not isinstance(self.raw, str) or not self.raw.strip():
            raise self.refuse(rule)
        if any(ord(char) < 32 or ord(char) == 127 for char in self.raw):
            raise self.refuse(f"{rule}, on one line")
        if pattern is not None and not pattern.fullmatch(self.raw):
            raise self.refuse(rule)
        return str(self.raw)

    def integer(self, low: int, high: int, why: str = "") -> str:
        rule = f"a whole number from {low} to {high}{why}"
        raw = self.raw
        # -e name=8 arrives as text. A leading zero is refused: bash reads 010 as octal 8.
        if isinstance(raw, str) and re.fullmatch(r"0|[1-9][0-9]*", raw):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high:
            raise self.refuse(rule)
        return str(int(raw))

    @property
    def unset(self) -> bool:
        """Whether nothing was said."""
        return self.raw is None or self.raw == ""

    def flag(self, why: str = "") -> str:
        words = {"0": "0", "1": "1", "false": "0", "true": "1", "no": "0", "yes": "1"}
        if isinstance(self.raw, bool | int | str) and str(self.raw).lower() in words:
            return words[str(self.raw).lower()]
        raise self.refuse(f"0 or 1{why}")

    def path(self) -> str:
        rule = "an absolute path, written out (no '~' and no '$HOME': it is passed on as it is)"
        value = self.text(None, rule)
        if not value.startswith("/") or "$" in value or ".." in value.split("/"):
            raise self.refuse(rule)
        return tidy(value)  # Docker mounts it so, and it is compared with what Docker says


def _prepare(value: _Value) -> str:
    if str(value.raw) != "0":
        raise value.refuse(
            "0: a start that downloads or builds would do so while no server answers, and where "
            "the source shards are pruned it would fetch all of them again. Prepare weights and "
            "image beforehand"
        )
    return "0"


def _effort(value: _Value) -> str:
    if value.raw not in _EFFORTS:
        raise value.refuse(f"one of {', '.join(_EFFORTS)}")
    return str(value.raw)


def _optional(check: Callable[[_Value], str]) -> Callable[[_Value], str | None]:
    return lambda value: None if value.raw in (None, "") else check(value)


_CHECKS: dict[str, tuple[str, Callable[[_Value], str | None]]] = {
    "worker": ("WORKER", lambda v: v.text(_SSH_TARGET, "user@address of the worker")),
    "fabric_peer": (
        "FABRIC_PEER",
        lambda v: v.text(_ADDRESS, "the worker's address on the direct link"),
    ),
    "ablit": (
        "ABLIT",
        lambda v: v.flag(": the weights are served either with the overlay (1) or without it (0)"),
    ),
    "prepare": ("PREPARE", _prepare),
    "context": (
        "CONTEXT",
        lambda v: v.integer(
            2048, MAX_CONTEXT, ": one request takes 2048 at least, and the recipe accepts no more"
        ),
    ),
    "parallel": (
        "PARALLEL",
        lambda v: v.integer(*PARALLEL, ": no engine of this recipe has more lanes than that"),
    ),
    "round_rows": (
        "ROUND_ROWS",
        lambda v: v.integer(
            *ROUND_ROWS, ": the stock kernels are for 16 rows, those of the wide-row kit end there"
        ),
    ),
    "graphs": (
        "GRAPHS",
        lambda v: v.flag(": rounds run either as CUDA graphs (1) or, slower, without them (0)"),
    ),
    "prefill_interleave_ms": (
        "PREFILL_INTERLEAVE_MS",
        _optional(lambda v: v.integer(0, 60_000, " (milliseconds)")),
    ),
    "thinking": (
        "THINKING",
        lambda v: v.flag(
            ": a request that says nothing either thinks (1) or does not (0); how much is said by "
            f"{PREFIX}reasoning_effort"
        ),
    ),
    "reasoning_effort": ("REASONING_EFFORT", _effort),
    "max_tokens": ("MAX_TOKENS", lambda v: v.integer(1, MAX_CONTEXT)),
    "host": ("HOST", lambda v: v.text(_ADDRESS, "an address to listen on")),
    "port": ("PORT", lambda v: v.integer(1, 65_535)),
    "served_name": (
        "SERVED_NAME",
        lambda v: v.text(
            re.compile(r"\S+"),
            "the model name that clients use, without blanks (its end could not be told in the "
            "engine's ready line)",
        ),
    ),
    "image": ("IMAGE", _optional(lambda v: v.text(re.compile(r"\S+"), "an image reference"))),
    "state_dir": ("STATE_DIR", _Value.path),
    "nfs_volume": ("NFS_VOLUME", _Value.path),
    "memguard_remote_dir": ("MEMGUARD_REMOTE_DIR", _Value.path),
    "worker_engram_dir": ("WORKER_ENGRAM_DIR", _Value.path),
}

SETTINGS: Mapping[str, str] = {suffix: name for suffix, (name, _) in _CHECKS.items()}
"""Variable suffix -> name in local.sh, for every setting that has a variable of its own."""

_API = ("api_key", "api_open", "api_key_path")
_OTHERS = (
    "recipe_url",
    "recipe_commit",
    "extra_settings",
    "secret_settings",
    "allow_max_effort",
    "clients",
    *_API,
    "accept_dry_run",
    "expect_drafts",
)
IMAGE_PREFIX = "engine_image_"
IMAGE_KEYS = ("patches", "kit", "build_command")
"""Suffixes of the variables that say what the image is built from; their prefix is another."""
ENTRY_KEYS = ("unit", "link", *_OTHERS, *SETTINGS, *IMAGE_KEYS)
"""Keys of an entry of tensorfold_service_engines; all but `unit` fall back to the variables."""


def variable_of(suffix: str) -> str:
    """Full name of the variable that an entry's key overrides."""
    return f"{IMAGE_PREFIX if suffix in IMAGE_KEYS else PREFIX}{suffix}"


def build_engine(
    name: str,
    entry: Mapping[str, Any],
    variables: Mapping[str, Any],
    *,
    place: Place,
    ready_timeout: int,
) -> Engine:
    """Check one entry of `tensorfold_service_engines` and work out everything written for it.

    `variables` are the head's `tensorfold_service_*` by full name; `entry` overrides them by
    suffix; what is left empty follows from `place`. `ready_timeout` is in seconds. Raises
    EngineSettingsError naming the variable.
    """
    where = f"{PREFIX}engines.{name}"
    for key in entry:
        if key not in ENTRY_KEYS:
            near = difflib.get_close_matches(str(key), ENTRY_KEYS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise EngineSettingsError(f"{where} has an unknown key {str(key)!r}{hint}")

    derived = place.derived()

    def value(suffix: str) -> _Value:
        if suffix in entry:
            return _Value(f"{where}.{suffix}", entry[suffix])
        name = variable_of(suffix)
        raw = variables.get(name)
        return _Value(name, derived.get(suffix) if raw in (None, "") else raw)

    derived["worker_engram_dir"] = f"{value('nfs_volume').path()}/hub/{ENGRAM_SNAPSHOT}"

    commit = _commit(value("recipe_commit"))
    url = value("recipe_url").text(
        re.compile(r"[^\s-]\S*"), "the address of the recipe's repository"
    )
    queue = engine_inputs.patches(value("patches").label, value("patches").raw)
    kit = engine_inputs.kit(value("kit").label, value("kit").raw)
    made_from = engine_inputs.recipe_id(commit, queue, kit)
    settings = _settings(value)
    if int(settings["ROUND_ROWS"]) > engine_inputs.STOCK_ROUND_ROWS and kit is None:
        raise EngineSettingsError(
            f"{value('round_rows').label} is {settings['ROUND_ROWS']}, but more than "
            f"{engine_inputs.STOCK_ROUND_ROWS} rows need the wide-row kernels, without which CUDA "
            f"graph capture fails: declare the kit in {value('kit').label}, and a patch that lets "
            f"start.sh accept the number in {value('patches').label}, or use "
            f"{engine_inputs.STOCK_ROUND_ROWS}"
        )
    key_path = _key_path(name, entry, variables, value("api_key_path"), settings["STATE_DIR"])
    settings["API_KEY"] = "1" if key_path else "0"
    image_built = "IMAGE" not in settings
    # Always written: two images of one recipe must never be mixed up by a tag that it derives.
    settings.setdefault("IMAGE", engine_inputs.image_name(made_from))
    settings["WAIT_TIMEOUT"] = str(int(ready_timeout))
    extra = _named_values(value("extra_settings"))
    secrets = _named_values(value("secret_settings"))
    for names in (extra, secrets):
        settings.update(names)

    launch = launch_text(place)
    local_sh = local_sh_text(name, settings)
    manifest = generation_text(
        name,
        url=url,
        commit=commit,
        made_from=made_from,
        settings=settings,
        key_path=key_path,
        kit=kit,
        secrets=secrets,
    )
    digest = generation_hash(manifest, local_sh, launch)
    unit = _Value(f"{where}.unit", entry.get("unit")).text(_UNIT, "the name of its systemd service")
    link = entry.get("link")
    if link is not None:
        link = _Value(f"{where}.link", link).text(_LINK, "a plain name in the home directory")
    return Engine(
        name=name,
        unit=unit,
        link=f"{place.home}/{link}" if link else None,
        recipe_url=url,
        commit=commit,
        checkout=str(paths.VAR / "recipes" / f"{name}-{made_from}"),
        settings=settings,
        secret=bool(secrets),
        local_sh=local_sh,
        launch=launch,
        hash=digest,
        path=str(paths.GENERATIONS / digest),
        current=str(paths.CURRENT / name),
        generation_json=manifest,
        port=int(settings["PORT"]),
        model=settings["SERVED_NAME"],
        context=int(settings["CONTEXT"]),
        recipe_id=made_from,
        patches=queue,
        kit=kit,
        image=settings["IMAGE"],
        image_built=image_built,
        build_command=_command(value("build_command")),
        api_key=key_path is not None,
        api_key_path=key_path,
        clients=pool.clients(value("clients").label, value("clients").raw),
        accept_dry_run=_accepted(value("accept_dry_run")),
        expect_drafts=value("expect_drafts").flag() == "1",
    )


def api_key(name: str, entry: Mapping[str, Any], variables: Mapping[str, Any]) -> str | None:
    """The key that the API of an engine entry asks for, or None where it is open to everybody.

    One of the two must be chosen; where an entry says anything about it, the variables say nothing
    for it. Raises EngineSettingsError, which never shows the key.
    """
    where = f"{PREFIX}engines.{name}"
    own = "api_key" in entry or "api_open" in entry
    key, opened = (
        _Value(f"{where}.{suffix}", entry.get(suffix))
        if own
        else _Value(f"{PREFIX}{suffix}", variables.get(f"{PREFIX}{suffix}"))
        for suffix in ("api_key", "api_open")
    )
    is_open = not opened.unset and opened.flag() == "1"
    choices = (
        f"either set {key.label} to a key (in a vault), which every client, the switch and its "
        f"metrics then use, or {opened.label}: true, which lets everybody who reaches the port use "
        "the model"
    )
    if key.unset and not is_open:
        raise EngineSettingsError(
            f"neither {key.label} nor {opened.label} is set, so that it is not decided who may use "
            f"the API of {name}: {choices}"
        )
    if key.unset:
        return None
    if is_open:
        raise EngineSettingsError(
            f"{key.label} and {opened.label} are both set for {name}, and only one can be meant: "
            f"{choices}"
        )
    raw = key.raw
    if not isinstance(raw, str) or not _KEY.fullmatch(raw) or _KEY_WITHOUT & set(raw):
        raise EngineSettingsError(
            f"{key.label} (its value is not shown) must be a text of 16 to 200 ASCII letters, "
            "digits and signs, without blanks, quotes, colons and commas, as 'openssl rand -hex "
            "24' prints it"
        )
    return str(raw)


def _key_path(
    name: str,
    entry: Mapping[str, Any],
    variables: Mapping[str, Any],
    chosen: _Value,
    state_dir: str,
) -> str | None:
    """Where the engine reads its keys on the head; None where its API is open."""
    if api_key(name, entry, variables) is None:
        return None
    return f"{state_dir.rstrip('/')}/api-key" if chosen.unset else chosen.path()


def _commit(value: _Value) -> str:
    if value.raw in (None, ""):
        raise EngineSettingsError(
            f"{value.label} is not set: it names the commit of the recipe that your pair runs. On "
            "the head, 'git -C ~/dsv41 rev-parse HEAD' prints it for a checkout made by hand"
        )
    return value.text(
        _COMMIT, "a whole commit id (40 characters, as 'git -C ~/dsv41 rev-parse HEAD' prints it)"
    )


def _accepted(value: _Value) -> str | None:
    if value.raw in (None, ""):
        return None
    return value.text(_SHA256, "a sha256 of 64 digits, as the refusal of the dry run names it")


def _command(value: _Value) -> tuple[str, ...]:
    """Words of the command that builds the image, run in a copy of the checkout."""
    words = value.raw
    if (
        not isinstance(words, list | tuple)
        or not words
        or not all(isinstance(word, str) and word and "\n" not in word for word in words)
    ):
        raise value.refuse("a list of words, such as [./scripts/prepare.sh, image]")
    return tuple(words)


def _settings(value: Callable[[str], _Value]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for suffix, (name, check) in _CHECKS.items():
        checked = check(value(suffix))
        if checked is not None:
            settings[name] = checked
    if int(settings["MAX_TOKENS"]) > int(settings["CONTEXT"]):
        limit = value("max_tokens")
        raise limit.refuse(f"no more than the context ({settings['CONTEXT']})")
    allowed = value("allow_max_effort")
    meant = not allowed.unset and allowed.flag() == "1"
    if settings["REASONING_EFFORT"] == "max" and not meant:
        raise value("reasoning_effort").refuse(
            f"high or less, since 'max' ends in thinking loops; whoever wants them sets "
            f"{allowed.label}: true"
        )
    return settings


def _named_values(value: _Value) -> dict[str, str]:
    """Settings of the recipe that have no variable of their own."""
    raw = {} if value.raw is None else value.raw
    if not isinstance(raw, Mapping):
        raise EngineSettingsError(f"{value.label} must be a mapping of NAME: value")
    known = {name: suffix for suffix, name in SETTINGS.items()} | {"API_KEY": "api_key"}
    known["WAIT_TIMEOUT"] = ""
    found: dict[str, str] = {}
    for name in sorted(raw, key=str):
        label = f"{value.label}.{name}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise EngineSettingsError(
                f"{label} cannot be written to local.sh: names there are capitals, digits and '_'"
            )
        own = known.get(name, _PASSED_STRAIGHT_ON.get(name))
        if own is not None:
            use = f"{PREFIX}{own}" if own else "ready_timeout of the server's catalogue entry"
            raise EngineSettingsError(f"{label} would be set twice: use {use} instead")
        if isinstance(raw[name], bool):
            found[name] = "1" if raw[name] else "0"
            continue
        if not isinstance(raw[name], str | int | float):
            raise EngineSettingsError(f"{label} must be a text or a number")
        text = str(raw[name])
        if any(ord(char) < 32 or ord(char) == 127 for char in text):
            raise EngineSettingsError(f"{label} must be on one line")
        found[name] = text
    return found


def local_sh_text(name: str, settings: Mapping[str, str]) -> str:
    """`scripts/local.sh` of a generation: bash, every value quoted, nothing expanded."""
    lines = [
        f"# Settings of the model server {name}, written by spark-pair. Edits made here are lost:",
        f"# set the {PREFIX}* variables and run the playbook with --tags service,cutover.",
        *(f"{key}={shlex.quote(value)}" for key, value in settings.items()),
    ]
    return "\n".join(lines) + "\n"


_LAUNCH = """\
#!/bin/sh
# launch [NAME=VALUE ...] SCRIPT [ARGUMENT ...]: runs a script of this generation's recipe.
#
# The environment is emptied first, because the recipe lets it win over scripts/local.sh: a PORT or
# HOST of a login shell, or a stale TF_DS_PREFILL_INTERLEAVE_MS, would reach the engine unseen.
# The real directory is entered, so that a link flipped meanwhile cannot mix two generations.
set -eu
cd "$(dirname "$(readlink -f "$0")")/recipe"
left=$#
script=
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    if [ -z "$script" ]; then
        case $word in
        [A-Z]*=*) ;;
        *)
            script=$word
            word=./$word
            ;;
        esac
    fi
    set -- "$@" "$word"
done
if [ -z "$script" ]; then
    echo "launch: name a script of the recipe, for example start.sh" >&2
    exit 2
fi
exec /usr/bin/env -i HOME=@HOME@ USER=@USER@ LOGNAME=@USER@ SHELL=/bin/bash \\
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
"""


def launch_text(place: Place) -> str:
    """The `launch` script of a generation, for the user that runs the recipe on the head."""
    return _LAUNCH.replace("@HOME@", shlex.quote(place.home)).replace(
        "@USER@", shlex.quote(place.user)
    )


def generation_hash(manifest: str, local_sh: str, launch: str) -> str:
    """Twelve hex digits that name a configuration; the same inputs give the same name anywhere.

    Everything that a generation holds is in it: what a newer version of this repository writes
    differently becomes another generation, never a change of one that serves.
    """
    material = json.dumps([manifest, local_sh, launch], ensure_ascii=True)
    return hashlib.sha256(material.encode("utf-8")).hexdigest()[:12]


def generation_text(
    server: str,
    *,
    url: str,
    commit: str,
    made_from: str,
    settings: Mapping[str, str],
    key_path: str | None,
    kit: engine_inputs.Kit | None = None,
    secrets: Collection[str] = (),
) -> str:
    """`generation.json`: deterministic, so that a second run can compare it byte for byte.

    `serves` tells how the server is reached while this generation runs, and how much it takes,
    whatever is wanted later. `key` is the file in which the engine finds its keys, or null. `kit`
    is what its image must hold; the kit's list lies in `folder` of its copy of the recipe.
    `settings` is what the dry run and the started ranks are compared with; of those that are
    `secrets` it has the names alone.
    """
    content = {
        "schema": 1,
        "server": server,
        "recipe_url": engine_inputs.without_secret(url),
        "commit": commit,
        "recipe": made_from,
        "image": settings["IMAGE"],
        "kit": {
            "folder": kit.folder,
            "in_image": kit.in_image,
            "manifest_sha256": kit.manifest_sha256,
            "files": kit.count,
        }
        if kit
        else None,
        "serves": {
            "port": int(settings["PORT"]),
            "model": settings["SERVED_NAME"],
            "context": int(settings["CONTEXT"]),
            "parallel": int(settings["PARALLEL"]),
            "round_rows": int(settings["ROUND_ROWS"]),
            "max_tokens": int(settings["MAX_TOKENS"]),
            "key": key_path,
        },
        "settings": {name: text for name, text in settings.items() if name not in secrets},
        "secret_settings": sorted(secrets),
    }
    return json.dumps(content, indent=2) + "\n"
