"""netplan's files: what they configure, which of them give way, and what the rails' file says.

A file is replaced only when all that it configures are interfaces of the ConnectX-7. netplan reads
every file and merges them, so two files about one interface would add up to neither.
"""

from __future__ import annotations

import fnmatch
import json
import re
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..system import Runner
from .wanted import Wanted

FOLDERS = ("lib/netplan", "etc/netplan", "run/netplan")
"""In the order in which a later file of the same name hides an earlier one."""

PRIORITY = "999"
"""The highest that NetworkManager knows: its own automatic profiles must not get the port."""

_GLOBAL = ("version", "renderer")
GENERATOR = "usr/libexec/netplan/generate"
"""What `netplan generate` runs. The command itself also reloads systemd, which then generates this
host's own files anew, whatever copy it was asked about."""

_GENERATED = ("run/systemd/network", "run/NetworkManager/system-connections")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""netplan makes up a new one each time for profiles that speak of each other."""


class NetplanError(Exception):
    """A file cannot be understood or netplan refuses; the message says which and why."""


@dataclass(frozen=True)
class Definition:
    """One entry of a file, for example ("ethernets", "enp1s0f0np0")."""

    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class NetplanFile:
    """One file, by its absolute path on the host."""

    path: str
    text: str
    renderer: str | None = None
    """The renderer that it sets for everybody."""
    definitions: tuple[Definition, ...] = ()


@dataclass(frozen=True)
class Device:
    """What a `match:` is compared with."""

    name: str
    mac: str = ""
    driver: str = ""


@dataclass(frozen=True)
class Migration:
    """Which files give way to the rails' file, and why that may not be done."""

    replaced: tuple[NetplanFile, ...] = ()
    refusals: tuple[str, ...] = ()
    renderer: str | None = None
    """A renderer for everybody that one of the replaced files sets, and that has to stay."""


@dataclass(frozen=True)
class Ours:
    """The content of the rails' file."""

    interfaces: Mapping[str, str] = field(default_factory=dict)
    """Interface -> address with prefix."""
    renderer: str = "networkd"
    mtus: Mapping[str, int] = field(default_factory=dict)
    """Interface -> MTU; one that is left out gets none, which is the driver's own."""
    common_renderer: str | None = None
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Interface -> addresses that somebody else has configured there, and that stay."""

    def addresses(self, interface: str) -> list[str]:
        """Every address of an interface, its own one first."""
        return [self.interfaces[interface], *self.also.get(interface, ())]


def parse(text: str, path: str = "") -> NetplanFile:
    """Parse one file; raises NetplanError in words. Needs PyYAML, which netplan brings along."""
    import yaml  # noqa: PLC0415 - only where netplan is

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
        raise NetplanError(f"{path} is not YAML ({words})") from error
    network = (data or {}).get("network") if isinstance(data or {}, dict) else None
    if data and not isinstance(network, dict):
        raise NetplanError(f"{path} has no mapping called network")
    definitions = []
    for kind, entries in (network or {}).items():
        if kind in _GLOBAL:
            continue
        if not isinstance(entries, dict):
            raise NetplanError(f"{path}: {kind} is not a mapping")
        for name, body in entries.items():
            definitions.append(Definition(str(kind), str(name), body or {}))
    renderer = (network or {}).get("renderer")
    return NetplanFile(path, text, renderer and str(renderer), tuple(definitions))


def read_texts(root: Path = Path("/")) -> dict[str, str]:
    """Every file that netplan would read, by absolute path. Raises NetplanError if one cannot."""
    paths = {path.name: path for folder in FOLDERS for path in (root / folder).glob("*.yaml")}
    found = {}
    for _, path in sorted(paths.items()):
        name = f"/{path.relative_to(root)}"
        try:
            found[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NetplanError(f"{name} cannot be read: {error}") from error
    return found


def render(ours: Ours) -> str:
    """The rails' file."""
    lines = [
        "# Written by spark-pair (role cx7_network): the two interfaces of the cabled ConnectX-7",
        "# port, each in a subnet of its own. Changes belong into the inventory.",
        "network:",
        "  version: 2",
    ]
    if ours.common_renderer:
        lines.append(f"  renderer: {ours.common_renderer}")
    lines.append("  ethernets:")
    for name in ours.interfaces:
        lines += [
            # Quoted: a name may look like a number.
            f"    {json.dumps(name)}:",
            f"      renderer: {ours.renderer}",
            f"      addresses: {json.dumps(ours.addresses(name))}",
            "      dhcp4: false",
            "      dhcp6: false",
            "      link-local: []",
            "      accept-ra: false",
            "      optional: true",
        ]
        if name in ours.mtus:
            lines.append(f"      mtu: {ours.mtus[name]}")
        if ours.renderer == "NetworkManager":
            lines += [
                "      networkmanager:",
                "        passthrough:",
                f"          connection.autoconnect-priority: {json.dumps(PRIORITY)}",
            ]
    return "\n".join(lines) + "\n"


def body_of(ours: Ours, interface: str) -> dict[str, Any]:
    """What the merged configuration must say about one interface, as data."""
    body: dict[str, Any] = {
        "renderer": ours.renderer,
        "addresses": ours.addresses(interface),
        "dhcp4": False,
        "dhcp6": False,
        "link-local": [],
        "accept-ra": False,
        "optional": True,
    }
    if interface in ours.mtus:
        body["mtu"] = ours.mtus[interface]
    if ours.renderer == "NetworkManager":
        body["networkmanager"] = {"passthrough": {"connection.autoconnect-priority": PRIORITY}}
    return body


def concerns(definition: Definition, device: Device) -> bool:
    """Whether an entry configures a device, by its name or by what it matches."""
    match = definition.body.get("match") if isinstance(definition.body, Mapping) else None
    if not isinstance(match, Mapping) or not match:
        return definition.name == device.name
    if device.name in (definition.name, definition.body.get("set-name")):
        return True
    conditions = []
    if "name" in match:
        conditions.append(fnmatch.fnmatchcase(device.name, str(match["name"])))
    if "macaddress" in match:
        conditions.append(str(match["macaddress"]).lower() == device.mac.lower())
    if "driver" in match:
        drivers = match["driver"] if isinstance(match["driver"], list) else [match["driver"]]
        conditions.append(any(fnmatch.fnmatchcase(device.driver, str(one)) for one in drivers))
    return bool(conditions) and all(conditions)


def migration(
    files: Iterable[NetplanFile],
    target: str,
    rails: Collection[str],
    ours: Collection[str],
    devices: Sequence[Device],
) -> Migration:
    """Which files the rails' file replaces.

    `rails` are the interfaces that get configured, `ours` all interfaces of the ConnectX-7,
    `devices` every interface of the host. A file that also configures anything else is never
    replaced, whatever the inventory calls a rail: it is refused, with the words what to take out
    of it.
    """
    mine = set(ours)
    known = [device for device in devices if device.name not in mine]
    cx7 = [device for device in devices if device.name in mine]
    absent = [Device(name) for name in mine if name not in {device.name for device in devices}]
    replaced, refusals = [], []
    for file in files:
        about_rails, foreign = [], []
        for one in file.definitions:
            touches = [device.name for device in (*cx7, *absent) if concerns(one, device)]
            others = [device.name for device in known if concerns(one, device)]
            if {*touches, *others} & set(rails):
                about_rails.append(one)
            if others or not touches or one.kind != "ethernets":
                foreign.append(one)
        if not about_rails and file.path != target:
            continue
        if foreign:
            refusals.append(_take_out(file, about_rails, foreign, target))
        elif not file.path.startswith("/etc/netplan/"):
            refusals.append(
                f"{file.path} configures {_names(about_rails)} and is not the operator's to edit: "
                "find out who writes it and have that stopped"
            )
        elif not file.definitions and file.renderer is not None:
            refusals.append(
                f"{file.path} sets the renderer of the whole machine and would be replaced: give "
                "cx7_network_file another name"
            )
        else:
            replaced.append(file)
    renderers = [file.renderer for file in replaced if file.renderer]
    return Migration(tuple(replaced), tuple(refusals), renderers[-1] if renderers else None)


def _take_out(
    file: NetplanFile,
    about_rails: Sequence[Definition],
    foreign: Sequence[Definition],
    target: str,
) -> str:
    mixed = [one for one in foreign if one in about_rails]
    if mixed:
        return (
            f"{file.path}: the entry {_names(mixed)} configures a rail together with something "
            "else, so it cannot be replaced: have it match only what is not a rail"
        )
    if not about_rails:
        return (
            f"{file.path} is to hold the rails (cx7_network_file), but it configures "
            f"{_names(foreign)}: move that to another file, or give cx7_network_file another name"
        )
    return (
        f"{file.path} configures {_names(foreign)} besides the rails, so it is not replaced by "
        f"{target}: take {_names(about_rails)} out of it and run again"
    )


def _names(definitions: Sequence[Definition]) -> str:
    return ", ".join(f"{one.kind}.{one.name}" for one in definitions)


def content(
    wanted: Wanted,
    renderer: str,
    moved: Migration,
    mtus: Mapping[str, int],
    also: Mapping[str, Sequence[str]],
) -> Ours:
    """What the rails' file of a host shall say; `mtus` and `also` as in `Ours`."""
    return Ours(
        {rail.interface: rail.address for rail in wanted.rails},
        renderer,
        mtus,
        moved.renderer,
        also,
    )


def check_merged(
    files: Mapping[str, str],
    writes: Mapping[str, str],
    removes: Collection[str],
    given_up: Collection[tuple[str, str]],
    *,
    ours: Ours,
    runner: Runner,
    root: Path = Path("/"),
) -> list[str]:
    """Let netplan itself generate and merge a copy; what differs from what is wanted, in words.

    Nothing outside a temporary directory is touched. Everything that is not about the rails must
    come out as it does today, but for `given_up`, the entries (kind, name) of replaced files; and
    what is there today must be in force already, since activating the rails has the renderer read
    everything again.
    """
    about_rails = {*ours.interfaces, *(name for _, name in given_up)}
    try:
        now = generated(root)
    except NetplanError as error:
        return [str(error)]
    own = root / GENERATOR
    generate = [str(own)] if own.exists() else ["netplan", "generate"]
    with tempfile.TemporaryDirectory(prefix="spark-pair-netplan-") as folder:
        before, after = Path(folder, "before"), Path(folder, "after")
        _lay_out(before, files)
        _lay_out(after, {**{k: v for k, v in files.items() if k not in removes}, **writes})
        for copy, which in ((after, "new"), (before, "present")):
            said = runner([*generate, "--root-dir", str(copy)], 60)
            if not said.ok:
                why = said.last_words()
                return [f"netplan would refuse the {which} configuration: {why}"]
        try:
            found = differences(_merged(before, runner), _merged(after, runner), ours, given_up)
            return [*unapplied(generated(before), now, about_rails), *found]
        except NetplanError as error:
            return [str(error)]


def unapplied(
    new: Mapping[str, str], now: Mapping[str, str], about_rails: Collection[str]
) -> list[str]:
    """What netplan's files say but was not generated for the renderers yet, a sentence each.

    `new` is what netplan generates from the files of today, `now` what the host has, both path ->
    text; `about_rails` are the names of entries that may differ. What was generated but not
    activated (a reload of systemd does that) cannot be seen here.
    """
    return [
        f"an unapplied change of {name} would be activated too: apply or undo it first (sudo "
        "netplan try), then run again"
        for name in sorted({*new, *now})
        if new.get(name) != now.get(name) and not _is_of(name, about_rails)
    ]


def generated(root: Path) -> dict[str, str]:
    """What netplan has generated for the renderers: absolute path -> text without its UUIDs."""
    found = {}
    for folder in _GENERATED:
        for pattern in ("10-netplan-*", "netplan-*"):
            for path in sorted((root / folder).glob(pattern)):
                try:
                    text = path.read_text(encoding="utf-8", errors="replace")
                except OSError as error:
                    raise NetplanError(f"{path} cannot be read: {error}") from error
                found[f"/{path.relative_to(root)}"] = _UUID.sub("", text)
    return found


def _is_of(path: str, names: Collection[str]) -> bool:
    """Whether a generated file belongs to one of netplan's entries."""
    file = path.rpartition("/")[2].removeprefix("10-").removeprefix("netplan-")
    return any(file.startswith(f"{name}.") for name in names)


def differences(
    before: NetplanFile,
    after: NetplanFile,
    ours: Ours,
    given_up: Collection[tuple[str, str]] = (),
) -> list[str]:
    """What the merged configuration `after` says that it should not. Pure."""
    found = []
    rest = {(one.kind, one.name): one.body for one in after.definitions}
    for name in ours.interfaces:
        body = rest.pop(("ethernets", name), None)
        if body != body_of(ours, name):
            found.append(f"the merged configuration of {name} would be {body!r}")
    was = {(one.kind, one.name): one.body for one in before.definitions}
    stays = {key: body for key, body in was.items() if key not in given_up}
    for name in ours.interfaces:
        stays.pop(("ethernets", name), None)
    for key in sorted({*rest, *stays}):
        if rest.get(key) != stays.get(key):
            found.append(f"the configuration of {'.'.join(key)} would change")
    if before.renderer != after.renderer:
        found.append(
            f"the renderer of the whole machine would change from {before.renderer or 'none'} to "
            f"{after.renderer or 'none'}"
        )
    return found


def _lay_out(root: Path, files: Mapping[str, str]) -> None:
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True)
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")


def _merged(root: Path, runner: Runner) -> NetplanFile:
    said = runner(["netplan", "get", "--root-dir", str(root)], 60)
    if not said.ok:
        raise NetplanError(f"netplan cannot merge the configuration: {said.last_words()}")
    return parse(said.out, "the merged configuration")
