"""What the simulated machines show under /sys follows the interfaces and the faults asked for."""

import importlib.machinery
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

STANDINS = Path(__file__).resolve().parents[2] / "simulated_pair" / "standins"
RAIL, TWIN = "enp1s0f0np0", "enP2p1s0f0np0"
INFINIBAND, PCI = "/sys/class/infiniband", "/sys/bus/pci/devices"


@pytest.fixture(scope="module")
def sysfs() -> ModuleType:
    path = str(STANDINS / "sysfs" / "simulated-sysfs")
    loader = importlib.machinery.SourceFileLoader("simulated_sysfs", path)
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def link(*addresses: str, last: int, up: bool = True) -> dict[str, Any]:
    return {
        "address": f"02:00:0a:64:00:{last:02x}",
        "flags": ["BROADCAST", "UP", "LOWER_UP"] if up else ["BROADCAST"],
        "addr_info": [{"family": "inet", "local": address} for address in addresses],
    }


@pytest.fixture
def links() -> dict[str, Any]:
    return {RAIL: link("192.168.177.11", last=1), TWIN: link("192.168.178.11", last=2)}


def roce_v2(tree: dict[str, Any], device: str, gid: str) -> list[int]:
    """The indices at which a tree shows a RoCE v2 entry for a GID."""
    found = []
    for path, value in tree.items():
        at = re.fullmatch(rf"{device}/ports/1/gids/(\d+)", path)
        if at and value == gid:
            kind = tree.get(f"{device}/ports/1/gid_attrs/types/{at[1]}")
            found += [int(at[1])] if kind == "RoCE v2" else []
    return found


FIRST_GID = "0000:0000:0000:0000:0000:ffff:c0a8:b10b"


class TestGids:
    def test_an_address_has_its_rocev2_entry_at_three(
        self, sysfs: ModuleType, links: dict[str, Any]
    ) -> None:
        tree = sysfs.picture(links, {})[INFINIBAND]
        assert roce_v2(tree, "rocep1s0f0", FIRST_GID) == [3]
        assert tree["rocep1s0f0/ports/1/gid_attrs/ndevs/3"] == RAIL
        assert roce_v2(tree, "roceP2p1s0f0", FIRST_GID) == []

    def test_without_an_address_there_is_no_entry(
        self, sysfs: ModuleType, links: dict[str, Any]
    ) -> None:
        links[RAIL]["addr_info"] = []
        tree = sysfs.picture(links, {})[INFINIBAND]
        assert roce_v2(tree, "rocep1s0f0", FIRST_GID) == []
        assert tree["rocep1s0f0/ports/1/gids/1"].startswith("fe80:")
        assert tree["rocep1s0f0/ports/1/gids/3"] == sysfs.UNUSED_GID

    def test_a_shift_moves_it(self, sysfs: ModuleType, links: dict[str, Any]) -> None:
        tree = sysfs.picture(links, {"gid_shift": 2})[INFINIBAND]
        assert roce_v2(tree, "rocep1s0f0", FIRST_GID) == [5]

    def test_a_second_address_has_an_entry_too(
        self, sysfs: ModuleType, links: dict[str, Any]
    ) -> None:
        links[RAIL] = link("169.254.3.4", "192.168.177.11", last=1)
        tree = sysfs.picture(links, {})[INFINIBAND]
        assert roce_v2(tree, "rocep1s0f0", FIRST_GID) == [5]


class TestPicture:
    def test_a_link_that_is_down_is_down_everywhere(
        self, sysfs: ModuleType, links: dict[str, Any]
    ) -> None:
        links[RAIL] = link("192.168.177.11", last=1, up=False)
        shown = sysfs.picture(links, {})
        assert shown[INFINIBAND]["rocep1s0f0/ports/1/state"] == "1: DOWN"
        assert shown[f"/sys/devices/virtual/net/{RAIL}"]["speed"] == "-1"
        assert shown[INFINIBAND]["roceP2p1s0f0/ports/1/state"] == "4: ACTIVE"

    def test_a_narrow_link_is_narrow_on_its_own_function_only(
        self, sysfs: ModuleType, links: dict[str, Any]
    ) -> None:
        tree = sysfs.picture(links, {"width": {TWIN: 2}})[PCI]
        assert tree["0002:01:00.0/current_link_width"] == "2"
        assert tree["0000:01:00.0/current_link_width"] == "4"

    def test_a_missing_function_takes_its_rdma_device_along(
        self, sysfs: ModuleType, links: dict[str, Any]
    ) -> None:
        shown = sysfs.picture(links, {"missing": [TWIN]})
        assert {path.split("/")[0] for path in shown[INFINIBAND]} == {"rocep1s0f0"}
        assert {path.split("/")[0] for path in shown[PCI]} == {"0000:01:00.0"}
        assert "device" not in shown[f"/sys/devices/virtual/net/{TWIN}"]

    def test_both_ways_of_one_port_say_so(self, sysfs: ModuleType, links: dict[str, Any]) -> None:
        shown = sysfs.picture(links, {})
        one, two = (shown[f"/sys/devices/virtual/net/{name}"] for name in (RAIL, TWIN))
        assert (one["phys_port_name"], one["phys_switch_id"]) == ("p0", two["phys_switch_id"])

    def test_the_loaded_driver_is_what_nvidia_smi_says(self, sysfs: ModuleType) -> None:
        said = (STANDINS / "nvidia" / "nvidia-smi").read_text()
        assert f'"driver_version": ("{sysfs.DRIVER_VERSION}", "")' in said
        shown = sysfs.picture({}, {})["/proc/driver"]["nvidia/version"]
        assert "Open Kernel Module" in shown and f"  {sysfs.DRIVER_VERSION}  " in shown
        other = sysfs.picture({}, {"driver_module": "580.126.09"})["/proc/driver"]
        assert "  580.126.09  " in other["nvidia/version"]


def test_a_tree_on_disk_becomes_another_without_leftovers(
    sysfs: ModuleType, links: dict[str, Any], tmp_path: Path
) -> None:
    before = sysfs.picture(links, {})[INFINIBAND]
    sysfs.bring_about(tmp_path, {}, before)
    assert (tmp_path / "rocep1s0f0/ports/1/gids/3").read_text() == f"{FIRST_GID}\n"
    assert (tmp_path / "rocep1s0f0/device").readlink() == Path(PCI) / "0000:01:00.0"
    after = sysfs.picture(links, {"missing": [RAIL]})[INFINIBAND]
    sysfs.bring_about(tmp_path, before, after)
    assert [path.name for path in tmp_path.iterdir()] == ["roceP2p1s0f0"]
    sysfs.bring_about(tmp_path, after, {})
    assert list(tmp_path.iterdir()) == []
