"""The rails' checks in this table. What they mean is judged where the rails are."""

from __future__ import annotations

from ..rails.judge import GUARDS
from .checks import Check


def _check(identity: str, title: str, means: str) -> Check:
    return Check(identity, title, means, GUARDS[identity])


RAILS: tuple[Check, ...] = (
    _check(
        "rails_present",
        "rail interfaces",
        "Both interfaces of the cabled ConnectX-7 port exist and are the ones in "
        "`cx7_network_rails`.",
    ),
    _check("rails_link", "rail links", "Both rails have a carrier and the expected speed."),
    _check(
        "rails_pcie",
        "rail PCIe links",
        "Both functions of the adapter run at their PCIe width and speed.",
    ),
    _check(
        "rails_subnets",
        "rail subnets",
        "Each rail has a subnet of its own, the same one on both machines.",
    ),
    _check(
        "rails_addresses",
        "rail addresses",
        "The wanted address is on each rail, and no other.",
    ),
    _check("rails_mtu", "rail MTU", "The MTU is the same on both rails and machines."),
    _check(
        "rails_path",
        "rail paths",
        "A full frame gets from each rail to the peer's end of it, unfragmented.",
    ),
    _check(
        "rails_rdma",
        "rail RDMA devices",
        "Each rail has an active RDMA device with a RoCE v2 GID of the rail's address.",
    ),
    _check(
        "rails_persistent",
        "rails after a boot",
        "The addresses are configured for the next boot, too.",
    ),
    _check(
        "management_path",
        "management network",
        "The controller's way to the machine is a wired one and no rail.",
    ),
)
