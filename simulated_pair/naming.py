"""Names and addresses of a checkout's simulated pair, all derived from the checkout's path.

Two clones can run their pairs side by side because nothing here is chosen by hand; the simulated
inventory imports this module, so that it never disagrees with the containers. A checkout can have
more than one pair: the environment variable SIMULATED_PAIR says which is meant, 1 if it is not set.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent

VARIABLE = "SIMULATED_PAIR"
NUMBERS = range(1, 5)
"""Of the pairs that a checkout can have."""

MANAGEMENT_INTERFACE = "enP7s7"
HUB_PORT = 8760
RAIL_INTERFACES = ("enp1s0f0np0", "enP2p1s0f0np0")


@dataclass(frozen=True)
class Network:
    """One container network: how podman's name for it begins, its /24, is it cut off outwards."""

    stem: str
    interface: str
    prefix: str
    internal: bool

    @property
    def subnet(self) -> str:
        """The network in CIDR notation."""
        return f"{self.prefix}.0/24"

    @property
    def gateway(self) -> str:
        """The outer machine's own address in this network."""
        return f"{self.prefix}.1"


@dataclass(frozen=True)
class Machine:
    """One simulated Spark; `addresses` and `macs` follow the order management, rail 0, rail 1."""

    name: str
    role: str
    user: str
    uid: int
    home: str
    container: str
    volume: str
    state: Path
    addresses: tuple[str, str, str]
    macs: tuple[str, str, str]

    @property
    def management(self) -> str:
        """The address Ansible and the controller use."""
        return self.addresses[0]


@dataclass(frozen=True)
class Pair:
    """Everything that exists outside the repository for one pair of a checkout.

    `state` is the pair's own folder, `common` that of all pairs of the checkout.
    """

    number: int
    prefix: str
    state: Path
    common: Path
    networks: tuple[Network, Network, Network]
    head: Machine
    worker: Machine

    @property
    def machines(self) -> tuple[Machine, Machine]:
        """Both machines, the head first."""
        return (self.head, self.worker)

    @property
    def hub_url(self) -> str:
        """The Hub's address, as both machines and the controller know it."""
        return f"http://{self.head.management}:{HUB_PORT}"

    @property
    def private_key(self) -> Path:
        """The key that opens both machines to the controller."""
        return self.state / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The machines' host keys, as read from the machines themselves."""
        return self.state / "known_hosts"

    def machine(self, name: str) -> Machine:
        """Return the machine called `name` (host name or role); KeyError if there is none."""
        for machine in self.machines:
            if name in (machine.name, machine.role):
                return machine
        raise KeyError(name)


def mac(address: str) -> str:
    """Return the hardware address of the interface with this IPv4 address."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def number_asked_for() -> int:
    """Return which of a checkout's pairs the environment asks for; ValueError if it is none."""
    text = os.environ.get(VARIABLE) or "1"
    if text not in map(str, NUMBERS):
        raise ValueError(f"{VARIABLE} is {text!r}; a checkout's pairs are 1 to {NUMBERS[-1]}")
    return int(text)


def pair_of(checkout: Path = CHECKOUT, number: int | None = None) -> Pair:
    """Return the names and addresses of one pair of `checkout`, by default the one asked for."""
    number = number or number_asked_for()
    digest = hashlib.sha256(str(checkout.resolve()).encode()).digest()
    # No dash: what is of the first must not look like the beginning of another's name.
    prefix = f"spark-pair-{digest.hex()[:8]}{'' if number == 1 else f'n{number}'}"
    common = checkout.resolve() / "simulated_pair" / ".state"
    state = common if number == 1 else common / f"pair-{number}"
    # 10.100-10.199 keeps clear of podman's 10.88 and of Docker's 172.17; three /24 in a row belong
    # to one pair, and a checkout's pairs lie beside each other.
    second, third = 100 + digest[8] % 100, 4 * ((digest[9] + number - 1) % 64)
    interfaces = (MANAGEMENT_INTERFACE, *RAIL_INTERFACES)
    labels = ("management", "rail0", "rail1")
    management, rail0, rail1 = (
        Network(f"{prefix}-{label}", interface, f"10.{second}.{third + index}", internal=index > 0)
        for index, (label, interface) in enumerate(zip(labels, interfaces, strict=True))
    )
    networks = (management, rail0, rail1)

    def machine(name: str, role: str, *, user: str, uid: int, home: str, last: int) -> Machine:
        one, two, three = (f"{network.prefix}.{last}" for network in networks)
        container = f"{prefix}-{name}"
        return Machine(
            name=name,
            role=role,
            user=user,
            uid=uid,
            home=home,
            container=container,
            volume=f"{container}-docker",
            state=state / name,
            addresses=(one, two, three),
            macs=(mac(one), mac(two), mac(three)),
        )

    return Pair(
        number=number,
        prefix=prefix,
        state=state,
        common=common,
        networks=networks,
        head=machine("spark-033f", "head", user="spark", uid=1000, home="/home/spark", last=11),
        worker=machine(
            "spark-5bf0", "worker", user="sparkle", uid=1001, home="/srv/sparkle", last=12
        ),
    )
