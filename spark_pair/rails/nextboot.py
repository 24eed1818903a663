"""What is configured for an interface at the next boot: its addresses and its MTU.

What was set by hand, or by nmcli into /run, is gone after a reboot. Only files that are read at
boot count: netplan's, merged as netplan does, NetworkManager's keyfiles, and systemd-networkd's,
as far as they bring the interface up by themselves. A file that cannot be read is named in
`unread`.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .netplan import Definition, Device, NetplanError, concerns, parse

NETPLAN = ("lib/netplan", "etc/netplan")
"""A file of the second hides one of the same name in the first."""

KEYFILES = "etc/NetworkManager/system-connections"
NETWORKD = "etc/systemd/network"
_NO = ("false", "no", "0")


@dataclass(frozen=True)
class Entry:
    """One profile of an interface that comes up by itself at boot."""

    addresses: Mapping[str, str]
    """Address with prefix -> the file, or files, that carry it."""
    mtu: int | None = None
    """None: the profile leaves it to the driver."""


def entries(name: str, mac: str | None, root: Path, unread: dict[str, str]) -> list[Entry]:
    """Every profile for an interface that the next boot will read."""
    driver = root / "sys/class/net" / name / "device/driver"
    device = Device(name, mac or "", driver.resolve().name if driver.exists() else "")
    found = _in_netplan(device, root, unread)
    for path, text in _texts(root, [(KEYFILES, "*")], unread):
        found += in_keyfile(text, device, path)
    for path, text in _texts(root, [(NETWORKD, "*.network")], unread):
        found += in_network_file(text, device, path)
    return found


def kept(known: Sequence[Entry], addresses: Sequence[str]) -> dict[str, str | None]:
    """Address -> words for the files that carry it; None when no file does.

    `addresses` have prefixes; link-local ones are not configured anywhere and are left out.
    """
    return {
        address: ", ".join(
            entry.addresses[address] for entry in known if address in entry.addresses
        )
        or None
        for address in addresses
        if not link_local(address)
    }


def mtu(known: Sequence[Entry], addresses: Sequence[str]) -> int | None:
    """The MTU of the profile that carries one of the addresses; None when it sets none."""
    found = [entry.mtu for entry in known if set(addresses) & set(entry.addresses)]
    return next((one for one in reversed(found) if one is not None), None)


def summary(addresses: Mapping[str, str | None]) -> str | None:
    """Words for an interface as a whole: None unless each of its addresses is in some file."""
    words = list(dict.fromkeys(addresses.values()))
    return ", ".join(map(str, words)) if words and None not in words else None


def link_local(address: str) -> bool:
    """Whether an address (with or without prefix) is one that nobody configured."""
    return ipaddress.ip_address(address.partition("/")[0]).is_link_local


def _texts(
    root: Path, places: Sequence[tuple[str, str]], unread: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Absolute path and text of each file; `places` are (folder, pattern)."""
    for folder, pattern in places:
        for path in sorted((root / folder).glob(pattern)):
            try:
                if path.is_file():
                    yield f"/{path.relative_to(root)}", path.read_text(errors="replace")
            except OSError as error:
                unread[f"/{path.relative_to(root)}"] = error.strerror or str(error)


@dataclass
class _Merged:
    """One entry of netplan, from all the files that speak of it."""

    body: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    """Address -> files that carry it."""


def _in_netplan(device: Device, root: Path, unread: dict[str, str]) -> list[Entry]:
    texts = list(_texts(root, [(folder, "*.yaml") for folder in NETPLAN], unread))
    read_last = {path.rpartition("/")[2]: (path, text) for path, text in texts}
    merged: dict[tuple[str, str], _Merged] = {}
    for _, (path, text) in sorted(read_last.items()):
        try:
            definitions = parse(text, path).definitions
        except NetplanError as error:
            unread[path] = str(error)
            continue
        except ImportError as error:
            unread[path] = f"this Python lacks what reads netplan's files ({error})"
            continue
        for one in definitions:
            whole = merged.setdefault((one.kind, one.name), _Merged())
            body = one.body if isinstance(one.body, dict) else {}
            whole.body = _merge(whole.body, body)
            for address in _addresses_of(body):
                whole.files.setdefault(address, []).append(path)
    return [
        Entry(
            {address: ", ".join(paths) for address, paths in whole.files.items()},
            _whole_number(whole.body.get("mtu")),
        )
        for (kind, name), whole in merged.items()
        if _comes_up(whole.body) and _is_about(Definition(kind, name, whole.body), device)
    ]


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two bodies of one entry, as netplan adds them up: lists grow, a later value wins."""
    result = dict(one)
    for key, value in other.items():
        was = result.get(key)
        if isinstance(was, dict) and isinstance(value, dict):
            result[key] = _merge(was, value)
        elif isinstance(was, list) and isinstance(value, list):
            result[key] = [*was, *value]
        else:
            result[key] = value
    return result


def _addresses_of(body: Mapping[str, Any]) -> list[str]:
    """Addresses of an entry; netplan takes {address: {lifetime: …}} for one as well."""
    given = body.get("addresses")
    found: list[str] = []
    for one in given if isinstance(given, list) else []:
        found += map(str, one) if isinstance(one, dict) else [str(one)]
    return found


def _passed_through(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an entry hands to NetworkManager as it is."""
    manager = body.get("networkmanager")
    through = manager.get("passthrough") if isinstance(manager, dict) else None
    return through if isinstance(through, dict) else {}


def _comes_up(body: Mapping[str, Any]) -> bool:
    """Whether a boot brings an entry up by itself."""
    auto = str(_passed_through(body).get("connection.autoconnect", "true")).casefold()
    return auto not in _NO and body.get("activation-mode") not in ("manual", "off")


def _is_about(definition: Definition, device: Device) -> bool:
    through = _passed_through(definition.body)
    return concerns(definition, device) or through.get("connection.interface-name") == device.name


def _whole_number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() else None


def in_keyfile(text: str, interface: Device, path: str) -> list[Entry]:
    """The profile that a keyfile of NetworkManager is for the interface, if it is one."""
    values = _values(text)
    if any((section, key) == ("connection", "autoconnect") and value.casefold() in _NO
           for section, key, value in values):  # fmt: skip
        return []
    names = [
        value
        for section, key, value in values
        if (section, key) in (("connection", "interface-name"), ("match", "interface-name"))
    ]
    macs = [value.casefold() for _, key, value in values if key == "mac-address"]
    ours = any(interface.name in re.split(r"[;\s]+", value) for value in names) or (
        interface.mac.casefold() in macs
    )
    given = [value for section, key, value in values
             if section == "ipv4" and re.fullmatch(r"address(es|\d*)", key)]  # fmt: skip
    mtus = [_whole_number(value) for section, key, value in values
            if (section, key) == ("ethernet", "mtu")]  # fmt: skip
    words = [word for value in given for word in re.split(r"[,;\s]+", value) if "/" in word]
    return [Entry(dict.fromkeys(words, path), mtus[-1] if mtus else None)] if ours else []


def in_network_file(text: str, interface: Device, path: str) -> list[Entry]:
    """The profile that a .network file of systemd-networkd is for the interface, if it is one."""
    values = _values(text)
    names = [word for section, key, value in values if (section, key) == ("match", "name")
             for word in value.split()]  # fmt: skip
    macs = [word.casefold() for section, key, value in values
            if (section, key) in (("match", "macaddress"), ("match", "permanentmacaddress"))
            for word in value.split()]  # fmt: skip
    ours = any(fnmatch.fnmatchcase(interface.name, pattern) for pattern in names) or (
        interface.mac.casefold() in macs
    )
    given = [value for section, key, value in values
             if section in ("network", "address") and key == "address"]  # fmt: skip
    mtus = [_whole_number(value) for section, key, value in values
            if (section, key) == ("link", "mtubytes")]  # fmt: skip
    return [Entry(dict.fromkeys(given, path), mtus[-1] if mtus else None)] if ours else []


def _values(text: str) -> list[tuple[str, str, str]]:
    """(section, key, value) of an ini file that may repeat sections and keys; names in lower case.

    configparser would drop what is repeated, and both formats repeat [Address] and Name=.
    """
    found, section = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].casefold()
        elif "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            found.append((section, key.strip().casefold(), value.strip()))
    return found
