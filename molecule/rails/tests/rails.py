"""The rails of the simulated machines: how they are, and how somebody else would leave them."""

import json
from collections.abc import Sequence

from stories.machines import HOSTS, machine, on, on_both
from stories.servers import HIKARI_TIMERS, HIKARI_UNITS, WATCHDOG_SERVICE
from stories.waiting import wait_for

from simulated_pair.naming import RAIL_INTERFACES

OURS = "/etc/netplan/40-cx7.yaml"
NVIDIAS = "/etc/netplan/cx7-netplan.yaml"

# The first of NVIDIA's own assets: both ports, addresses that the machines give themselves.
_NVIDIAS_TEXT = """\
network:
  version: 2
  ethernets:
    enp1s0f0np0:
      link-local: [ ipv4 ]
    enp1s0f1np1:
      link-local: [ ipv4 ]
"""

_BARE = f"""
set -eu
rm -f {OURS}
printf '%s' '{_NVIDIAS_TEXT}' >{NVIDIAS}
chmod 0644 {NVIDIAS}
netplan generate 2>/dev/null
if systemctl --quiet is-active NetworkManager; then
    nmcli connection reload
else
    networkctl reload
fi
for rail in {" ".join(RAIL_INTERFACES)}; do
    networkctl reconfigure $rail 2>/dev/null || true
    ip -4 address flush dev $rail
done
"""


def wanted_address(host: str, rail: str) -> str:
    """The address with prefix that a rail of a host has by the inventory."""
    return f"{machine(host).addresses[1 + RAIL_INTERFACES.index(rail)]}/24"


def addresses(host: str, rail: str) -> list[str]:
    """IPv4 addresses that a rail has now, self-given ones included."""
    rows = json.loads(on(host, f"ip -json -4 address show dev {rail}") or "[]")
    return [
        f"{one['local']}/{one['prefixlen']}" for row in rows for one in row.get("addr_info", [])
    ]


def mtu(host: str, rail: str) -> int:
    """MTU of a rail."""
    return int(json.loads(on(host, f"ip -json link show dev {rail}"))[0]["mtu"])


def assert_rails_as_wanted(mtu_wanted: int) -> None:
    """Every rail has its address and nothing else, its MTU, and large frames pass both ways."""
    for host in HOSTS:
        peer = next(one for one in HOSTS if one != host)
        for rail in RAIL_INTERFACES:
            assert addresses(host, rail) == [wanted_address(host, rail)]
            assert mtu(host, rail) == mtu_wanted
            target = wanted_address(peer, rail).partition("/")[0]
            size = mtu_wanted - 28
            on(host, f"ping -c 1 -W 2 -M do -s {size} -I {rail} {target}")


def files() -> dict[str, str]:
    """netplan's files of both hosts: mode, owner and hash of each."""
    return on_both(
        "cd /etc/netplan && stat --format '%n %a %U:%G' * && sha256sum * && "
        "ls /etc/systemd/system/*network-restore* 2>/dev/null || true"
    )


def lose_configuration(hosts: Sequence[str] = HOSTS) -> None:
    """Leave the rails with NVIDIA's older file and no address of the inventory."""
    for host in hosts:
        on(host, _BARE)


def stop_hikari() -> None:
    """Have no server running, as an operator does by hand.

    Where the tool is installed a boot has the fallback brought up, some seconds after it: what is
    stopped before that comes back.
    """
    wait_for("no switch is at work", _nothing_switches, 90)
    for host, timer in HIKARI_TIMERS:
        on(host, f"systemctl stop {timer} {WATCHDOG_SERVICE}")
    for host, unit in reversed(HIKARI_UNITS):
        on(host, f"systemctl stop {unit}")


def _nothing_switches() -> bool:
    states = on_both("systemctl is-active spark-pair-resume spark-pair-switch || true").values()
    return not {"active", "activating"} & {word for text in states for word in text.split()}


def phase(host: str) -> str:
    """What the newest change of a host's rails is: armed, confirmed, restored, or "" for none."""
    text = on(host, "cat /var/lib/spark-pair/network/state.json 2>/dev/null || echo '{}'")
    return str(json.loads(text).get("phase", ""))


def wait_until_armed(*hosts: str) -> None:
    """Wait until a change is applied and not yet confirmed."""
    for host in hosts:
        wait_for(f"{host} is armed", lambda host=host: phase(host) == "armed", 60, every=0.05)


def result(host: str) -> str:
    """What the job said last."""
    text = on(host, "cat /var/lib/spark-pair/jobs/network/result.json")
    return str(json.loads(text)["message"])
