"""What each rail carries: parsing, judging, and servers that leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rails_host import FIRST, SECOND, Machine, spark, table

from spark_pair.description import Role
from spark_pair.findings import Finding, Grade
from spark_pair.rails import bandwidth
from spark_pair.rails.bandwidth import BandwidthError, Speed
from spark_pair.system import Result

PAIR: dict[Role, str] = {"head": "spark-a", "worker": "spark-b"}
HEADER = """
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF          Device         : rocep1s0f0
 Number of qps   : 4            Transport type : IB
 Mtu             : 1024[B]
 Link type       : Ethernet
 GID index       : 3
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0127 PSN 0x4b1c8e RKey 0x1fff00 VAddr 0x00ffff8a2f0000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:177:12
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
"""
RULE = "-" * 87 + "\n"


def row(gbps: float) -> str:
    return f"{HEADER} 65536      882800           0.00               {gbps:.2f}   0.176562\n{RULE}"


RAILS = bandwidth.rails_of(
    [
        {"interface": FIRST, "address": "192.168.177.12/24"},
        {"interface": SECOND, "address": "192.168.178.12/24"},
    ],
    {FIRST: "192.168.177.11", SECOND: "192.168.178.11"},
)


def judged(*gbps: float | None, **changes: Any) -> Finding:
    measured = {
        name: {"tool": "ib_write_bw", "gbps": speed, "error": "" if speed else "no row"}
        for name, speed in zip((FIRST, SECOND), gbps, strict=False)
    }
    options = {"floor": 80.0, "link_speed": 200000, **changes}
    (found,) = bandwidth.findings(PAIR, [FIRST, SECOND], measured or None, **options)
    assert bool(found.hint) == (found.grade is not Grade.OK)
    return found


def test_the_average_of_the_row_is_read() -> None:
    assert bandwidth.parse_ib_write_bw(row(92.57)) == 92.57


@given(st.floats(min_value=0, max_value=400).map(lambda value: round(value, 2)))
def test_any_average_is_read(gbps: float) -> None:
    assert bandwidth.parse_ib_write_bw(row(gbps)) == gbps


@pytest.mark.fault(4)
def test_a_header_without_a_row_is_no_result_although_the_exit_code_is_0() -> None:
    with pytest.raises(BandwidthError, match="no result row"):
        bandwidth.parse_ib_write_bw(HEADER + RULE)


def test_a_row_in_another_unit_is_no_result() -> None:
    with pytest.raises(BandwidthError, match="does not report Gb/s"):
        bandwidth.parse_ib_write_bw(row(92.57).replace("Gb/sec", "MB/sec"))


def test_iperf3_is_read_by_what_arrived() -> None:
    answer = {"end": {"sum_sent": {"bits_per_second": 9e10},
                      "sum_received": {"bits_per_second": 8.8e10}}}  # fmt: skip
    assert bandwidth.parse_iperf3(json.dumps(answer)) == 88.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"error": "unable to connect to server: Connection refused"}', "Connection refused"),
        ("", "no result"),
        ("[]", "no result"),
        ('{"end": {}}', "no result"),
    ],
)
def test_iperf3_without_a_result_says_why(text: str, words: str) -> None:
    with pytest.raises(BandwidthError, match=words):
        bandwidth.parse_iperf3(text)


@pytest.mark.fault(5)
@pytest.mark.parametrize(
    ("gbps", "speed"),
    [
        (92.6, Speed.HEALTHY),
        (80.0, Speed.HEALTHY),
        (79.9, Speed.LOW),
        (25.1, Speed.LOW),
        (25.0, Speed.HOT_PLUG),
        (13.0, Speed.HOT_PLUG),
        (8.0, Speed.HOT_PLUG),
        (7.9, Speed.LOW),
        (0.0, Speed.LOW),
        (None, Speed.UNKNOWN),
        (float("nan"), Speed.UNKNOWN),
    ],
)
def test_what_a_bandwidth_means(gbps: float | None, speed: Speed) -> None:
    assert bandwidth.classify(gbps, floor=80, link_speed=200000) is speed


@pytest.mark.fault(5)
def test_the_hot_plug_fault_is_one_of_fast_links_and_of_what_is_below_the_floor() -> None:
    assert bandwidth.classify(13.0, floor=80, link_speed=25000) is Speed.LOW
    assert bandwidth.classify(13.0, floor=10, link_speed=200000) is Speed.HEALTHY


@pytest.mark.fault(5)
def test_a_cable_that_was_plugged_in_hot_asks_for_a_reboot_of_both() -> None:
    found = judged(13.0, 12.8)
    assert found.grade is Grade.FAIL
    assert found.measured == {"spark-b": "13.0 Gb/s (ib_write_bw), 12.8 Gb/s (ib_write_bw)"}
    assert "Reboot both machines with the cable in" in found.hint
    assert "spark-a and spark-b" in found.hint
    assert 5 in found.guards


@pytest.mark.parametrize(
    ("gbps", "speed"),
    [
        (80.0, Speed.HEALTHY),
        (79.9, Speed.SOCKETS),
        (25.1, Speed.SOCKETS),
        (25.0, Speed.HOT_PLUG),
        (7.9, Speed.LOW),
    ],
)
def test_sockets_need_not_reach_the_floor(gbps: float, speed: Speed) -> None:
    assert bandwidth.classify(gbps, floor=80, link_speed=200000, tool="iperf3") is speed
    one = {"tool": "iperf3", "gbps": gbps, "error": ""}
    (found,) = bandwidth.findings(PAIR, [FIRST], {FIRST: one}, floor=80, link_speed=200000)
    grades = {Speed.HEALTHY: Grade.OK, Speed.SOCKETS: Grade.WARN}
    assert found.grade is grades.get(speed, Grade.FAIL)
    assert ("measure with ib_write_bw" in found.hint) == (speed is Speed.SOCKETS)


def test_each_rail_has_its_own_floor() -> None:
    assert judged(92.6, 97.3).grade is Grade.OK
    found = judged(92.6, 44.0)
    assert found.grade is Grade.FAIL
    assert f"{SECOND} carries 44.0 Gb/s" in found.hint
    assert FIRST not in found.hint
    assert judged(92.6, 44.0, floor=40.0).grade is Grade.OK


def test_what_was_not_measured_is_unknown() -> None:
    found = judged(92.6, None)
    assert found.grade is Grade.UNKNOWN
    assert f"{SECOND} between spark-a and spark-b is not known: no row" in found.hint
    assert judged().grade is Grade.UNKNOWN
    (empty,) = bandwidth.findings(PAIR, [], None, floor=80, link_speed=200000)
    assert empty.grade is Grade.UNKNOWN


@pytest.mark.fault(4)
def test_the_gid_index_of_a_test_is_read_when_it_starts(tmp_path: Path) -> None:
    machine = spark(tmp_path, 12)
    argv = bandwidth.client_argv("ib_write_bw", RAILS[0], tmp_path)
    assert argv[argv.index("-x") + 1] == "3"
    machine.gids(FIRST, table("192.168.177.12/24", first=5))
    argv = bandwidth.client_argv("ib_write_bw", RAILS[0], tmp_path)
    assert argv[argv.index("-x") + 1] == "5"
    assert argv[-1] == "192.168.177.11"
    machine.gids(FIRST, {})
    with pytest.raises(BandwidthError, match=r"no RDMA device with a RoCE v2 GID"):
        bandwidth.client_argv("ib_write_bw", RAILS[0], tmp_path)


@pytest.mark.fault(34)
def test_buffers_stay_far_below_a_gigabyte(tmp_path: Path) -> None:
    spark(tmp_path, 12)
    argv = bandwidth.server_argv("ib_write_bw", RAILS[0], tmp_path)
    size, pairs = (int(argv[argv.index(option) + 1]) for option in ("-s", "-q"))
    assert 2 * size * pairs <= 16 * 2**20
    assert "-a" not in argv
    unit = bandwidth.unit_argv(RAILS[0], argv)
    assert "--property=MemoryMax=1G" in unit


def test_a_server_is_a_unit_that_ends_by_itself() -> None:
    argv = bandwidth.unit_argv(RAILS[0], ["iperf3", "-s"])
    assert "--collect" in argv
    assert "--property=RuntimeMaxSec=60" in argv
    assert argv[argv.index("--") :] == ["--", "iperf3", "-s"]


class Programs:
    """systemd-run that makes a port listen, and clients that answer."""

    def __init__(self, root: Path, *answers: Result, listen: bool = True) -> None:
        self.root, self.listen = root, listen
        self.answers = list(answers)
        self.asked: list[list[str]] = []
        self.set_ports()

    def set_ports(self, *ports: int) -> None:
        lines = [f" 0: 00000000:{port:04X} 00000000:0000 0A 0:0 0" for port in ports]
        path = self.root / "proc/net/tcp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["header", *lines]))

    def __call__(self, argv: Sequence[str], timeout: float) -> Result:
        assert 0 < timeout < 60
        self.asked.append(list(argv))
        if argv[0] == "systemd-run" and self.listen:
            self.set_ports(18515, 18516)
        return self.answers.pop(0) if self.answers else Result(0, "", "")

    def stopped(self) -> list[str]:
        return [argv[2] for argv in self.asked if argv[:2] == ["systemctl", "stop"]]


UNITS = [f"spark-pair-rail-bandwidth-{name}.service" for name in (FIRST, SECOND)]


def test_servers_are_waited_for_until_they_listen(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    bandwidth.serve("iperf3", RAILS, runner=programs, root=tmp_path, wait=0)
    started = [argv for argv in programs.asked if argv[0] == "systemd-run"]
    assert [argv[argv.index("-p") + 1] for argv in started] == ["18515", "18516"]
    assert [argv[argv.index("-B") + 1] for argv in started] == ["192.168.177.12", "192.168.178.12"]
    assert not programs.stopped()


def test_a_server_that_does_not_listen_takes_both_away(tmp_path: Path) -> None:
    programs = Programs(tmp_path, listen=False)
    with pytest.raises(BandwidthError, match=f"the server for {FIRST} does not listen"):
        bandwidth.serve("iperf3", RAILS, runner=programs, root=tmp_path, wait=0)
    assert programs.stopped() == UNITS


def test_a_server_that_does_not_start_takes_both_away(tmp_path: Path) -> None:
    programs = Programs(tmp_path, Result(0, "", ""), Result(1, "", "Unit exists already."))
    with pytest.raises(BandwidthError, match=f"{UNITS[1]} does not start: Unit exists already"):
        bandwidth.serve("iperf3", RAILS, runner=programs, root=tmp_path, wait=0)
    assert programs.stopped() == UNITS


def test_a_port_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    programs.set_ports(18516)
    with pytest.raises(BandwidthError, match="port 18516 is taken"):
        bandwidth.serve("iperf3", RAILS, runner=programs, root=tmp_path, wait=0)
    assert programs.asked == []


def test_each_rail_is_measured_and_one_failure_leaves_the_other(tmp_path: Path) -> None:
    machine: Machine = spark(tmp_path, 12)
    programs = Programs(tmp_path, Result(0, HEADER + RULE, ""), Result(0, row(97.28), ""))
    found = bandwidth.measure("ib_write_bw", RAILS, runner=programs, root=machine.root)
    assert found[FIRST]["gbps"] is None
    assert found[FIRST]["error"] == "ib_write_bw printed no result row"
    assert found[SECOND] == {"tool": "ib_write_bw", "gbps": 97.28, "error": ""}
    assert [argv[2] for argv in programs.asked] == ["rocep1s0f0", "roceP2p1s0f0"]


def test_a_client_that_fails_says_why(tmp_path: Path) -> None:
    spark(tmp_path, 12)
    words = "Couldn't connect to 192.168.177.11:18515"
    programs = Programs(tmp_path, Result(1, "", words), Result(124, "", "no end after 35 s"))
    found = bandwidth.measure("ib_write_bw", RAILS, runner=programs, root=tmp_path)
    assert found[FIRST]["error"] == words
    assert found[SECOND]["error"] == "no end after 35 s"
    programs = Programs(tmp_path, Result(127, "", "iperf3: not found"), Result(1, "{}", ""))
    found = bandwidth.measure("iperf3", RAILS, runner=programs, root=tmp_path)
    assert found[FIRST]["error"] == "iperf3: not found"
    assert "no result" in found[SECOND]["error"]


def test_the_tool_that_tests_rdma_is_preferred() -> None:
    assert bandwidth.tools(lambda name: f"/usr/bin/{name}") == ["ib_write_bw", "iperf3"]
    assert bandwidth.tools(lambda name: None) == []
