"""What has to change on a host so that its rails are as wanted, and whether a pair may change.

`make` looks at one host and runs there. Everything else is pure and runs on the controller, with
what both hosts have told.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..description import ROLES, PairDescription, Role
from ..paths import SWITCH_UNIT
from ..system import Runner
from ..verdict import State, presence
from . import job, netplan
from .nextboot import link_local
from .wanted import Rail, Wanted

View = Mapping[str, Any]
Plan = dict[str, Any]

WORKING = "working"
"""As wanted, now and after a boot."""
FLEETING = "fleeting"
"""It works now, but a boot does not bring it back, or it has given itself addresses besides."""
DIFFERENT = "different"

ADOPT, CONFIGURE = "adopt", "configure"

EARLIER_GRACE_SECONDS = 90
"""How long a change may take to be put back once its time is over."""

LONGEST_CONFIRM_SECONDS = 3600
DRIVER_MTU = 1500
"""MTU of an interface for which no file sets one."""

NVIDIA = "0x10de"
"""PCI vendor of the GPU."""

SPARK_PORTS = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1")
"""The ConnectX-7's interfaces on a Spark. NVIDIA's older files name them whether or not they are
there: without a cable they are not."""


# ---- one host


def differences(wanted: Wanted, view: View) -> list[str]:
    """What of a host's rails is not as wanted right now, in words."""
    return [words for rail in wanted.rails for words in _rail_differences(rail, wanted, view)]


def _rail_differences(rail: Rail, wanted: Wanted, view: View) -> list[str]:
    seen = view["interfaces"].get(rail.interface) or {}
    if not seen.get("present"):
        return [f"{rail.interface} is missing"]
    unread = _unread(rail, view)
    if unread:
        return unread
    found = []
    has = list(seen["addresses"])
    if rail.address not in has:
        found.append(f"{rail.interface} gets {rail.address} (now {', '.join(has) or 'none'})")
    if not seen["carrier"]:
        found.append(f"{rail.interface} has no carrier")
    if wanted.mtu is not None and seen["mtu"] != wanted.mtu:
        found.append(f"{rail.interface} gets MTU {wanted.mtu} (now {seen['mtu']})")
    return found


def _unread(rail: Rail, view: View) -> list[str]:
    """What of a rail could not be read, in words: never taken for "none"."""
    return [
        f"{what} of {rail.interface} cannot be read ({view['unread'][key]})"
        for what in ("addresses", "carrier", "mtu")
        if (key := f"{rail.interface}/{what}") in view["unread"]
    ]


def _unfinished(rail: Rail, view: View) -> list[str]:
    """What a working rail still lacks to stay as it is, in words."""
    seen, name = view["interfaces"][rail.interface], rail.interface
    found = []
    in_files = view.get("kept", {}).get(name, {}).get(rail.address)
    if not (view["persistent"].get(name) or in_files):
        found.append(f"{name} is configured for the next boot")
    elif (view["kept_mtu"].get(name) or DRIVER_MTU) != seen["mtu"]:
        found.append(f"{name} keeps its MTU {seen['mtu']} for the next boot")
    own = [address for address in seen["addresses"] if link_local(address)]
    if own:
        found.append(f"{name} loses {', '.join(own)}, which it has given itself")
    return found


def _others(rail: Rail, view: View) -> tuple[list[str], list[str]]:
    """Other addresses beside a rail's own: those in some file stay, the rest cannot.

    Without its own address a rail is somebody's former configuration, which a change replaces.
    """
    has = list((view["interfaces"].get(rail.interface) or {}).get("addresses", ()))
    if rail.address not in has:
        return [], []
    others = [one for one in has if one != rail.address and not link_local(one)]
    kept = view.get("kept", {}).get(rail.interface, {})
    return [one for one in others if kept.get(one)], [one for one in others if not kept.get(one)]


def make(wanted: Wanted, view: View, *, runner: Runner, root: Path = Path("/")) -> Plan:
    """Compare one host with what is wanted and prepare the change, if there is one.

    The result is plain data: state, changes, loses, refusals, renderer, writes, removes, expect,
    before, activates, interfaces {name: {address, mtu, keeps}}. Reads only; netplan works on a
    copy.
    """
    changes = differences(wanted, view)
    there = [
        rail
        for rail in wanted.rails
        if (view["interfaces"].get(rail.interface) or {}).get("present")
    ]
    unread = [words for rail in there for words in _unread(rail, view)]
    later = [] if unread else [words for rail in there for words in _unfinished(rail, view)]
    plan: Plan = {
        "state": DIFFERENT if changes else FLEETING if later else WORKING,
        "changes": [*changes, *later],
        "loses": [
            f"{address} of {rail.interface}" for rail in there for address in _others(rail, view)[1]
        ],
        "refusals": unread,
        "renderer": None,
        "writes": [],
        "removes": [],
        "expect": {},
        "before": {},
        "activates": [],
        "interfaces": {},
    }
    if plan["state"] != WORKING and not unread and len(there) == len(wanted.rails):
        _prepare(plan, wanted, view, runner, root)
    return plan


def _prepare(plan: Plan, wanted: Wanted, view: View, runner: Runner, root: Path) -> None:
    """Add to a plan what would be written, or why it cannot be."""
    renderer, why = _renderer(wanted, view, runner)
    if renderer is None:
        plan["refusals"].append(why)
        return
    if not runner(["sh", "-c", "command -v netplan"], 10).ok:
        plan["refusals"].append("netplan is not installed (package netplan.io)")
        return
    try:
        texts = netplan.read_texts(root)
        files = [netplan.parse(text, path) for path, text in texts.items()]
    except netplan.NetplanError as error:
        plan["refusals"].append(str(error))
        return
    present = devices(root)
    absent = set(SPARK_PORTS) - {device.name for device in present}
    moved = netplan.migration(
        files,
        wanted.file,
        [rail.interface for rail in wanted.rails],
        {*view["cx7"], *absent},
        present,
    )
    links = [
        f"{name} is a link, which could not be put back as it was: put a file in its place"
        for name in sorted({wanted.file, *(file.path for file in moved.replaced)})
        if (root / name.lstrip("/")).is_symlink()
    ]
    if moved.refusals or links:
        plan["refusals"] += [*moved.refusals, *links]
        return
    # Left alone means kept as it is: also where the file that sets it gives way.
    mtus = {
        rail.interface: wanted.mtu or view["interfaces"][rail.interface]["mtu"]
        for rail in wanted.rails
    }
    also = {rail.interface: _others(rail, view)[0] for rail in wanted.rails}
    written = {name: mtu for name, mtu in mtus.items() if wanted.mtu or mtu != DRIVER_MTU}
    ours = netplan.content(wanted, renderer, moved, written, also)
    text = netplan.render(ours)
    removes = [file.path for file in moved.replaced if file.path != wanted.file]
    given_up = [(one.kind, one.name) for file in moved.replaced for one in file.definitions]
    plan["refusals"] += netplan.check_merged(
        texts, {wanted.file: text}, removes, given_up, ours=ours, runner=runner, root=root
    )
    before = {file.path: file.text for file in moved.replaced}
    plan["renderer"] = renderer
    plan["writes"] = [{"path": wanted.file, "content": text, "mode": 0o600}]
    plan["removes"] = removes
    plan["before"] = before
    plan["expect"] = {
        path: job.digest(before[path].encode()) if path in before else None
        for path in [wanted.file, *removes]
    }
    plan["activates"] = list(ours.interfaces)
    plan["interfaces"] = {
        rail.interface: {
            "address": rail.address,
            "mtu": mtus[rail.interface],
            "keeps": also[rail.interface],
        }
        for rail in wanted.rails
    }


def _renderer(wanted: Wanted, view: View, runner: Runner) -> tuple[str | None, str]:
    if not wanted.renderer:
        return view["renderer"], (
            f"nobody would bring the rails up: {view['renderer_why']}. Start NetworkManager or "
            "systemd-networkd there, or name one in cx7_network_renderer"
        )
    unit = {"NetworkManager": "NetworkManager", "networkd": "systemd-networkd"}[wanted.renderer]
    if runner(["systemctl", "is-active", "--quiet", f"{unit}.service"], 15).ok:
        return wanted.renderer, ""
    return None, f"cx7_network_renderer is {wanted.renderer}, but {unit}.service is not active"


def devices(root: Path = Path("/")) -> list[netplan.Device]:
    """Every network interface of this host, as netplan's `match:` sees it."""
    found = []
    for path in sorted((root / "sys/class/net").glob("*")):
        try:
            mac = (path / "address").read_text().strip()
        except OSError:
            mac = ""
        driver = path / "device/driver"
        found.append(
            netplan.Device(path.name, mac, driver.resolve().name if driver.exists() else "")
        )
    return found


def gpu_processes(runner: Runner, root: Path = Path("/")) -> list[str]:
    """Processes that compute on the GPU, in words; that nobody could say counts as one."""
    said = runner(
        ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"], 30
    )
    if said.code == 127 and not _has_gpu(root):
        return []
    if not said.ok:
        return [f"processes on the GPU cannot be listed ({said.last_words()})"]
    rows = [line.strip() for line in said.out.splitlines() if line.strip()]
    return [f"process {row} on the GPU" for row in rows]


def _has_gpu(root: Path) -> bool:
    """Whether there is an NVIDIA GPU or its driver; without both, nothing can compute."""
    if (root / "proc/driver/nvidia").exists():
        return True
    for vendor in (root / "sys/bus/pci/devices").glob("*/vendor"):
        try:
            if vendor.read_text().strip() == NVIDIA:
                return True
        except OSError:
            continue
    return False


def switch_at_work(runner: Runner) -> str:
    """Why a switch may be at work on this host, "" when none is.

    Between the stop of one server and the start of the next nothing serves, and yet the rails are
    about to be used.
    """
    said = runner(["systemctl", "is-active", SWITCH_UNIT], 15)
    state = said.out.strip()
    if state in ("inactive", "failed", "unknown"):
        return ""
    if not state:
        return f"whether a switch is at work is not known ({said.last_words()})"
    return f"a switch is at work ({SWITCH_UNIT} is {state})"


def wait_for_earlier(
    read: Callable[[], Mapping[str, Any] | None],
    *,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait while an earlier change is not confirmed, since it ends by being put back.

    `read` gives the state of the newest change. Words when it does not end, else "". `clock` only
    tells how much of the change's time is left: it may be set meanwhile, `steady` may not.
    """
    until: float | None = None
    while True:
        try:
            state = read()
        except job.JobError as error:
            return str(error)
        except ValueError as error:
            return (
                f"the state of an earlier change of the rails ({job.STATE}) cannot be understood "
                f"({error}): see that the rails are as they should be, remove that file on this "
                "host and run again"
            )
        if not state or state["phase"] != "armed":
            return ""
        if until is None:
            left = min(max(state["deadline"] - clock(), 0), LONGEST_CONFIRM_SECONDS)
            until = steady() + left + EARLIER_GRACE_SECONDS
        if steady() >= until:
            return (
                f"an earlier change of the rails ({state['id']}) is neither confirmed nor put "
                f"back. Run 'sudo python3 {job.JOB} restore' on this host, then run again"
            )
        sleep(0.5)


# ---- the pair


def obstacles(host: str, wanted: Wanted, view: View, *, allow_management_rail: bool) -> list[str]:
    """Why the rails of a host may not be touched or relied on at all, a sentence each."""
    found = []
    for rail in wanted.rails:
        seen = view["interfaces"].get(rail.interface) or {}
        if not seen.get("present"):
            found.append(
                f"{rail.interface} is missing on {host}: the adapter leaves the bus some seconds "
                "after a boot without a cable. Plug the cable in on both machines and reboot them "
                "with it (never rescan the PCI bus, that hangs the machine), or correct the name"
            )
        elif not seen.get("cx7"):
            found.append(
                f"{rail.interface} of {host} is no port of a ConnectX-7, as far as its PCI vendor "
                "can be read: correct cx7_network_rails, so that nothing else is reconfigured"
            )
        elif seen.get("up") is not False and seen["carrier"] is False:
            found.append(
                f"{rail.interface} of {host} has no carrier: check the cable at both ends, then "
                "reboot both machines with it plugged in"
            )
    if not allow_management_rail:
        found += _management(host, wanted, view)
    return found


def hindrances(host: str, wanted: Wanted, view: View, *, allow_management_rail: bool) -> list[str]:
    """Why the rails of a host may not be changed, although they may be used; a sentence each."""
    found = []
    if view["management"]["interface"] is None and not allow_management_rail:
        found.append(
            f"which interface of {host} you reach it by is not known "
            f"({view['management'].get('how') or 'nothing was read'}), and a change of the rails "
            "may not cut it: set ansible_host to an address of the machine"
        )
    functions = [
        str(seen["pci"]).rpartition(".")[0]
        for rail in wanted.rails
        if (seen := view["interfaces"].get(rail.interface) or {}).get("pci")
    ]
    if len(functions) == len(wanted.rails) and len(set(functions)) == 1:
        found.append(
            f"both rails of {host} are on one PCIe link ({functions[0]}), so they are two ports "
            "and not the two halves of one: name the two interfaces of the cabled port, such as "
            "enp1s0f0np0 and enP2p1s0f0np0, in cx7_network_rails"
        )
    return found


def _management(host: str, wanted: Wanted, view: View) -> list[str]:
    """Why the operator's own way to the host would be in danger."""
    names = [rail.interface for rail in wanted.rails]
    said = (
        "it is how you reach the machine, and no change of the rails may cut that. Use another "
        "interface for ansible_host, or set cx7_network_allow_management_rail"
    )
    way = view["management"]
    if way["interface"] in names:
        words = f"{way['address'] or 'the management address'} of {host} is on {way['interface']}"
        return [f"{words}, a rail: {said}"]
    if view["default_route"] in names:
        return [f"the default route of {host} leads over {view['default_route']}, a rail: {said}"]
    try:
        address = ipaddress.ip_address(way["address"])
    except ValueError:
        return []
    return [
        f"{address} of {host} lies in {network}, the subnet of {rail.interface}: {said}"
        for rail in wanted.rails
        if address in (network := ipaddress.ip_interface(rail.address).network)
    ]


def running(
    description: PairDescription | None,
    views: Mapping[Role, Any],
    gpu: Mapping[Role, Sequence[str]],
    hosts: Mapping[Role, str],
) -> list[str]:
    """Everything that may be a model server at work. What is not known to be down is running."""
    found = []
    if description is None:
        found.append("which servers run is not known")
    for name, server in sorted((description.servers if description else {}).items()):
        said = presence(server, views, description) if description else None
        if said is not None and said.state is not State.DOWN:
            found.append(f"{name} is {said}" if said.state is not State.UP else f"{name} runs")
    for role in ROLES:
        found += [f"{hosts[role]}: {words}" for words in gpu[role]]
    return found


def actions(plans: Mapping[Role, Plan], servers: Sequence[str]) -> dict[Role, str]:
    """What is done on each host. While a server runs, what works is adopted as it is."""
    states = {role: plans[role]["state"] for role in plans}
    works_now = all(state != DIFFERENT for state in states.values())
    if works_now and servers:
        return dict.fromkeys(plans, ADOPT)
    return {role: ADOPT if state == WORKING else CONFIGURE for role, state in states.items()}


def refusal(hosts: Mapping[Role, str], plans: Mapping[Role, Plan], servers: Sequence[str]) -> str:
    """Why a change is refused now, with what would change and who runs."""
    what = "; ".join(
        f"{hosts[role]}: {', '.join(plan['changes'])}"
        for role, plan in plans.items()
        if plan["state"] != WORKING
    )
    return (
        f"The rails would have to change ({what}), but a model server may be using them: "
        f"{'; '.join(servers)}. Stop it first (--tags stop_incumbent), or accept the interruption "
        "with cx7_network_allow_disruption=true. Nothing was changed"
    )


@dataclass(frozen=True)
class Decision:
    """What a pair does about its rails."""

    obstacles: Sequence[str]
    """Why nothing can be done at all."""
    actions: Mapping[Role, str]
    refused: str
    """Why the change may not be made now, or ""."""
    warnings: Sequence[str]

    @property
    def changing(self) -> bool:
        """Whether any host has to change."""
        return CONFIGURE in self.actions.values()


def decide(
    hosts: Mapping[Role, str],
    wanted: Mapping[Role, Wanted],
    views: Mapping[Role, View],
    plans: Mapping[Role, Plan],
    servers: Sequence[str],
    *,
    allow_disruption: bool,
    allow_management_rail: bool,
    switching: Mapping[Role, str],
) -> Decision:
    """Adopt, change or refuse, for both hosts at once.

    `servers` is what `running` found, `switching` what `switch_at_work` said on each host.
    """
    chosen = actions(plans, [] if allow_disruption else servers)
    in_the_way = [
        words
        for role in ROLES
        for words in obstacles(
            hosts[role],
            wanted[role],
            views[role],
            allow_management_rail=allow_management_rail,
        )
    ]
    in_the_way += [
        f"{hosts[role]}: {words}"
        for role in ROLES
        if chosen[role] == CONFIGURE
        for words in plans[role]["refusals"]
    ]
    changing = CONFIGURE in chosen.values()
    if changing:
        for role in ROLES:
            in_the_way += hindrances(
                hosts[role], wanted[role], views[role], allow_management_rail=allow_management_rail
            )
        in_the_way += _unequal_mtus(hosts, wanted, views)
        in_the_way += [
            f"{hosts[role]}: {words}, and no rail may change under it: wait for its end (see "
            "'spark-pair status'), then run again"
            for role, words in switching.items()
            if words
        ]
    return Decision(
        in_the_way,
        chosen,
        refusal(hosts, plans, servers) if changing and servers and not allow_disruption else "",
        [
            *(
                f"The rails of {hosts[role]} work and are left as they are while a model server "
                f"runs, but it is still to be done that {', '.join(plans[role]['changes'])}. Run "
                "--tags network again when none does"
                for role in ROLES
                if chosen[role] == ADOPT and plans[role]["state"] == FLEETING
            ),
            *(
                f"{hosts[role]} loses {', '.join(plans[role]['loses'])}: no file configures it"
                for role in ROLES
                if chosen[role] == CONFIGURE and plans[role]["loses"]
            ),
        ],
    )


def _unequal_mtus(
    hosts: Mapping[Role, str], wanted: Mapping[Role, Wanted], views: Mapping[Role, View]
) -> list[str]:
    """Rails whose two ends have different MTUs that nobody has asked to be changed, in words."""
    if any(one.mtu is not None for one in wanted.values()):
        return []
    found = []
    for head, worker in zip(wanted["head"].rails, wanted["worker"].rails, strict=True):
        here = (views["head"]["interfaces"].get(head.interface) or {}).get("mtu")
        there = (views["worker"]["interfaces"].get(worker.interface) or {}).get("mtu")
        if here != there:
            found.append(
                f"{head.interface} of {hosts['head']} has MTU {here} but {worker.interface} of "
                f"{hosts['worker']}, its other end, {there}: set cx7_network_mtu"
            )
    return found


def unproven(
    hosts: Mapping[Role, str], wanted: Mapping[Role, Wanted], views: Mapping[Role, View | None]
) -> list[str]:
    """What keeps the rails from being proven: addresses, MTU, and a full frame each way."""
    found = []
    for role in ROLES:
        view = views.get(role)
        if view is None:
            found.append(f"{hosts[role]} did not answer")
            continue
        found += [f"{hosts[role]}: {words}" for words in differences(wanted[role], view)]
        for rail in wanted[role].rails:
            path = view["paths"].get(rail.interface) or {}
            if not path.get("received"):
                why = path.get("error") or "no reply"
                found.append(
                    f"{hosts[role]} does not reach {rail.peer} over {rail.interface} with a full "
                    f"frame of {path.get('size')} bytes ({why})"
                )
    seen = {role: view for role in ROLES if (view := views.get(role)) is not None}
    return [*found, *(_unequal_mtus(hosts, wanted, seen) if len(seen) == len(ROLES) else [])]
