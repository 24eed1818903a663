"""What is said about the rails of a pair, from the views of two hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rails_host import FIRST, MANAGEMENT, SECOND, Machine, gid_text, spark, table

from spark_pair.description import Role
from spark_pair.findings import Finding, Grade
from spark_pair.findings_table import summary
from spark_pair.findings_table import table as shown
from spark_pair.rails import judge
from spark_pair.system import Result

PAIR: dict[Role, str] = {"head": "spark-a", "worker": "spark-b"}
NUMBERS: dict[Role, int] = {"head": 11, "worker": 12}


def rails(number: int, first: str = "192.168.177", second: str = "192.168.178") -> list[Any]:
    return [
        {"interface": FIRST, "address": f"{first}.{number}/24"},
        {"interface": SECOND, "address": f"{second}.{number}/24"},
    ]


WANTED: dict[Role, list[Any]] = {role: rails(number) for role, number in NUMBERS.items()}


class Pair:
    """Two machines that can be changed before they are looked at."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.machines: dict[Role, Machine] = {
            role: spark(root / role, number, **changes) for role, number in NUMBERS.items()
        }
        self.head, self.worker = self.machines["head"], self.machines["worker"]
        self.unseen: set[Role] = set()

    def view(self, role: Role) -> dict[str, Any]:
        other = NUMBERS["worker" if role == "head" else "head"]
        return self.machines[role].look(
            f"10.20.0.{NUMBERS[role]}",
            {FIRST: f"192.168.177.{other}", SECOND: f"192.168.178.{other}"},
        )

    def judge(self, **options: Any) -> dict[str, Finding]:
        views = {role: None if role in self.unseen else self.view(role) for role in self.machines}
        found = judge.findings(
            PAIR,
            options.pop("wanted", WANTED),
            options.pop("views", views),
            mtu=options.pop("mtu", None),
            link_speed=options.pop("link_speed", 200000),
            **options,
        )
        for finding in found:
            assert bool(finding.hint) == (finding.grade is not Grade.OK), finding
            assert finding.measured, finding
        return {finding.id: finding for finding in found}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def bad(found: dict[str, Finding]) -> dict[str, Grade]:
    return {name: one.grade for name, one in found.items() if one.grade is not Grade.OK}


def test_healthy_rails_pass_every_check(pair: Pair) -> None:
    found = pair.judge()
    assert bad(found) == {}
    assert list(found) == list(judge.TITLES)
    assert found["rails_rdma"].measured["spark-a"] == "rocep1s0f0 GID 3, roceP2p1s0f0 GID 3"
    assert found["rails_link"].measured["spark-b"] == "200 Gb/s"
    assert bad(pair.judge(before_setup=True)) == {}
    assert bad(pair.judge(mtu=1500)) == {}


@pytest.mark.fault(4)
def test_gid_indexes_may_differ_between_devices_and_machines(pair: Pair) -> None:
    pair.head.gids(FIRST, table("192.168.177.11/24", first=5))
    pair.worker.gids(SECOND, table("192.168.178.12/24", first=4))
    found = pair.judge()
    assert bad(found) == {}
    assert found["rails_rdma"].measured == {
        "spark-a": "rocep1s0f0 GID 5, roceP2p1s0f0 GID 3",
        "spark-b": "rocep1s0f0 GID 3, roceP2p1s0f0 GID 4",
    }


@pytest.mark.fault(4)
def test_an_address_without_a_gid_of_version_2_fails(pair: Pair) -> None:
    pair.worker.gids(SECOND, {3: (gid_text("192.168.178.12"), "IB/RoCE v1")})
    found = pair.judge()
    assert bad(found) == {"rails_rdma": Grade.FAIL}
    assert "no RoCE v2 GID for 192.168.178.12" in found["rails_rdma"].hint
    assert "roceP2p1s0f0 of spark-b" in found["rails_rdma"].hint


@pytest.mark.fault(4)
def test_a_gid_table_that_cannot_be_read_is_unknown(pair: Pair) -> None:
    pair.worker.gids(SECOND, {3: (gid_text("192.168.178.12"), "")})
    assert bad(pair.judge()) == {"rails_rdma": Grade.UNKNOWN}


def test_an_inactive_rdma_device_fails(pair: Pair) -> None:
    pair.head.write("sys/class/infiniband/rocep1s0f0/ports/1/state", "1: DOWN")
    found = pair.judge()
    assert bad(found) == {"rails_rdma": Grade.FAIL}
    assert f"rocep1s0f0 ({FIRST} of spark-a) is DOWN" in found["rails_rdma"].hint


def test_a_port_without_rdma_fails(pair: Pair) -> None:
    (pair.head.root / "sys/class/infiniband/rocep1s0f0").unlink()
    for entry in (pair.head.root / f"sys/class/net/{FIRST}/device/infiniband").iterdir():
        entry.rename(pair.head.root / "gone")
    found = pair.judge()
    assert bad(found) == {"rails_rdma": Grade.FAIL}
    assert "modprobe mlx5_ib" in found["rails_rdma"].hint


@pytest.mark.fault(16)
def test_a_card_that_left_the_bus_needs_its_cable_and_a_reboot(pair: Pair, tmp_path: Path) -> None:
    gone = Machine(tmp_path / "gone")
    gone.plain(MANAGEMENT, "10.20.0.12/24")
    gone.write("sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de")
    pair.machines["worker"] = gone
    found = pair.judge()
    assert found["rails_present"].grade is Grade.FAIL
    assert found["rails_present"].measured["spark-b"] == "ConnectX-7 gone from PCI"
    hint = found["rails_present"].hint
    assert "Put the cable in and reboot; never rescan the PCI bus" in hint
    assert "/sys/bus/pci/rescan" not in hint
    assert 16 in found["rails_present"].guards


def test_a_misspelt_interface_names_those_that_are_there(pair: Pair) -> None:
    wrong = [{**WANTED["head"][0], "interface": "enp1s0f9np9"}, WANTED["head"][1]]
    found = pair.judge(wanted={**WANTED, "head": wrong})
    assert found["rails_present"].grade is Grade.FAIL
    assert "spark-a has no interface enp1s0f9np9" in found["rails_present"].hint
    assert SECOND in found["rails_present"].hint


@pytest.mark.parametrize("count", [0, 1])
def test_exactly_two_rails_are_needed(pair: Pair, count: int) -> None:
    found = pair.judge(wanted={**WANTED, "head": WANTED["head"][:count]})
    assert found["rails_present"].grade is Grade.FAIL
    assert f"cx7_network_rails of spark-a has {count} entries" in found["rails_present"].hint


@pytest.mark.fault(31)
def test_other_ports_that_are_up_are_named(pair: Pair) -> None:
    pair.head.port("enp1s0f1np1")
    pair.head.port("enP2p1s0f1np1")
    pair.worker.port("enp1s0f1np1", carrier=False)
    found = pair.judge()
    assert bad(found) == {"rails_present": Grade.WARN}
    assert "enP2p1s0f1np1, enp1s0f1np1" in found["rails_present"].hint
    assert "spark-b" not in found["rails_present"].hint


def test_one_rail_down_fails_with_its_name(pair: Pair) -> None:
    pair.worker.write(f"sys/class/net/{SECOND}/carrier", "0")
    found = pair.judge()
    assert bad(found) == {"rails_link": Grade.FAIL}
    assert found["rails_link"].measured == {"spark-a": "200 Gb/s", "spark-b": "200 Gb/s, no link"}
    assert f"{SECOND} of spark-b has no link" in found["rails_link"].hint
    assert pair.judge(before_setup=True)["rails_link"].grade is Grade.FAIL


def test_a_slow_link_fails_unless_it_is_what_was_asked_for(pair: Pair) -> None:
    pair.head.write(f"sys/class/net/{FIRST}/speed", "100000")
    found = pair.judge()
    assert bad(found) == {"rails_link": Grade.FAIL}
    assert "100 Gb/s instead of 200 Gb/s" in found["rails_link"].hint
    assert bad(pair.judge(link_speed=100000)) == {}


@pytest.mark.parametrize(
    ("file", "check"),
    [
        ("carrier", "rails_link"),
        ("speed", "rails_link"),
        ("mtu", "rails_mtu"),
        ("device/current_link_width", "rails_pcie"),
        ("device/current_link_speed", "rails_pcie"),
    ],
)
def test_a_file_that_cannot_be_read_is_never_a_pass(pair: Pair, file: str, check: str) -> None:
    (pair.head.root / f"sys/class/net/{FIRST}/{file}").unlink()
    found = pair.judge()
    assert found[check].grade is Grade.UNKNOWN
    assert "it is not there" in found[check].hint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 2}, "32.0 GT/s x2"),
        ({"pcie_speed": "2.5 GT/s PCIe"}, "2.5 GT/s x4"),
        ({"pcie_speed": "8.0 GT/s PCIe"}, "8.0 GT/s x4"),
        ({"pcie_speed": "16.0 GT/s PCIe"}, "16.0 GT/s x4"),
    ],
)
def test_a_narrow_or_slow_pcie_link_fails(tmp_path: Path, changes: Any, words: str) -> None:
    found = Pair(tmp_path, **changes).judge()
    assert bad(found) == {"rails_pcie": Grade.FAIL}
    assert found["rails_pcie"].measured["spark-a"] == words
    assert f"runs at {words} instead of 32.0 GT/s x4" in found["rails_pcie"].hint


@pytest.mark.parametrize(
    ("speed", "grade"),
    [("64.0 GT/s PCIe", Grade.OK), ("32 GT/s", Grade.OK), ("Unknown", Grade.UNKNOWN)],
)
def test_a_pcie_speed_is_compared_as_a_number(tmp_path: Path, speed: str, grade: Grade) -> None:
    assert Pair(tmp_path, pcie_speed=speed).judge()["rails_pcie"].grade is grade


def test_two_ports_of_one_pcie_link_are_noticed(tmp_path: Path, pair: Pair) -> None:
    machine = pair.head
    machine.port("enp1s0f1np1", "192.168.178.11/24")
    machine.addresses[SECOND] = []
    wanted = [WANTED["head"][0], {**WANTED["head"][1], "interface": "enp1s0f1np1"}]
    found = pair.judge(wanted={**WANTED, "head": wanted})
    assert found["rails_pcie"].grade is Grade.WARN
    assert "0000:01:00" in found["rails_pcie"].hint


@pytest.mark.fault(20)
def test_twins_in_one_subnet_fail_before_and_after_the_network_stage(pair: Pair) -> None:
    same = {role: rails(number, second="192.168.177") for role, number in NUMBERS.items()}
    same["worker"][1]["address"] = "192.168.177.22/24"
    for before in (False, True):
        found = pair.judge(wanted=same, before_setup=before)
        assert found["rails_subnets"].grade is Grade.FAIL
        assert "Both rails of spark-a are in one subnet" in found["rails_subnets"].hint


@pytest.mark.fault(20)
def test_twins_that_are_in_one_subnet_now_fail_until_they_are_set(pair: Pair) -> None:
    pair.head.addresses[SECOND] = ["192.168.177.111/24"]
    found = pair.judge()
    assert found["rails_subnets"].grade is Grade.FAIL
    assert found["rails_subnets"].measured["spark-a"].endswith("now both in one")
    assert pair.judge(before_setup=True)["rails_subnets"].grade is Grade.WARN


def test_two_link_local_addresses_are_not_taken_for_one_subnet(pair: Pair) -> None:
    for name in (FIRST, SECOND):
        pair.head.addresses[name].append("169.254.1.1/16")
    assert pair.judge()["rails_subnets"].grade is Grade.OK


def test_ends_in_different_subnets_fail(pair: Pair) -> None:
    crossed = {**WANTED, "worker": list(reversed(WANTED["worker"]))}
    found = pair.judge(wanted=crossed)
    assert found["rails_subnets"].grade is Grade.FAIL
    assert "192.168.177.0/24, 192.168.178.0/24" in found["rails_subnets"].hint


def test_one_address_for_both_ends_fails(pair: Pair) -> None:
    found = pair.judge(wanted={"head": WANTED["head"], "worker": WANTED["head"]})
    assert found["rails_subnets"].grade is Grade.FAIL
    assert "have the same address 192.168.177.11/24" in found["rails_subnets"].hint


@pytest.mark.parametrize("address", ["192.168.177.11", "nonsense", "192.168.177.300/24"])
def test_an_address_that_is_none_is_named(pair: Pair, address: str) -> None:
    wrong = [{**WANTED["head"][0], "address": address}, WANTED["head"][1]]
    found = pair.judge(wanted={**WANTED, "head": wrong})
    assert found["rails_subnets"].grade is Grade.FAIL
    assert repr(address) in found["rails_subnets"].hint


@pytest.mark.fault(10)
def test_a_link_local_stray_fails(pair: Pair) -> None:
    pair.worker.addresses[SECOND].append("169.254.77.1/16")
    found = pair.judge()
    assert bad(found) == {"rails_addresses": Grade.FAIL}
    assert f"{SECOND} of spark-b has given itself 169.254.77.1/16" in found["rails_addresses"].hint
    assert pair.judge(before_setup=True)["rails_addresses"].grade is Grade.WARN
    # The stage leaves it alone while a model server uses the rail.
    assert pair.judge(serving=True)["rails_addresses"].grade is Grade.WARN
    pair.worker.addresses[SECOND] = ["169.254.77.1/16"]
    assert pair.judge(serving=True)["rails_addresses"].grade is Grade.FAIL


def test_another_address_beside_the_wanted_one_is_a_warning(pair: Pair) -> None:
    pair.worker.addresses[FIRST].append("192.168.50.1/24")
    found = pair.judge()
    assert bad(found) == {"rails_addresses": Grade.WARN}
    assert "192.168.50.1/24" in found["rails_addresses"].hint


def test_ipv6_link_local_addresses_are_normal(pair: Pair) -> None:
    pair.worker.addresses[FIRST].append("fe80::1/64")
    assert bad(pair.judge()) == {}


def test_a_wrong_prefix_length_is_not_the_wanted_address(pair: Pair) -> None:
    pair.head.addresses[FIRST] = ["192.168.177.11/16"]
    found = pair.judge()
    assert found["rails_addresses"].grade is Grade.FAIL
    assert "has 192.168.177.11/16, not 192.168.177.11/24" in found["rails_addresses"].hint


def test_addresses_that_cannot_be_read_are_unknown(pair: Pair) -> None:
    pair.head.answers["ip address"] = Result(1, "", "ip: cannot open netlink socket")
    found = pair.judge()
    assert found["rails_addresses"].grade is Grade.UNKNOWN
    assert "netlink" in found["rails_addresses"].hint
    assert found["rails_rdma"].grade is Grade.UNKNOWN


def test_unequal_mtus_fail_whichever_is_meant(pair: Pair) -> None:
    pair.worker.write(f"sys/class/net/{SECOND}/mtu", "9000")
    found = pair.judge()
    assert bad(found) == {"rails_mtu": Grade.FAIL, "rails_persistent": Grade.WARN}
    assert f"9000 on {SECOND} of spark-b" in found["rails_mtu"].hint
    # Nobody asked the network stage to set an MTU, so it will not mend this.
    assert pair.judge(before_setup=True)["rails_mtu"].grade is Grade.FAIL


def test_an_mtu_that_was_asked_for_is_set_by_the_network_stage(pair: Pair) -> None:
    assert bad(pair.judge(mtu=9000)) == {"rails_mtu": Grade.FAIL}
    assert bad(pair.judge(mtu=9000, before_setup=True)) == {"rails_mtu": Grade.WARN}


@pytest.mark.fault(20)
def test_frames_that_are_lost_in_one_direction_fail(pair: Pair) -> None:
    pair.head.lost = {SECOND: 2}
    found = pair.judge()
    assert bad(found) == {"rails_path": Grade.FAIL}
    hint = found["rails_path"].hint
    assert f"192.168.178.12 does not answer spark-a over {SECOND}" in hint
    assert "although the other direction works" in hint
    assert "1472 bytes" in hint
    # Both ends have their addresses: the network stage would find nothing to set.
    assert pair.judge(before_setup=True)["rails_path"].grade is Grade.FAIL


@pytest.mark.fault(10)
def test_frames_that_are_lost_in_both_directions_fail_once_a_direction(pair: Pair) -> None:
    pair.head.lost = pair.worker.lost = {FIRST: 2}
    hint = pair.judge()["rails_path"].hint
    assert "does not answer spark-a" in hint
    assert "does not answer spark-b" in hint
    assert "other direction" not in hint


def test_a_single_lost_frame_is_a_warning(pair: Pair) -> None:
    pair.head.lost = {SECOND: 1}
    found = pair.judge()
    assert bad(found) == {"rails_path": Grade.WARN}
    assert found["rails_path"].measured["spark-a"] == "2/2, 1/2"


def test_a_missing_ping_is_unknown(pair: Pair) -> None:
    pair.head.answers["ping"] = Result(127, "", "ping: not found")
    found = pair.judge()
    assert bad(found) == {"rails_path": Grade.UNKNOWN}
    assert "ping: not found" in found["rails_path"].hint


@pytest.mark.fault(10)
def test_an_address_that_the_next_boot_forgets_is_a_warning(pair: Pair) -> None:
    (pair.head.root / "etc/netplan/40-cx7.yaml").unlink()
    pair.head.write(
        "run/NetworkManager/system-connections/rail.nmconnection",
        f"[connection]\ninterface-name={FIRST}\n[ipv4]\naddress1=192.168.177.11/24",
    )
    found = pair.judge()
    assert bad(found) == {"rails_persistent": Grade.WARN}
    assert f"No file configures the address of {FIRST} of spark-a" in found["rails_persistent"].hint


@pytest.mark.fault(10)
def test_an_mtu_that_the_next_boot_changes_is_a_warning(pair: Pair) -> None:
    for machine in pair.machines.values():
        for name in (FIRST, SECOND):
            machine.write(f"sys/class/net/{name}/mtu", "9000")
    found = pair.judge(mtu=9000)
    assert bad(found) == {"rails_persistent": Grade.WARN}
    assert f"{FIRST} of spark-a has MTU 9000 now and 1500" in found["rails_persistent"].hint


@pytest.mark.parametrize("check", judge.MUST_BE_KNOWN)
def test_in_the_network_stage_unknown_stops_unless_it_is_accepted(pair: Pair, check: str) -> None:
    pair.head.answers["ping"] = Result(127, "", "ping: not found")
    (pair.head.root / f"sys/class/net/{FIRST}/mtu").unlink()
    pair.worker.gids(SECOND, {3: (gid_text("192.168.178.12"), "")})
    found = [one for one in pair.judge().values() if one.id == check]
    assert found[0].grade is Grade.UNKNOWN
    assert summary(found) == ""
    assert summary(found, must_be_known=judge.MUST_BE_KNOWN) == found[0].hint
    assert summary(found, [check], judge.MUST_BE_KNOWN) == ""


WAYS = ("10.20.0.12", "192.168.177.12", "192.168.178.12")
NO_KEY = "spark@10.20.0.12: Permission denied (publickey,password)."
UNPINNED = "Host key verification failed."
CLOSED = "ssh: connect to host 192.168.177.12 port 22: Connection refused"


@pytest.mark.parametrize(
    ("said", "grade", "words"),
    [
        (("", "", ""), Grade.OK, ""),
        ((NO_KEY, NO_KEY, NO_KEY), Grade.WARN, "makes the keys"),
        (("", UNPINNED, UNPINNED), Grade.WARN, "to 192.168.177.12"),
        (("", CLOSED, ""), Grade.FAIL, "to 192.168.177.12 (ssh: connect to host"),
        ((NO_KEY, CLOSED, ""), Grade.FAIL, "Connection refused"),
        (("ssh: no end after 20 s", "", ""), Grade.FAIL, "no end"),
        (("runuser: user spark does not exist", "", ""), Grade.UNKNOWN, "is not known"),
    ],
)
def test_each_way_of_ssh_is_judged(said: tuple[str, ...], grade: Grade, words: str) -> None:
    tried: dict[Role, Any] = {
        "head": dict(zip(WAYS, said, strict=True)), "worker": {"10.20.0.11": ""}
    }  # fmt: skip
    found = judge.ssh(PAIR, tried, before_setup=False)
    assert found.grade is grade and words in found.hint
    assert bool(found.hint) == (grade is not Grade.OK)
    assert found.measured["spark-a"] == f"{said.count('')} of 3 ways"
    if grade is Grade.FAIL:
        assert judge.ssh(PAIR, tried, before_setup=True).grade is Grade.WARN


def test_ways_that_were_not_tried_are_unknown() -> None:
    tried: dict[Role, Any] = {"head": {"10.20.0.12": ""}, "worker": None}
    found = judge.ssh(PAIR, tried, before_setup=False)
    assert found.grade is Grade.UNKNOWN and "spark-b" in found.hint


@pytest.mark.fault(21)
def test_a_rail_as_management_path_fails_unless_the_operator_says_so(pair: Pair) -> None:
    views: dict[Role, Any] = {role: pair.view(role) for role in NUMBERS}
    views["worker"] = pair.worker.look("192.168.177.12", {})
    found = pair.judge(views=views)
    assert found["management_path"].grade is Grade.FAIL
    assert f"spark-b is managed over {FIRST}, a rail" in found["management_path"].hint
    found = pair.judge(views=views, allow_management_rail=True)
    assert found["management_path"].grade is Grade.OK


@pytest.mark.fault(21)
def test_a_wireless_management_path_is_a_warning(pair: Pair) -> None:
    (pair.head.root / f"sys/class/net/{MANAGEMENT}/wireless").mkdir()
    found = pair.judge()
    assert bad(found) == {"management_path": Grade.WARN}
    assert found["management_path"].measured["spark-a"] == f"{MANAGEMENT} (wireless)"


@pytest.mark.parametrize("up", [True, False])
def test_rails_that_nobody_has_set_up_are_warnings_before_the_network_stage(
    tmp_path: Path, up: bool
) -> None:
    pair = Pair(tmp_path, up=up, state="4: ACTIVE" if up else "1: DOWN")
    for machine in pair.machines.values():
        machine.addresses.update({FIRST: [], SECOND: []})
        machine.gids(FIRST, {})
        machine.gids(SECOND, {})
        machine.lost = {FIRST: 2, SECOND: 2}
        (machine.root / "etc/netplan/40-cx7.yaml").unlink()
    before = pair.judge(before_setup=True)
    expected = {"rails_addresses", "rails_path", "rails_rdma", "rails_persistent"}
    assert set(bad(before)) == expected | (set() if up else {"rails_link"})
    assert set(bad(before).values()) == {Grade.WARN}
    for name in ("rails_addresses", "rails_rdma", "rails_persistent"):
        assert "the network stage sets it" in before[name].hint
    after = bad(pair.judge())
    assert after["rails_addresses"] is after["rails_path"] is after["rails_rdma"] is Grade.FAIL
    assert after["rails_persistent"] is Grade.WARN


def test_with_one_host_down_the_other_one_is_still_judged(pair: Pair) -> None:
    pair.unseen = {"worker"}
    pair.head.write(f"sys/class/net/{FIRST}/speed", "100000")
    found = pair.judge()
    assert bad(found) == {
        "rails_link": Grade.FAIL,
        "rails_subnets": Grade.UNKNOWN,
        "rails_mtu": Grade.UNKNOWN,
        "rails_path": Grade.UNKNOWN,
    }
    assert found["rails_mtu"].measured["spark-b"] == "not seen"
    assert "spark-b was not seen" in found["rails_mtu"].hint
    assert "spark-b" not in found["rails_pcie"].measured


def test_what_a_peer_that_is_off_explains_is_no_failure(pair: Pair) -> None:
    pair.unseen = {"worker"}
    pair.head.lost = {FIRST: 2, SECOND: 2}
    for name, device in ((FIRST, "rocep1s0f0"), (SECOND, "roceP2p1s0f0")):
        pair.head.write(f"sys/class/net/{name}/carrier", "0")
        pair.head.write(f"sys/class/infiniband/{device}/ports/1/state", "1: DOWN")
    found = pair.judge()
    assert set(bad(found).values()) == {Grade.UNKNOWN}
    assert "a machine that is off gives none" in found["rails_link"].hint
    assert found["rails_path"].measured["spark-a"] == "no answer"
    pair.unseen = set()
    assert pair.judge()["rails_path"].grade is Grade.FAIL


def test_with_both_hosts_down_nothing_passes(pair: Pair) -> None:
    found = pair.judge(views={})
    assert {one.grade for one in found.values()} == {Grade.UNKNOWN}


def test_a_hint_stays_short_however_much_is_wrong(pair: Pair) -> None:
    for machine in pair.machines.values():
        machine.addresses.update({FIRST: [], SECOND: []})
    assert pair.judge()["rails_addresses"].hint.endswith("And 1 more like these.")


def test_the_table_shows_verdicts_cells_and_hints(pair: Pair) -> None:
    pair.worker.write(f"sys/class/net/{SECOND}/carrier", "0")
    found = list(pair.judge().values())
    lines = shown("rails", PAIR, found, titles=judge.TITLES).splitlines()
    assert lines[0].split() == ["rails", "spark-a", "(head)", "spark-b", "(worker)", "verdict"]
    assert lines[3].split("  ")[1:3] == ["link", ""]
    assert "200 Gb/s, no link" in lines[3]
    assert lines[3].endswith("FAIL")
    (hint,) = [line for line in lines if line.startswith("  ! rails_link: ")]
    assert f"{SECOND} of spark-b has no link" in hint
    accepted = shown("rails", PAIR, found, titles=judge.TITLES, accepted=["rails_link"])
    assert accepted.splitlines()[3].endswith("accepted")
