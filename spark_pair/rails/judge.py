"""What the views of both hosts mean for the two rails between them. Pure.

A host that was not seen is left out of what can be said about one host, and makes what needs both
*unknown*. Before the network stage has run, what that stage will set is a warning; afterwards it
is a failure.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..description import ROLES, Role
from ..findings import Finding, Grade
from .nextboot import link_local

View = Mapping[str, Any]
Rail = Mapping[str, Any]
"""One entry of cx7_network_rails: interface and address ("192.0.2.1/24")."""

TITLES = {
    "rails_present": "interfaces",
    "rails_link": "link",
    "rails_pcie": "PCIe link",
    "rails_subnets": "subnets",
    "rails_addresses": "addresses",
    "rails_mtu": "MTU",
    "rails_path": "full frames to the peer",
    "rails_rdma": "RDMA and RoCE v2 GID",
    "rails_persistent": "configured in",
    "management_path": "managed over",
}
"""Id of a finding -> what is shown for it in a table."""

SSH_TITLES = {"rails_ssh": "ssh to the peer"}

MUST_BE_KNOWN = ("rails_mtu", "rails_path", "rails_rdma")
"""What the network stage has to prove: there, unknown is not enough to go on."""

RAILS = 2
PCIE_WIDTH = 4
PCIE_SPEED = 32.0
"""GT/s of a lane. Both are what each half of the adapter has on a Spark; what the adapter itself
could do elsewhere is more."""

DRIVER_MTU = 1500
_NO_KEY = re.compile(
    r"permission denied|host key verification failed|too many authentication", re.I
)
_NOT_TRIED = re.compile(r"^runuser: |: not found$|no such file or directory$", re.I)

_STAGE = "the network stage sets it (--tags network)"
_QUIET = (
    "run --tags network; while a model server runs it changes nothing unless "
    "cx7_network_allow_disruption is true"
)


def findings(
    pair: Mapping[Role, str],
    wanted: Mapping[Role, Sequence[Rail]],
    views: Mapping[Role, View | None],
    *,
    mtu: int | None,
    link_speed: int,
    unread: Mapping[Role, str] | None = None,
    allow_management_rail: bool = False,
    before_setup: bool = False,
    serving: bool = False,
) -> list[Finding]:
    """Judge the rails of a pair.

    `unread` maps the role of a host that answered without a view to the reason.
    `pair` maps role to host name, `wanted` role to cx7_network_rails, `views` role to the view of
    `look.look` (None or absent: not seen). `mtu` None: whatever it is, but equal everywhere.
    `link_speed` in Mb/s. With `before_setup`, what the network stage will set is a warning; with
    `serving`, so is what that stage leaves alone while a model server uses the rails.
    """
    case = _Case(
        [
            _Seat(
                role,
                pair[role],
                list(wanted.get(role) or ()),
                views.get(role),
                (unread or {}).get(role, ""),
            )
            for role in ROLES
            if role in pair
        ],
        mtu=mtu,
        link_speed=link_speed,
        allow_management_rail=allow_management_rail,
        before_setup=before_setup,
        serving=serving,
    )
    return [_judged(case, *rule) for rule in _RULES]


@dataclass(frozen=True)
class _Seat:
    """One host of the pair: what its rails should be and what was seen there."""

    role: Role
    host: str
    rails: Sequence[Rail]
    view: View | None
    why: str = ""
    """Why there is no view although the host answered."""

    def interface(self, name: str) -> View:
        """What was seen of an interface; {} when nothing was."""
        found: View = ((self.view or {}).get("interfaces") or {}).get(name) or {}
        return found

    def there(self) -> list[tuple[Rail, View]]:
        """Rails whose interface exists, each with what was seen of it."""
        pairs = [(rail, self.interface(rail["interface"])) for rail in self.rails]
        return [(rail, seen) for rail, seen in pairs if seen.get("present")]

    def unread(self, what: str) -> str | None:
        """Why something could not be read; None when it could."""
        why = ((self.view or {}).get("unread") or {}).get(what)
        return None if why is None else str(why)

    def lacks_address(self, rail: Rail) -> bool:
        """Whether the address of a rail is known not to be set."""
        name = rail["interface"]
        if self.view is None or self.unread(f"{name}/addresses"):
            return False
        return rail["address"] not in (self.interface(name).get("addresses") or ())


@dataclass(frozen=True)
class _Case:
    seats: Sequence[_Seat]
    mtu: int | None
    link_speed: int
    allow_management_rail: bool
    before_setup: bool
    serving: bool = False

    @property
    def unset(self) -> Grade:
        """Grade of what the network stage sets."""
        return Grade.WARN if self.before_setup else Grade.FAIL

    @property
    def remedy(self) -> str:
        """Who mends what the network stage sets."""
        return _STAGE if self.before_setup else _QUIET

    def seen(self) -> list[_Seat]:
        return [seat for seat in self.seats if seat.view is not None]

    def missing_peer(self, seat: _Seat) -> str | None:
        """Name of the other host when it was not seen: it may be off, and then no rail works."""
        unseen = [
            other.host
            for other in self.seats
            if other is not seat and other.view is None and not other.why
        ]
        return unseen[0] if unseen else None

    def facing(self, seat: _Seat, rail: Rail) -> tuple[_Seat, Rail] | None:
        """The other end of a rail: the entry in the same place of the other host's list."""
        place = list(seat.rails).index(rail)
        for other in self.seats:
            if other.role != seat.role and place < len(other.rails):
                return other, other.rails[place]
        return None


class _Sheet:
    """Cells and problems of one check while it is made."""

    def __init__(self) -> None:
        self.cells: dict[str, list[str]] = {}
        self.problems: list[tuple[Grade, str]] = []
        self.details: dict[str, Any] = {}

    def cell(self, seat: _Seat, words: str) -> None:
        """Add what was seen of a rail; what is the same for both is said once."""
        said = self.cells.setdefault(seat.host, [])
        if words not in said:
            said.append(words)

    def problem(self, grade: Grade, sentence: str) -> None:
        if (grade, sentence) not in self.problems:
            self.problems.append((grade, sentence))

    def grade(self) -> Grade:
        return min((grade for grade, _ in self.problems), key=_WORST.index, default=Grade.OK)

    def hint(self) -> str:
        """What is wrong, the worst first, in at most three sentences."""
        ordered = sorted(self.problems, key=lambda one: _WORST.index(one[0]))
        sentences = [sentence if sentence.endswith(".") else f"{sentence}."
                     for _, sentence in ordered]  # fmt: skip
        more = len(sentences) - 3
        return " ".join([*sentences[:3], *([f"And {more} more like these."] if more > 0 else [])])


_WORST = (Grade.FAIL, Grade.WARN, Grade.UNKNOWN, Grade.OK)
_Rule = Callable[[_Case, _Sheet], None]


def _judged(case: _Case, name: str, rule: _Rule, guards: tuple[int, ...], both: bool) -> Finding:
    sheet = _Sheet()
    rule(case, sheet)
    for seat in case.seats:
        if seat.view is None and seat.why:
            sheet.cells[seat.host] = ["unknown"]
            sheet.problem(Grade.UNKNOWN, f"The rails of {seat.host} could not be read: {seat.why}")
        elif seat.view is None and (both or not case.seen()):
            sheet.cells[seat.host] = ["not seen"]
            sheet.problem(Grade.UNKNOWN, f"{seat.host} was not seen: run again when it answers")
    return Finding(
        id=name,
        grade=sheet.grade(),
        measured={host: ", ".join(words) for host, words in sheet.cells.items()},
        hint=sheet.hint(),
        guards=guards,
        details=sheet.details,
    )


def _present(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seats:
        if len(seat.rails) != RAILS:
            _wrong_count(seat, sheet)
        if seat.view is None:
            continue
        names = [str(rail["interface"]) for rail in seat.rails]
        there = [str(rail["interface"]) for rail, _ in seat.there()]
        missing = [name for name in names if name not in there]
        functions = seat.view.get("pci_functions")
        ours = list(seat.view.get("cx7") or ())
        sheet.details[seat.host] = {"pci_functions": functions, "connectx": ours}
        if functions == []:
            sheet.cell(seat, "ConnectX-7 gone from PCI")
            sheet.problem(
                Grade.FAIL,
                f"The ConnectX-7 of {seat.host} is gone from the PCI bus; without a cable it "
                "switches itself off soon after boot. Put the cable in and reboot; never rescan "
                "the PCI bus, that can hang the machine; if it stays away, have the unit checked",
            )
            continue
        for name in missing:
            known = f"ConnectX-7 interfaces there: {', '.join(ours) or 'none'}"
            sheet.problem(
                Grade.FAIL,
                f"{seat.host} has no interface {name} ({known}): correct cx7_network_rails, or, if "
                "half of the card is missing, reboot with the cable in",
            )
        sheet.cell(seat, ", ".join([*there, *(f"{name} missing" for name in missing)]) or "none")
        _spare_ports(seat, names, sheet)


def _wrong_count(seat: _Seat, sheet: _Sheet) -> None:
    sheet.problem(
        Grade.FAIL,
        f"cx7_network_rails of {seat.host} has {len(seat.rails)} entries: list the two interfaces "
        "of the cabled port there, each with its address",
    )
    if seat.view is None:
        sheet.cell(seat, f"{len(seat.rails)} listed")


def _spare_ports(seat: _Seat, names: Sequence[str], sheet: _Sheet) -> None:
    spare = [
        name
        for name in (seat.view or {}).get("cx7") or ()
        if name not in names and seat.interface(name).get("carrier")
    ]
    if spare:
        sheet.problem(
            Grade.WARN,
            f"{seat.host} has more ConnectX-7 ports up than are used: {', '.join(spare)}. Only "
            f"{' and '.join(names)} are used; take out a cable that is not needed, or see that "
            "nothing else picks those ports",
        )


def _link(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seen():
        for rail, seen in seat.there():
            sheet.cell(seat, _link_of(case, seat, str(rail["interface"]), seen, sheet))


def _link_of(case: _Case, seat: _Seat, name: str, seen: View, sheet: _Sheet) -> str:
    at = f"{name} of {seat.host}"
    if seen.get("up") is False:
        sheet.problem(case.unset, f"{at} is switched off: {case.remedy}")
        return "switched off"
    if seen.get("carrier") is None:
        why = seat.unread(f"{name}/carrier") or "nothing was read"
        sheet.problem(Grade.UNKNOWN, f"Whether {at} has a link is not known: {why}")
        return "unknown"
    peer = case.missing_peer(seat)
    if not seen["carrier"] and peer:
        sheet.problem(
            Grade.UNKNOWN,
            f"{at} has no link, but {peer} was not seen: a machine that is off gives none",
        )
        return "no link"
    if not seen["carrier"]:
        sheet.problem(
            Grade.FAIL,
            f"{at} has no link: put the QSFP cable firmly into a port of both machines (with both "
            "on), then reboot both with the cable in",
        )
        return "no link"
    speed = seen.get("speed_mbps")
    if speed is None:
        why = seat.unread(f"{name}/speed") or "the driver does not say"
        sheet.problem(Grade.UNKNOWN, f"The speed of {at} is not known: {why}")
        return "up, speed unknown"
    if speed < case.link_speed:
        sheet.problem(
            Grade.FAIL,
            f"{at} links at {_gigabits(speed)} instead of {_gigabits(case.link_speed)}: use a "
            "cable made for that speed, or set cx7_network_link_speed to what yours can do",
        )
    return _gigabits(speed)


def _gigabits(megabits: int) -> str:
    return f"{megabits / 1000:g} Gb/s"


def _subnets(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seats:
        networks = [_network(rail["address"]) for rail in seat.rails]
        sheet.cell(seat, ", ".join(str(network or "not an address") for network in networks)
                   or "none listed")  # fmt: skip
        for rail, network in zip(seat.rails, networks, strict=True):
            if network is None:
                sheet.problem(
                    Grade.FAIL,
                    f"cx7_network_rails of {seat.host} gives {rail['interface']} the address "
                    f"{rail['address']!r}: write it as 192.0.2.1/24",
                )
        if _overlap(networks):
            sheet.problem(
                Grade.FAIL,
                f"Both rails of {seat.host} are in one subnet in cx7_network_rails: packets would "
                "leave by the wrong one. Give each rail a subnet of its own",
            )
        _twins_now(case, seat, sheet)
    if len(case.seats) == RAILS:
        _ends(case.seats[0], case.seats[1], sheet)


def _twins_now(case: _Case, seat: _Seat, sheet: _Sheet) -> None:
    """Whether both rails have addresses of one subnet right now."""
    held = [
        [_network(address) for address in seen.get("addresses") or () if not link_local(address)]
        for _, seen in seat.there()
    ]
    if any(_overlap(both) for both in itertools.product(*held) if len(both) == RAILS):
        sheet.cell(seat, "now both in one")
        sheet.problem(
            case.unset,
            f"Both rails of {seat.host} have addresses in one subnet now, so packets leave by the "
            f"wrong one: {case.remedy}",
        )


def _ends(head: _Seat, worker: _Seat, sheet: _Sheet) -> None:
    for mine, theirs in zip(head.rails, worker.rails, strict=False):
        here, there = _network(mine["address"]), _network(theirs["address"])
        both = f"{mine['interface']} of {head.host} and {theirs['interface']} of {worker.host}"
        if here is not None and there is not None and here != there:
            sheet.problem(
                Grade.FAIL,
                f"{both} are the two ends of a rail but in different subnets ({here}, {there}): "
                "list the rails of both hosts in one order, each rail in its own subnet",
            )
        elif here is not None and mine["address"] == theirs["address"]:
            sheet.problem(Grade.FAIL, f"{both} have the same address {mine['address']} in "
                          "cx7_network_rails: give each its own")  # fmt: skip


def _network(address: object) -> ipaddress.IPv4Network | None:
    text = str(address)
    try:
        return ipaddress.IPv4Interface(text).network if "/" in text else None
    except ValueError:
        return None


def _overlap(networks: Iterable[ipaddress.IPv4Network | None]) -> bool:
    known = [network for network in networks if network is not None]
    return any(one.overlaps(other) for one, other in itertools.combinations(known, 2))


def _addresses(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seen():
        for rail, seen in seat.there():
            name, held = str(rail["interface"]), list(seen.get("addresses") or ())
            why = seat.unread(f"{name}/addresses")
            if why:
                sheet.cell(seat, "unknown")
                sheet.problem(
                    Grade.UNKNOWN, f"The addresses of {name} of {seat.host} are not known: {why}"
                )
                continue
            sheet.cell(seat, " + ".join(held) or "none")
            _addresses_of(case, seat, rail, held, sheet)


def _addresses_of(case: _Case, seat: _Seat, rail: Rail, held: Sequence[str], sheet: _Sheet) -> None:
    at = f"{rail['interface']} of {seat.host}"
    if rail["address"] not in held:
        instead = f"has {' and '.join(held)}, not" if held else "has no address, not"
        sheet.problem(case.unset, f"{at} {instead} {rail['address']}: {case.remedy}")
    stray = [address for address in held if address != rail["address"]]
    own = [address for address in stray if link_local(address)]
    if own:
        works = case.serving and rail["address"] in held
        sheet.problem(
            Grade.WARN if works else case.unset,
            f"{at} has given itself {' and '.join(own)}, so GIDs differ between the ends and RDMA "
            f"connections can fail: {case.remedy}",
        )
    others = [address for address in stray if address not in own]
    if others and rail["address"] in held:
        sheet.problem(
            Grade.WARN,
            f"{at} has another address beside {rail['address']}: {' and '.join(others)}. Remove it "
            "unless you need it: whoever picks an address by itself may pick that one",
        )


def _mtu(case: _Case, sheet: _Sheet) -> None:
    values: dict[str, int] = {}
    for seat in case.seen():
        for rail, seen in seat.there():
            name, value = str(rail["interface"]), seen.get("mtu")
            sheet.cell(seat, str(value or "unknown"))
            if value is None:
                why = seat.unread(f"{name}/mtu") or "nothing was read"
                sheet.problem(
                    Grade.UNKNOWN, f"The MTU of {name} of {seat.host} is not known: {why}"
                )
            else:
                values[f"{name} of {seat.host}"] = value
    if case.mtu is not None:
        for at, value in values.items():
            if value != case.mtu:
                sheet.problem(case.unset, f"{at} has MTU {value}, not {case.mtu}: {case.remedy}")
    elif len(set(values.values())) > 1:
        listed = "; ".join(
            f"{value} on {', '.join(at for at, one in values.items() if one == value)}"
            for value in dict.fromkeys(values.values())
        )
        sheet.problem(
            Grade.FAIL,
            f"The MTU must be the same on both rails and both ends, but is {listed}: set "
            "cx7_network_mtu and run --tags network",
        )


def _path(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seen():
        for rail, _ in seat.there():
            sheet.cell(seat, _path_of(case, seat, rail, sheet))


def _path_of(case: _Case, seat: _Seat, rail: Rail, sheet: _Sheet) -> str:
    name = str(rail["interface"])
    path = (seat.view or {}).get("paths", {}).get(name)
    end = case.facing(seat, rail)
    unset = seat.lacks_address(rail) or (end is not None and end[0].lacks_address(end[1]))
    if path is None or path.get("sent") is None:
        why = (path or {}).get("error") or "it was not tried"
        grade = Grade.WARN if unset and case.before_setup else Grade.UNKNOWN
        sheet.problem(
            grade, f"Whether {seat.host} reaches its peer over {name} is not known: {why}"
        )
        return "not tried"
    sent, received, peer = path["sent"], path["received"], path["peer"]
    frames = f"full frames ({path['size']} bytes, not to be cut)"
    if sent and received == sent:
        return f"{received}/{sent}"
    if received:
        sheet.problem(
            Grade.WARN,
            f"{sent - received} of {sent} {frames} from {seat.host} to {peer} over {name} were "
            "lost: reseat the cable if it happens again",
        )
        return f"{received}/{sent}"
    if unset and case.before_setup:
        sheet.problem(Grade.WARN, f"{peer} does not answer {seat.host} over {name} yet: {_STAGE}")
        return "no answer"
    if case.missing_peer(seat):
        sheet.problem(
            Grade.UNKNOWN,
            f"{peer} does not answer {seat.host} over {name}, but {case.missing_peer(seat)} was "
            "not seen: it may be off",
        )
        return "no answer"
    error = f" ({path['error']})" if path.get("error") else ""
    sheet.problem(
        Grade.FAIL,
        f"{peer} does not answer {seat.host} over {name} with {frames}{error}{_other_way(end)}: "
        "compare subnets, addresses and MTU of both ends, and see that no firewall is in between",
    )
    return "no answer"


def _other_way(end: tuple[_Seat, Rail] | None) -> str:
    """What is known of the same rail from its other end."""
    if end is None or end[0].view is None:
        return ""
    back = end[0].view.get("paths", {}).get(end[1]["interface"]) or {}
    if back.get("sent") and back.get("received") == back["sent"]:
        return ", although the other direction works"
    return ""


def _rdma(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seen():
        for rail, seen in seat.there():
            sheet.cell(seat, _rdma_of(case, seat, rail, seen, sheet))
            sheet.details.setdefault(seat.host, {})[str(rail["interface"])] = {
                "device": seen.get("rdma"),
                "gids": dict(seen.get("gids") or {}),
                "counters": dict(seen.get("counters") or {}),
            }


def _rdma_of(case: _Case, seat: _Seat, rail: Rail, seen: View, sheet: _Sheet) -> str:
    name, device, state = str(rail["interface"]), seen.get("rdma"), seen.get("rdma_state")
    at = f"{name} of {seat.host}"
    if device is None:
        sheet.problem(
            Grade.FAIL,
            f"{at} has no RDMA device, so the ranks would fall back to slow sockets: load the "
            "driver (modprobe mlx5_ib), or reboot after an update of driver or kernel",
        )
        return "no RDMA device"
    if state is None:
        why = seat.unread(f"{name}/rdma_state") or "nothing was read"
        sheet.problem(Grade.UNKNOWN, f"The state of {device} of {seat.host} is not known: {why}")
        return f"{device} unknown"
    if state != "ACTIVE" and seen.get("up") is False:
        sheet.problem(
            case.unset, f"{device} is {state} because {at} is switched off: {case.remedy}"
        )
        return f"{device} {state}"
    if state != "ACTIVE":
        without_peer = case.missing_peer(seat) and seen.get("carrier") is False
        sheet.problem(
            Grade.UNKNOWN if without_peer else Grade.FAIL,
            f"{device} ({at}) is {state}, not ACTIVE: it needs a link; see rails_link, and reboot "
            "with the cable in if the link is there",
        )
        return f"{device} {state}"
    plain = str(rail["address"]).partition("/")[0]
    index = (seen.get("gids") or {}).get(plain)
    if index is not None:
        return f"{device} GID {index}"
    reason = seat.unread(f"{name}/gids") or seat.unread(f"{name}/addresses")
    if reason:
        sheet.problem(Grade.UNKNOWN, f"Whether {device} of {seat.host} has a RoCE v2 GID for "
                      f"{plain} is not known: {reason}")  # fmt: skip
    elif seat.lacks_address(rail):
        sheet.problem(
            case.unset,
            f"{device} of {seat.host} has no GID for {plain}, since {name} does not have that "
            f"address: {case.remedy}",
        )
    else:
        sheet.problem(
            Grade.FAIL,
            f"{device} of {seat.host} has no RoCE v2 GID for {plain} although {name} has that "
            "address: switch the interface off and on, or reboot",
        )
    return f"{device} no GID"


def _pcie(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seen():
        for rail, seen in seat.there():
            if seen.get("cx7"):
                sheet.cell(seat, _pcie_of(seat, str(rail["interface"]), seen, sheet))
            else:
                sheet.cell(seat, "no ConnectX-7")
                sheet.problem(
                    Grade.FAIL,
                    f"{rail['interface']} of {seat.host} is not a port of a ConnectX-7: correct "
                    "cx7_network_rails",
                )
        _one_endpoint(seat, sheet)


def _pcie_of(seat: _Seat, name: str, seen: View, sheet: _Sheet) -> str:
    width, speed = seen.get("pcie_width"), seen.get("pcie_speed")
    at = f"{name} of {seat.host}"
    for what, value in (("pcie_width", width), ("pcie_speed", speed)):
        if value is None:
            why = seat.unread(f"{name}/{what}") or "nothing was read"
            sheet.problem(Grade.UNKNOWN, f"The PCIe link of {at} is not known: {why}")
    narrow = width is not None and width < PCIE_WIDTH
    rate = re.match(r"[\d.]+(?= GT/s)", str(speed))
    if speed is not None and rate is None:
        sheet.problem(Grade.UNKNOWN, f"The PCIe link of {at} is not known: it says {speed!r}")
    slow = rate is not None and float(rate[0]) < PCIE_SPEED
    words = f"{str(speed or '?').removesuffix(' PCIe')} x{width or '?'}"
    if narrow or slow:
        sheet.problem(
            Grade.FAIL,
            f"The PCIe link of {at} runs at {words} instead of {PCIE_SPEED} GT/s x{PCIE_WIDTH}, "
            "which limits that rail: shut both machines down, take their power away for a minute "
            "and start them with the cable in; if it stays so, have the unit checked",
        )
    return words


def _one_endpoint(seat: _Seat, sheet: _Sheet) -> None:
    """Two ports of one PCIe function group share its four lanes; the twins of a port do not."""
    buses = [str(seen["pci"]).rpartition(".")[0] for _, seen in seat.there() if seen.get("pci")]
    if len(buses) == RAILS and len(set(buses)) == 1:
        sheet.problem(
            Grade.WARN,
            f"Both rails of {seat.host} are on one PCIe link ({buses[0]}) and share its bandwidth: "
            "use the two interfaces of one physical port, such as enp1s0f0np0 and enP2p1s0f0np0",
        )


def _persistent(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seen():
        unreadable = [
            f"{what}: {why}"
            for what, why in (seat.view or {}).get("unread", {}).items()
            if what.startswith("/")
        ]
        for rail, seen in seat.there():
            name = str(rail["interface"])
            words = _kept(seat, rail)
            sheet.cell(seat, str(words or ("unknown" if unreadable else "nowhere")))
            if words:
                _kept_mtu(case, seat, name, sheet)
            elif unreadable:
                sheet.problem(
                    Grade.UNKNOWN,
                    f"Where {name} of {seat.host} is configured for the next boot is not known "
                    f"({unreadable[0]})",
                )
            elif not [one for one in seen.get("addresses") or () if not link_local(one)]:
                sheet.problem(
                    Grade.WARN, f"{name} of {seat.host} has no address to keep: {case.remedy}"
                )
            else:
                sheet.problem(
                    Grade.WARN,
                    f"No file configures the address of {name} of {seat.host} for the next boot, "
                    f"so it is gone after one (what nmcli writes to /run is, too): {case.remedy}",
                )


def _kept_mtu(case: _Case, seat: _Seat, name: str, sheet: _Sheet) -> None:
    """Whether a boot brings back the MTU of a rail whose address some file configures."""
    view = seat.view or {}
    now = seat.interface(name).get("mtu")
    then = view.get("kept_mtu", {}).get(name) or DRIVER_MTU
    if now is not None and now != then:
        sheet.problem(
            Grade.WARN,
            f"{name} of {seat.host} has MTU {now} now and {then} after a boot: {case.remedy}",
        )


def _kept(seat: _Seat, rail: Rail) -> str | None:
    """Where the address of a rail is kept, whatever else the interface has for the moment."""
    view, name = seat.view or {}, rail["interface"]
    whole: str | None = view.get("persistent", {}).get(name)
    here: str | None = view.get("kept", {}).get(name, {}).get(rail["address"])
    return whole or here


def _management(case: _Case, sheet: _Sheet) -> None:
    for seat in case.seen():
        view = seat.view or {}
        found = view.get("management") or {}
        name = found.get("interface")
        if name is None:
            sheet.cell(seat, "unknown")
            sheet.problem(
                Grade.UNKNOWN,
                f"Which interface carries the management address of {seat.host} is not known: "
                f"{found.get('how') or 'it was not looked for'}",
            )
            continue
        sheet.details[seat.host] = dict(found)
        rail = name in [rail["interface"] for rail in seat.rails] or name in view.get("cx7", ())
        sheet.cell(seat, name + (" (a rail)" if rail else " (wireless)" if found.get("wireless")
                                 else ""))  # fmt: skip
        if rail and not case.allow_management_rail:
            sheet.problem(
                Grade.FAIL,
                f"{seat.host} is managed over {name}, a rail: a change there, or a lost link, cuts "
                "you off. Put the address of a wired port of its own into ansible_host, or set "
                "cx7_network_allow_management_rail to true",
            )
        elif found.get("wireless"):
            sheet.problem(
                Grade.WARN,
                f"{seat.host} is managed over wireless ({name}), which was seen to vanish under "
                "load: use a wired port",
            )


def ssh(
    pair: Mapping[Role, str],
    tried: Mapping[Role, Mapping[str, str] | None],
    *,
    before_setup: bool,
) -> Finding:
    """Judge the ways by which the servers' account gets from one machine to the other.

    `tried` maps role -> address of the peer -> what ssh said, "" where it got there. Keys that are
    missing are a warning, since a later stage makes and pins them; a way that is closed is none.
    """
    problems: list[tuple[Grade, str]] = []
    measured = {}
    for role, host in pair.items():
        ways = tried.get(role)
        if not ways:
            problems.append((Grade.UNKNOWN, f"No way from {host} to its peer was tried."))
            measured[host] = "not tried"
            continue
        closed = {address: words for address, words in ways.items() if words}
        measured[host] = f"{len(ways) - len(closed)} of {len(ways)} ways"
        problems += [_closed(host, *way, before_setup) for way in closed.items()]
    problems.sort(key=lambda one: _WORST.index(one[0]))
    return Finding(
        id="rails_ssh",
        grade=problems[0][0] if problems else Grade.OK,
        measured=measured,
        hint=problems[0][1] if problems else "",
        details={pair[role]: dict(ways or {}) for role, ways in tried.items()},
    )


def _closed(host: str, address: str, words: str, before_setup: bool) -> tuple[Grade, str]:
    """Grade and sentence for one way on which ssh failed with these words."""
    said = f"({words.rstrip('.')})"
    if _NO_KEY.search(words):
        return Grade.WARN, (
            f"The account of the servers does not get from {host} to {address} {said}: the service "
            "stage makes the keys, and refuses if a way stays closed."
        )
    if _NOT_TRIED.search(words):
        return Grade.UNKNOWN, f"Whether ssh gets from {host} to {address} is not known {said}."
    return Grade.WARN if before_setup else Grade.FAIL, (
        f"ssh does not get from {host} to {address} {said}, whatever its keys: look at sshd and "
        "the firewall of the other machine, and at ansible_port if it listens elsewhere."
    )


_RULES: tuple[tuple[str, _Rule, tuple[int, ...], bool], ...] = (
    ("rails_present", _present, (16, 31), False),
    ("rails_link", _link, (), False),
    ("rails_pcie", _pcie, (), False),
    ("rails_subnets", _subnets, (20,), True),
    ("rails_addresses", _addresses, (10, 20), False),
    ("rails_mtu", _mtu, (20,), True),
    ("rails_path", _path, (10, 20), True),
    ("rails_rdma", _rdma, (4,), False),
    ("rails_persistent", _persistent, (10,), False),
    ("management_path", _management, (21,), False),
)
"""Id, rule, faults it guards against, and whether it needs both hosts. In the order in which one
needs the other."""

GUARDS = {name: guards for name, _, guards, _ in _RULES}
"""Id of a finding -> faults that it guards against."""
