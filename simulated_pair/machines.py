"""The life of the two machines: made, started, prepared, cut off, removed."""

import hashlib
import ipaddress
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulated_pair import ledger
from simulated_pair.naming import (
    CHECKOUT,
    NUMBERS,
    RAIL_INTERFACES,
    Machine,
    Network,
    Pair,
    pair_of,
)
from simulated_pair.outer import PairError, Podman, last_words, on_each, say, write_atomically

INSIDE = CHECKOUT / "simulated_pair" / "inside"
MEMORY_DAEMON = CHECKOUT / "simulated_pair" / "standins" / "memory" / "simulated-memory"
MADE_OF = "spark-pair.made-of"
CABLE_MTU = "9216"

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
LOCAL_CAS = Path("/usr/local/share/ca-certificates")

# systemd and Docker inside need a pure cgroup v2 view, which an outer machine with the hybrid
# layout does not give. On a real machine systemd itself makes all mounts shared, in a container it
# leaves that to the container's manager; without it no unit ever sees its credentials.
INIT = (
    "mount --make-rshared /; "
    "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup && exec /sbin/init"
)


def prepare_state(pair: Pair) -> None:
    """Make the pair's directory on the outer machine: key, meminfo, ledgers, faults."""
    pair.state.mkdir(parents=True, exist_ok=True)
    if not pair.private_key.exists():
        pair.private_key.with_suffix(".pub").unlink(missing_ok=True)
        subprocess.run(
            [
                *("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", pair.prefix),
                *("-f", str(pair.private_key)),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    # Root made it, perhaps by sudo; the one who runs Ansible has to read it.
    owner = CHECKOUT.stat()
    os.chown(pair.private_key, owner.st_uid, owner.st_gid)
    for machine in pair.machines:
        (machine.state / "faults").mkdir(parents=True, exist_ok=True)
        (machine.state / "ledger.jsonl").touch()
        meminfo = machine.state / "meminfo"
        if not meminfo.exists() or meminfo.stat().st_size == 0:
            # The memory daemon's own program knows what an idle Spark has; from then on it writes.
            subprocess.run(
                [sys.executable, "-I", str(MEMORY_DAEMON), "--initial", str(meminfo)], check=True
            )
        offer_local_cas(machine)


def ensure_networks(pair: Pair, podman: Podman) -> dict[Network, str]:
    """Make the missing ones of the three networks and return podman's name of each.

    Each is made under a name never used before: podman keeps the addresses that a killed run
    reserved under a network's name, even when the network is removed and made again.
    PairError if an address range is taken.
    """
    listed = _networks(podman)
    names: dict[Network, str] = {
        network: str(found["name"])
        for network in pair.networks
        for found in listed
        if found["name"].startswith(f"{network.stem}-")
    }
    missing = [network for network in pair.networks if network not in names]
    if not missing:
        return names
    remove_stray_bridges(missing)
    taken = [
        (f"the container network {network['name']}", str(subnet["subnet"]))
        for network in listed
        for subnet in network.get("subnets", [])
    ]
    taken += [
        (f"the route through {route.get('dev', '?')}", str(route["dst"]))
        for route in _ip("route")
        if route["dst"] != "default"
    ]
    for network in missing:
        refuse_taken(network, taken)
    for network in missing:
        names[network] = f"{network.stem}-{secrets.token_hex(3)}"
        options = ["--internal", "--disable-dns"] if network.internal else []
        podman.run(
            *("network", "create", "--subnet", network.subnet, "--gateway", network.gateway),
            *(*options, names[network]),
        )
    return {network: names[network] for network in pair.networks}


def _networks(podman: Podman) -> list[dict[str, Any]]:
    return list(json.loads(podman.run("network", "ls", "--format", "json").stdout or "[]"))


def remove_stray_bridges(networks: Sequence[Network]) -> None:
    """Remove the bridges of networks that podman does not know: a killed podman leaves them."""
    for network in networks:
        listed = _ip("address", "show", "type", "bridge", "to", f"{network.gateway}/32")
        for link in listed:
            if link:
                subprocess.run(["ip", "link", "delete", str(link["ifname"])], check=False)


def _ip(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["ip", "-json", "-4", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PairError(f"ip {' '.join(arguments)} failed: {last_words(done.stderr)}")
    return list(json.loads(done.stdout or "[]"))


def refuse_taken(network: Network, taken: list[tuple[str, str]]) -> None:
    """Raise PairError if one of the (owner, subnet) in `taken` overlaps `network`."""
    wanted = ipaddress.ip_network(network.subnet)
    for owner, subnet in taken:
        other = ipaddress.ip_network(subnet, strict=False)
        if other.version == wanted.version and other.overlaps(wanted):
            raise PairError(
                f"the address range {wanted}, which follows from this checkout's path, overlaps "
                f"{subnet} of {owner}. Move the checkout to another path, or remove the other one."
            )


class CannotStartError(PairError):
    """A machine that podman refuses to start, for instance because a killed podman left traces."""


def container_arguments(machine: Machine, image: str, networks: dict[Network, str]) -> list[str]:
    """Return the arguments of `podman create` for one machine, given podman's network names."""
    arguments = [
        *("--name", machine.container, "--hostname", machine.name),
        *("--privileged", "--systemd=always", "--cgroupns=private", "--no-hosts"),
        *("--stop-signal", "SIGRTMIN+3"),
        *("--volume", f"{machine.volume}:/var/lib/docker"),
        *("--volume", f"{machine.state}:/srv/simulation"),
        *("--volume", f"{machine.state / 'meminfo'}:/proc/meminfo"),
    ]
    for network, address, mac in zip(networks, machine.addresses, machine.macs, strict=True):
        # Both are given, or a power cut would change them: a peer that remembers the old hardware
        # address does not reach the booted machine for a quarter of a minute.
        options = f"ip={address},mac={mac},interface_name={network.interface}"
        arguments += ["--network", f"{networks[network]}:{options}"]
    return [*arguments, image, "sh", "-c", INIT]


def ensure_running(pair: Pair, image: str, podman: Podman) -> list[Machine]:
    """Make and start both machines where needed and return those that were started now."""
    prepare_state(pair)
    networks = ensure_networks(pair, podman)
    there = _containers(pair, podman)
    started: list[Machine] = []

    def ensure(machine: Machine) -> None:
        arguments = container_arguments(machine, image, networks)
        # The script that prepares a machine counts too: it runs in full only on a new one. And the
        # key: machines that outlived a checkout at this path know another one, and their folder is
        # bound to one that is gone.
        key = pair.private_key.with_suffix(".pub").read_text()
        ingredients = "\0".join((*arguments, (INSIDE / "prepare").read_text(), key))
        made_of = hashlib.sha256(ingredients.encode()).hexdigest()[:12]

        def create() -> None:
            podman.run("create", "--label", f"{MADE_OF}={made_of}", *arguments)

        state, label = there.get(machine.container, ("", made_of))
        if label != made_of:
            say(machine.name, "is of an older make: making it anew")
            state = ""
        if state == "":
            # Also what podman does not list: a killed run can leave a name or a disk behind.
            remove_machine(machine, podman)
            # Written after a machine is prepared: until then nobody takes this pair for finished.
            pair.known_hosts.unlink(missing_ok=True)
            create()
        if state != "running":
            power_on(machine, state, podman)
            started.append(machine)

    on_each(pair.machines, ensure)
    return started


def _containers(pair: Pair, podman: Podman) -> dict[str, tuple[str, str]]:
    """Return {container: (its state, what it was made of)} for those machines that exist."""
    listed = podman.run(
        "ps", "--all", "--filter", f"name=^{pair.prefix}-spark-", "--format", "json"
    ).stdout
    return {
        container["Names"][0]: (container["State"], container["Labels"].get(MADE_OF, ""))
        for container in json.loads(listed)
    }


def power_on(machine: Machine, state: str, podman: Podman) -> None:
    """Start a machine, or let a frozen one go on; CannotStartError if podman refuses."""
    if state == "paused":
        say(machine.name, "going on after having been frozen")
        podman.run("unpause", machine.container)
        return
    say(machine.name, "starting")
    done = podman.run("start", machine.container, check=False)
    if done.returncode != 0:
        words = last_words(done.stderr)
        raise CannotStartError(f"{machine.name} cannot be started: {words}")


def remove_machine(machine: Machine, podman: Podman) -> None:
    """Remove one machine's container and its disk."""
    podman.run("rm", "--force", "--time", "0", "--ignore", machine.container)
    podman.run("volume", "rm", "--force", machine.volume, check=False)


def prepare(pair: Pair, chosen: Sequence[Machine], podman: Podman) -> None:
    """Bring machines from started to usable: user, keys, Docker, engine image, sshd."""
    public_key = pair.private_key.with_suffix(".pub").read_text().strip()

    def work(machine: Machine) -> None:
        widen_cable(machine, podman)
        podman.script(
            machine.container,
            INSIDE / "prepare",
            *(machine.user, str(machine.uid), machine.home, public_key, machine.role),
            *hikari_place(pair, machine),
            *rails(machine),
            subject=machine.name,
        )

    on_each(chosen, work)
    write_known_hosts(pair, podman)
    on_each(chosen, lambda machine: wait_for_ssh(pair, machine))


def hikari_place(pair: Pair, machine: Machine) -> tuple[str, str]:
    """Return a machine's part in Hikari and its peer's address on the cable: roles are crossed."""
    if machine is pair.head:
        return "worker-of-hikari", pair.worker.addresses[1]
    return "head-of-hikari", pair.head.addresses[1]


def rails(machine: Machine) -> list[str]:
    """Return a machine's rails as its scripts take them: INTERFACE=ADDRESS/LENGTH."""
    addresses = machine.addresses[1:]
    return [
        f"{interface}={address}/24"
        for interface, address in zip(RAIL_INTERFACES, addresses, strict=True)
    ]


def widen_cable(machine: Machine, podman: Podman) -> None:
    """Let the outer ends of a machine's rails carry frames as large as a real cable does.

    What the machine itself sends stays limited by its own MTU.
    """
    inside = podman.run("exec", machine.container, "ip", "-json", "link", "show").stdout
    ends = [link["link_index"] for link in json.loads(inside) if link["ifname"] in RAIL_INTERFACES]
    for link in _ip("link", "show"):
        if link and link["ifindex"] in ends:
            subprocess.run(
                ["ip", "link", "set", "dev", str(link["ifname"]), "mtu", CABLE_MTU], check=False
            )


def offer_local_cas(machine: Machine) -> None:
    """Lay out the certificate authorities that the outer machine's owner added to it, if any.

    A machine that has to trust them to reach anything takes them from there at its first start.
    """
    added = sorted(LOCAL_CAS.glob("*.crt"))
    place = machine.state / "trust"
    if not added or place.exists():
        return
    beside = machine.state / "trust.new"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    for source in (*added, CA_BUNDLE):
        shutil.copyfile(source, beside / source.name)
    beside.rename(place)


def write_known_hosts(pair: Pair, podman: Podman) -> None:
    """Write known_hosts with the host keys read from the machines themselves."""
    lines = []
    up = running(pair, podman)
    for machine in pair.machines:
        if not up[machine.name]:
            old = pair.known_hosts.read_text() if pair.known_hosts.exists() else ""
            lines += [line for line in old.splitlines(keepends=True) if machine.name in line]
            continue
        keys = podman.run(
            "exec", machine.container, "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"
        ).stdout
        names = ",".join((*machine.addresses, machine.name))
        lines += [f"{names} {' '.join(key.split()[:2])}\n" for key in keys.splitlines()]
    write_atomically(pair.known_hosts, "".join(lines))


def ssh_command(pair: Pair, machine: Machine) -> list[str]:
    """Return the ssh command line that reaches a machine without asking anything."""
    return [
        *("ssh", "-i", str(pair.private_key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
        *("-o", f"UserKnownHostsFile={pair.known_hosts}", "-o", "StrictHostKeyChecking=yes"),
        *("-o", "ConnectTimeout=5", f"{machine.user}@{machine.management}"),
    ]


def wait_for_ssh(pair: Pair, machine: Machine, seconds: float = 30) -> None:
    """Wait until a machine lets the controller in; PairError after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        done = subprocess.run(
            [*ssh_command(pair, machine), "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        if time.monotonic() > until:
            raise PairError(
                f"{machine.name} does not let the controller in by ssh at {machine.management}: "
                f"{done.stderr.strip()}"
            )
        time.sleep(0.2)


def running(pair: Pair, podman: Podman) -> dict[str, bool]:
    """Return {machine name: does it run} for both machines; a frozen one does not."""
    there = _containers(pair, podman)
    return {m.name: there.get(m.container, ("", ""))[0] == "running" for m in pair.machines}


def cut_power(machine: Machine, podman: Podman) -> None:
    """Take a machine's power away: everything on it ends at once, unwritten."""
    if podman.run("kill", "--signal", "KILL", machine.container, check=False).returncode != 0:
        raise PairError(f"{machine.name} has no power to cut: it does not run")
    podman.run("wait", machine.container, check=False, timeout=30)
    path = machine.state / "ledger.jsonl"
    gone = ledger.ends_for(ledger.parse(path.read_text()), time.monotonic())
    if gone:
        with path.open("a") as file:
            file.write("".join(event.line() for event in gone))


def freeze(machine: Machine, podman: Podman) -> None:
    """Let a machine hang as a whole: it keeps its addresses and connections but does nothing."""
    if podman.run("pause", machine.container, check=False).returncode != 0:
        raise PairError(f"{machine.name} cannot be frozen: it does not run")


def boot(pair: Pair, chosen: list[Machine], podman: Podman) -> None:
    """Switch machines on and wait until they are usable; PairError for one that was never made."""
    there = _containers(pair, podman)

    def work(machine: Machine) -> None:
        if machine.container not in there:
            raise PairError(f"{machine.name} was never made; run: simulated_pair/start")
        state = there[machine.container][0]
        if state != "running":
            power_on(machine, state, podman)

    on_each(chosen, work)
    prepare(pair, chosen, podman)


def set_link(pair: Pair, machine: Machine, interface: str, up: bool, podman: Podman) -> None:
    """Take an interface down or up; the management one gets its default route back."""
    commands = [f"ip link set {interface} {'up' if up else 'down'}"]
    management = pair.networks[0]
    if up and interface == management.interface:
        commands.append(f"ip route replace default via {management.gateway}")
    if podman.run(
        "exec", machine.container, "sh", "-c", " && ".join(commands), check=False
    ).returncode:
        raise PairError(
            f"{machine.name} does not run, so {interface} cannot be set {'up' if up else 'down'}"
        )


def interfaces(pair: Pair) -> tuple[str, ...]:
    """Return the names of a machine's interfaces, management first."""
    return (pair.networks[0].interface, *RAIL_INTERFACES)


def set_fault(machine: Machine, component: str, text: str | None) -> None:
    """Set a stand-in's fault (a JSON object as text), or clear it with None.

    Renamed into place, since the stand-in may read at any moment. PairError if the text is not a
    JSON object.
    """
    path = machine.state / "faults" / f"{component}.json"
    if text is None:
        path.unlink(missing_ok=True)
        return
    try:
        value = json.loads(text)
    except ValueError as error:
        raise PairError(f"the fault {text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise PairError(f"the fault {text!r} is not a JSON object")
    write_atomically(path, json.dumps(value) + "\n")


def left_of_any(podman: Podman) -> list[Pair]:
    """Return this checkout's first pair, and those others of which anything is left."""
    listed = [podman.run("ps", "--all", "--format", "{{.Names}}").stdout]
    listed += [podman.run("volume", "ls", "--format", "{{.Name}}").stdout]
    names = "\n".join(listed).split() + [str(network["name"]) for network in _networks(podman)]
    return [
        pair
        for pair in (pair_of(number=number) for number in NUMBERS)
        if pair.number == 1
        or any(name.startswith(f"{pair.prefix}-") for name in names)
        or any(machine.state.exists() for machine in pair.machines)
    ]


def destroy(pair: Pair, podman: Podman) -> None:
    """Remove the pair's containers, disks, networks and state, whatever is left of them."""
    on_each(pair.machines, lambda machine: remove_machine(machine, podman))
    podman.run("rm", "--force", "--time", "0", "--ignore", f"{pair.prefix}-image-build")
    for found in _networks(podman):
        if found["name"].startswith(f"{pair.prefix}-"):
            podman.run("network", "rm", "--force", found["name"], check=False)
    remove_stray_bridges(pair.networks)
    for machine in pair.machines:
        shutil.rmtree(machine.state, ignore_errors=True)
    pair.known_hosts.unlink(missing_ok=True)
