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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import paths
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
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
_UNIT = re.compile(r"[A-Za-z0-9:_.@-]+\.service")
_LINK = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SSH_TARGET = re.compile(r"[a-z_][a-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.:-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]*")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

_PASSED_STRAIGHT_ON = {
    "TF_DS_PREFILL_INTERLEAVE_MS": "prefill_interleave_ms",
    "TF_DS_ROUND_ROWS": "round_rows",
    "TF_DS_GRAPHS": "graphs",
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
    image: str | None
    api_key: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a playbook."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__}


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

    def flag(self) -> str:
        words = {"0": "0", "1": "1", "false": "0", "true": "1", "no": "0", "yes": "1"}
        if isinstance(self.raw, bool | int | str) and str(self.raw).lower() in words:
            return words[str(self.raw).lower()]
        raise self.refuse("0 or 1")

    def path(self) -> str:
        rule = "an absolute path, written out (no '~' and no '$HOME': it is passed on as it is)"
        value = self.text(None, rule)
        if not value.startswith("/") or "$" in value or ".." in value.split("/"):
            raise self.refuse(rule)
        return value


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
        raise value.refuse(f"one of {', '.join(_EFFORTS)} ('max' ends in thinking loops)")
    return str(value.raw)


def _optional(check: Callable[[_Value], str]) -> Callable[[_Value], str | None]:
    return lambda value: None if value.raw in (None, "") else check(value)


_CHECKS: dict[str, tuple[str, Callable[[_Value], str | None]]] = {
    "worker": ("WORKER", lambda v: v.text(_SSH_TARGET, "user@address of the worker")),
    "fabric_peer": (
        "FABRIC_PEER",
        lambda v: v.text(_ADDRESS, "the worker's address on the direct link"),
    ),
    "ablit": ("ABLIT", _Value.flag),
    "prepare": ("PREPARE", _prepare),
    "context": ("CONTEXT", lambda v: v.integer(2048, MAX_CONTEXT)),
    "parallel": ("PARALLEL", lambda v: v.integer(*PARALLEL)),
    "round_rows": ("ROUND_ROWS", lambda v: v.integer(*ROUND_ROWS)),
    "graphs": ("GRAPHS", _Value.flag),
    "prefill_interleave_ms": (
        "PREFILL_INTERLEAVE_MS",
        _optional(lambda v: v.integer(0, 60_000, " (milliseconds)")),
    ),
    "thinking": ("THINKING", _Value.flag),
    "reasoning_effort": ("REASONING_EFFORT", _effort),
    "max_tokens": ("MAX_TOKENS", lambda v: v.integer(1, MAX_CONTEXT)),
    "host": ("HOST", lambda v: v.text(_ADDRESS, "an address to listen on")),
    "port": ("PORT", lambda v: v.integer(1, 65_535)),
    "served_name": ("SERVED_NAME", lambda v: v.text(None, "the model name that clients use")),
    "api_key": ("API_KEY", _Value.flag),
    "image": ("IMAGE", _optional(lambda v: v.text(re.compile(r"\S+"), "an image reference"))),
    "state_dir": ("STATE_DIR", _Value.path),
    "nfs_volume": ("NFS_VOLUME", _Value.path),
    "memguard_remote_dir": ("MEMGUARD_REMOTE_DIR", _Value.path),
    "worker_engram_dir": ("WORKER_ENGRAM_DIR", _Value.path),
}

SETTINGS: Mapping[str, str] = {suffix: name for suffix, (name, _) in _CHECKS.items()}
"""Variable suffix -> name in local.sh, for every setting that has a variable of its own."""

_OTHERS = ("recipe_url", "recipe_commit", "extra_settings", "secret_settings")
ENTRY_KEYS = ("unit", "link", *_OTHERS, *SETTINGS)
"""Keys of an entry of tensorfold_service_engines; all but `unit` fall back to the variables."""


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
        raw = variables.get(f"{PREFIX}{suffix}")
        return _Value(f"{PREFIX}{suffix}", derived.get(suffix) if raw in (None, "") else raw)

    derived["worker_engram_dir"] = f"{value('nfs_volume').path()}/hub/{ENGRAM_SNAPSHOT}"

    commit = _commit(value("recipe_commit"))
    url = value("recipe_url").text(
        re.compile(r"[^\s-]\S*"), "the address of the recipe's repository"
    )
    settings = _settings(value)
    settings["WAIT_TIMEOUT"] = str(int(ready_timeout))
    extra = _named_values(value("extra_settings"))
    secrets = _named_values(value("secret_settings"))
    for names in (extra, secrets):
        settings.update(names)

    launch = launch_text(place)
    local_sh = local_sh_text(name, settings)
    manifest = generation_text(name, url=url, commit=commit, settings=settings)
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
        checkout=str(paths.VAR / "recipes" / f"{name}-{commit[:12]}"),
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
        image=settings.get("IMAGE"),
        api_key=settings["API_KEY"] == "1",
    )


def _commit(value: _Value) -> str:
    if value.raw in (None, ""):
        raise EngineSettingsError(
            f"{value.label} is not set: it names the commit of the recipe that your pair runs. On "
            "the head, 'git -C ~/dsv41 rev-parse HEAD' prints it for a checkout made by hand"
        )
    return value.text(
        _COMMIT, "a whole commit id (40 characters, as 'git -C ~/dsv41 rev-parse HEAD' prints it)"
    )


def _settings(value: Callable[[str], _Value]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for suffix, (name, check) in _CHECKS.items():
        checked = check(value(suffix))
        if checked is not None:
            settings[name] = checked
    if int(settings["MAX_TOKENS"]) > int(settings["CONTEXT"]):
        limit = value("max_tokens")
        raise limit.refuse(f"no more than the context ({settings['CONTEXT']})")
    return settings


def _named_values(value: _Value) -> dict[str, str]:
    """Settings of the recipe that have no variable of their own."""
    raw = {} if value.raw is None else value.raw
    if not isinstance(raw, Mapping):
        raise EngineSettingsError(f"{value.label} must be a mapping of NAME: value")
    known = {name: suffix for suffix, name in SETTINGS.items()}
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


def generation_text(server: str, *, url: str, commit: str, settings: Mapping[str, str]) -> str:
    """`generation.json`: deterministic, so that a second run can compare it byte for byte.

    `serves` tells how the server is reached while this generation runs, whatever is wanted later.
    """
    content = {
        "schema": 1,
        "server": server,
        "recipe_url": url,
        "commit": commit,
        "serves": {
            "port": int(settings["PORT"]),
            "model": settings["SERVED_NAME"],
            "context": int(settings["CONTEXT"]),
        },
    }
    return json.dumps(content, indent=2) + "\n"
