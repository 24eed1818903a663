"""What the rails of a pair shall be, what has to change for it, and when that may happen."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_pair import describe

from spark_pair import description as descriptions
from spark_pair.rails import job, netplan, plan
from spark_pair.rails.wanted import Wanted, WantedError, wanted_from_dict, wanted_of
from spark_pair.system import Result

FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
PAIR: dict[Any, str] = {"head": "spark-033f", "worker": "spark-5bf0"}


def variables(**head: Any) -> dict[str, dict[str, Any]]:
    """Variables of both hosts; `head` overrides the head's."""
    common = {
        "cx7_network_mtu": "",
        "cx7_network_renderer": "auto",
        "cx7_network_file": "/etc/netplan/40-cx7.yaml",
        "cx7_network_confirm_seconds": 120,
    }
    hosts = {
        host: {
            **common,
            "cx7_network_rails": [
                {"interface": FIRST, "address": f"192.168.177.{number}/24"},
                {"interface": SECOND, "address": f"192.168.178.{number}/24"},
            ],
        }
        for host, number in (("spark-033f", 11), ("spark-5bf0", 12))
    }
    hosts["spark-033f"].update(head)
    return hosts


def rails(*entries: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"interface": name, "address": address} for name, address in entries]


def both() -> dict[Any, Wanted]:
    return wanted_of(PAIR, variables())


def test_each_rail_knows_its_peer() -> None:
    found = both()
    assert [rail.peer for rail in found["head"].rails] == ["192.168.177.12", "192.168.178.12"]
    assert [rail.peer for rail in found["worker"].rails] == ["192.168.177.11", "192.168.178.11"]
    assert wanted_from_dict(found["head"].as_dict()) == found["head"]


@pytest.mark.parametrize(("value", "mtu"), [("", None), (9000, 9000), ("1500", 1500)])
def test_an_mtu_is_a_number_or_left_alone(value: object, mtu: int | None) -> None:
    given = variables()
    for host in given.values():
        host["cx7_network_mtu"] = value
    assert {one.mtu for one in wanted_of(PAIR, given).values()} == {mtu}


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "one rail": (
        {"cx7_network_rails": rails((FIRST, "192.168.177.11/24"))},
        ("lists 1 rails", "spark-033f"),
    ),
    "no rails": ({"cx7_network_rails": None}, ("lists 0 rails",)),
    "three rails": (
        {
            "cx7_network_rails": rails(
                (FIRST, "192.168.177.11/24"), (SECOND, "192.168.178.11/24"), ("x", "10.0.0.1/24")
            )
        },
        ("lists 3 rails",),
    ),
    "no address": (
        {"cx7_network_rails": rails((FIRST, "192.168.177.11"), (SECOND, "192.168.178.11/24"))},
        ("cx7_network_rails[0]", "'192.168.177.11'"),
    ),
    "the subnet itself": (
        {"cx7_network_rails": rails((FIRST, "192.168.177.0/24"), (SECOND, "192.168.178.11/24"))},
        ("'192.168.177.0/24'",),
    ),
    "link-local": (
        {"cx7_network_rails": rails((FIRST, "169.254.1.1/16"), (SECOND, "192.168.178.11/24"))},
        ("'169.254.1.1/16'",),
    ),
    "an interface that is a path": (
        {"cx7_network_rails": rails(("../x", "192.168.177.11/24"), (SECOND, "192.168.178.11/24"))},
        ("'../x'",),
    ),
    "one interface twice": (
        {"cx7_network_rails": rails((FIRST, "192.168.177.11/24"), (FIRST, "192.168.178.11/24"))},
        ("both rails of spark-033f name",),
    ),
    "one address twice": (
        {"cx7_network_rails": rails((FIRST, "192.168.177.12/24"), (SECOND, "192.168.178.11/24"))},
        ("192.168.177.12 is given twice", "spark-033f enp1s0f0np0", "spark-5bf0 enp1s0f0np0"),
    ),
    "the order of the rails differs": (
        {"cx7_network_rails": rails((SECOND, "192.168.178.11/24"), (FIRST, "192.168.177.11/24"))},
        ("rail 1 has its ends in different subnets", "rail 2"),
    ),
    "prefix lengths differ": (
        {"cx7_network_rails": rails((FIRST, "192.168.177.11/25"), (SECOND, "192.168.178.11/24"))},
        ("different subnets",),
    ),
    "an MTU that differs": ({"cx7_network_mtu": 9000}, ("9000 for spark-033f", "not set for")),
    "an MTU below": ({"cx7_network_mtu": 1499}, ("1500 to 9216",)),
    "an MTU above": ({"cx7_network_mtu": "9217"}, ("1500 to 9216",)),
    "an MTU in words": ({"cx7_network_mtu": "jumbo"}, ("'jumbo'",)),
    "a renderer nobody knows": ({"cx7_network_renderer": "ifupdown"}, ("'ifupdown'",)),
    "a file elsewhere": ({"cx7_network_file": "/etc/passwd"}, ("/etc/netplan",)),
    "a file above": ({"cx7_network_file": "/etc/netplan/../x.yaml"}, ("/etc/netplan",)),
    "no time": ({"cx7_network_confirm_seconds": 0}, ("5 to 3600",)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_variables_are_refused_in_words(wrong: str) -> None:
    given, words = WRONG[wrong]
    with pytest.raises(WantedError) as raised:
        wanted_of(PAIR, variables(**given))
    for word in words:
        assert word in str(raised.value), raised.value


@pytest.mark.fault(20)
def test_twins_in_one_subnet_are_refused() -> None:
    given = rails((FIRST, "192.168.177.11/24"), (SECOND, "192.168.177.13/24"))
    with pytest.raises(WantedError, match=r"both in 192.168.177.0/24.*each its own"):
        wanted_of(PAIR, variables(cx7_network_rails=given))


# ---- one host


def view(number: int = 11) -> dict[str, Any]:
    """A host whose rails are as wanted."""
    return {
        "interfaces": {
            name: {
                "present": True,
                "cx7": True,
                "pci": pci,
                "up": True,
                "carrier": True,
                "mtu": 1500,
                "addresses": [f"192.168.{subnet}.{number}/24"],
            }
            for name, subnet, pci in (
                (FIRST, 177, "0000:01:00.0"),
                (SECOND, 178, "0002:01:00.0"),
            )
        },
        "cx7": [FIRST, SECOND],
        "management": {"interface": "enP7s7", "wireless": False, "address": "192.0.2.11"},
        "default_route": "enP7s7",
        "renderer": "networkd",
        "renderer_why": "systemd-networkd is active",
        "persistent": {FIRST: "/etc/netplan/40-cx7.yaml", SECOND: "/etc/netplan/40-cx7.yaml"},
        "kept": {FIRST: {}, SECOND: {}},
        "kept_mtu": {FIRST: None, SECOND: None},
        "paths": {
            name: {"peer": "", "size": 1472, "sent": 2, "received": 2, "error": ""}
            for name in (FIRST, SECOND)
        },
        "unread": {},
    }


def no_program(argv: Sequence[str], timeout: float) -> Result:
    raise AssertionError(f"nothing is to be asked: {argv}")


def test_what_works_is_left_alone_whoever_has_configured_it() -> None:
    seen = view()
    seen["persistent"] = dict.fromkeys((FIRST, SECOND), "a keyfile of NetworkManager")
    seen["renderer"] = None
    made = plan.make(both()["head"], seen, runner=no_program)
    assert (made["state"], made["changes"], made["writes"]) == (plan.WORKING, [], [])


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (FIRST, {"addresses": []}, "gets 192.168.177.11/24 (now none)"),
        (FIRST, {"addresses": ["192.168.177.11/16"]}, "(now 192.168.177.11/16)"),
        (SECOND, {"carrier": False}, "has no carrier"),
        (SECOND, {"carrier": None}, "has no carrier"),
    ],
)
def test_what_does_not_work_is_named(name: str, change: dict[str, Any], words: str) -> None:
    seen = view()
    seen["interfaces"][name].update(change)
    (said,) = plan.differences(both()["head"], seen)
    assert said.startswith(name) and words in said


def test_an_mtu_matters_only_when_it_is_asked_for() -> None:
    seen = view()
    seen["interfaces"][SECOND]["mtu"] = 9000
    assert plan.differences(both()["head"], seen) == []
    given = variables()
    for host in given.values():
        host["cx7_network_mtu"] = 9000
    (said,) = plan.differences(wanted_of(PAIR, given)["head"], seen)
    assert said == f"{FIRST} gets MTU 9000 (now 1500)"


@pytest.mark.parametrize("what", ["addresses", "carrier", "mtu"])
def test_what_cannot_be_read_is_refused_and_not_taken_for_none(root: Path, what: str) -> None:
    seen = view()
    seen["interfaces"][SECOND][what] = [] if what == "addresses" else None
    seen["unread"] = {f"{SECOND}/{what}": "Permission denied"}
    made = plan.make(both()["head"], seen, runner=agreeable, root=root)
    words = f"{what} of {SECOND} cannot be read (Permission denied)"
    assert (made["state"], made["changes"], made["refusals"]) == (plan.DIFFERENT, [words], [words])
    assert not made["writes"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("lib/netplan", "etc/netplan", "run/netplan"):
        (tmp_path / folder).mkdir(parents=True)
    for name in (FIRST, SECOND, "enP7s7"):
        (tmp_path / "sys/class/net" / name).mkdir(parents=True)
        (tmp_path / "sys/class/net" / name / "address").write_text("4c:bb:47:00:00:01\n")
    return tmp_path


def agreeable(argv: Sequence[str], timeout: float) -> Result:
    """A host with netplan that says yes to everything but the merged check."""
    if argv[:2] == ["netplan", "get"]:
        return Result(1, "", "played")
    return Result(0, "", "")


def test_a_plan_holds_what_the_job_needs(root: Path) -> None:
    seen = view()
    seen["interfaces"][FIRST]["addresses"] = []
    old = root / "etc/netplan/cx7-netplan.yaml"
    both_ports = f"{FIRST}: {{link-local: [ipv4]}}, enp1s0f1np1: {{}}"
    old.write_text(f"network: {{ethernets: {{{both_ports}}}}}")
    made = plan.make(both()["head"], seen, runner=agreeable, root=root)
    assert made["state"] == plan.DIFFERENT
    assert made["refusals"] == ["netplan cannot merge the configuration: played"]
    assert made["renderer"] == "networkd"
    (write,) = made["writes"]
    assert (write["path"], write["mode"]) == ("/etc/netplan/40-cx7.yaml", 0o600)
    assert "192.168.177.11/24" in write["content"]
    assert made["removes"] == ["/etc/netplan/cx7-netplan.yaml"]
    assert made["before"] == {"/etc/netplan/cx7-netplan.yaml": old.read_text()}
    assert made["expect"]["/etc/netplan/40-cx7.yaml"] is None
    assert len(made["expect"]["/etc/netplan/cx7-netplan.yaml"]) == 64
    assert made["activates"] == [FIRST, SECOND]


def test_what_lives_only_until_the_next_boot_is_configured(root: Path) -> None:
    seen = view()
    seen["persistent"][SECOND] = None
    made = plan.make(both()["head"], seen, runner=agreeable, root=root)
    assert made["state"] == plan.FLEETING
    assert made["changes"] == [f"{SECOND} is configured for the next boot"]
    assert made["writes"]


def with_mtu(mtu: int) -> Wanted:
    given = variables()
    for host in given.values():
        host["cx7_network_mtu"] = mtu
    return wanted_of(PAIR, given)["head"]


def test_an_mtu_that_the_next_boot_forgets_is_configured(root: Path) -> None:
    seen = view()
    for name in (FIRST, SECOND):
        seen["interfaces"][name]["mtu"] = 9000
    made = plan.make(with_mtu(9000), seen, runner=agreeable, root=root)
    assert made["state"] == plan.FLEETING
    assert made["changes"][0] == f"{FIRST} keeps its MTU 9000 for the next boot"
    seen["kept_mtu"] = {FIRST: 9000, SECOND: 9000}
    assert plan.make(with_mtu(9000), seen, runner=no_program)["state"] == plan.WORKING
    # And the other way round: a boot would set what nobody has asked for.
    for name in (FIRST, SECOND):
        seen["interfaces"][name]["mtu"] = 1500
    assert plan.make(both()["head"], seen, runner=agreeable, root=root)["state"] == plan.FLEETING


def test_an_mtu_that_nobody_asked_for_is_kept_through_a_change(root: Path) -> None:
    seen = view()
    seen["interfaces"][FIRST].update(mtu=9000, addresses=[])
    old = root / "etc/netplan/cx7-netplan.yaml"
    old.write_text(f"network: {{ethernets: {{{FIRST}: {{mtu: 9000}}}}}}")
    made = plan.make(both()["head"], seen, runner=agreeable, root=root)
    (write,) = made["writes"]
    written = {one.name: one.body.get("mtu") for one in netplan.parse(write["content"]).definitions}
    assert written == {FIRST: 9000, SECOND: None}
    assert {name: one["mtu"] for name, one in made["interfaces"].items()} == {
        FIRST: 9000, SECOND: 1500
    }  # fmt: skip


def test_somebody_elses_second_address_is_left_alone(root: Path) -> None:
    seen = view()
    seen["interfaces"][FIRST]["addresses"].append("10.55.0.1/24")
    assert plan.make(both()["head"], seen, runner=no_program)["state"] == plan.WORKING
    seen["persistent"][FIRST] = None
    seen["kept"][FIRST] = {"192.168.177.11/24": "/a.yaml", "10.55.0.1/24": None}
    assert plan.make(both()["head"], seen, runner=no_program)["state"] == plan.WORKING


def test_a_change_keeps_what_a_file_configures_and_says_what_it_cannot_keep(root: Path) -> None:
    seen = view()
    seen["interfaces"][FIRST]["addresses"] += ["10.55.0.1/24", "10.66.0.1/24", "169.254.1.1/16"]
    seen["kept"][FIRST] = {
        "192.168.177.11/24": "/a.yaml", "10.55.0.1/24": "/a.yaml", "10.66.0.1/24": None
    }  # fmt: skip
    made = plan.make(with_mtu(9000), seen, runner=agreeable, root=root)
    (write,) = made["writes"]
    first, second = netplan.parse(write["content"]).definitions
    assert first.body["addresses"] == ["192.168.177.11/24", "10.55.0.1/24"]
    assert second.body["addresses"] == ["192.168.178.11/24"]
    assert made["interfaces"][FIRST]["keeps"] == ["10.55.0.1/24"]
    assert made["loses"] == [f"10.66.0.1/24 of {FIRST}"]
    # A rail without its own address is somebody's former configuration.
    seen["interfaces"][FIRST]["addresses"].remove("192.168.177.11/24")
    made = plan.make(with_mtu(9000), seen, runner=agreeable, root=root)
    assert made["interfaces"][FIRST]["keeps"] == made["loses"] == []


@pytest.mark.fault(10)
def test_addresses_that_a_rail_gave_itself_go_when_nobody_serves(root: Path) -> None:
    seen = view()
    seen["interfaces"][SECOND]["addresses"].append("169.254.3.3/16")
    made = plan.make(both()["head"], seen, runner=agreeable, root=root)
    assert made["state"] == plan.FLEETING
    assert made["changes"] == [f"{SECOND} loses 169.254.3.3/16, which it has given itself"]
    assert made["loses"] == []


def test_without_a_renderer_nothing_is_planned(root: Path) -> None:
    seen = view()
    seen["interfaces"][FIRST]["addresses"] = []
    seen.update(renderer=None, renderer_why="nobody is active")
    made = plan.make(both()["head"], seen, runner=agreeable, root=root)
    assert "nobody is active" in made["refusals"][0] and not made["writes"]


def test_a_renderer_that_is_asked_for_must_be_active(root: Path) -> None:
    given = variables()
    for host in given.values():
        host["cx7_network_renderer"] = "NetworkManager"
    seen = view()
    seen["interfaces"][FIRST]["addresses"] = []

    def inactive(argv: Sequence[str], timeout: float) -> Result:
        return Result(3, "", "") if argv[0] == "systemctl" else Result(0, "", "")

    made = plan.make(wanted_of(PAIR, given)["head"], seen, runner=inactive, root=root)
    assert "NetworkManager.service is not active" in made["refusals"][0]


def test_a_host_without_netplan_says_so(root: Path) -> None:
    seen = view()
    seen["interfaces"][FIRST]["addresses"] = []

    def without(argv: Sequence[str], timeout: float) -> Result:
        return Result(127, "", "netplan: not found")

    made = plan.make(both()["head"], seen, runner=without, root=root)
    assert made["refusals"] == ["netplan is not installed (package netplan.io)"]


@pytest.mark.parametrize("linked", ["40-cx7.yaml", "cx7-netplan.yaml"])
def test_a_link_is_not_replaced(root: Path, linked: str) -> None:
    seen = view()
    seen["interfaces"][FIRST]["addresses"] = []
    (root / "elsewhere").write_text(f"network: {{ethernets: {{{FIRST}: {{}}}}}}")
    (root / "etc/netplan" / linked).symlink_to("../../elsewhere")
    made = plan.make(both()["head"], seen, runner=agreeable, root=root)
    assert f"/etc/netplan/{linked} is a link" in made["refusals"][0] and not made["writes"]


def test_an_earlier_change_is_waited_for() -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def state() -> dict[str, Any]:
        return {"id": "one", "phase": "restored" if now > ends else "armed", "deadline": 110.0}

    def wait(clock: float = 100.0) -> str:
        return plan.wait_for_earlier(
            state, clock=lambda: clock, steady=lambda: now, sleep=sleep
        )  # fmt: skip

    ends = 112.0
    assert wait() == ""
    assert 112 <= now < 114
    ends = 1e9
    assert "(one) is neither" in wait()
    assert now < 114 + 2 * plan.EARLIER_GRACE_SECONDS
    # A clock that was wrong when the change was made must not make it wait for years.
    now = 100.0
    assert "(one) is neither" in wait(clock=-1e9)
    assert now < 101 + plan.LONGEST_CONFIRM_SECONDS + plan.EARLIER_GRACE_SECONDS
    assert plan.wait_for_earlier(lambda: None) == ""


def test_a_state_that_cannot_be_understood_is_said() -> None:
    assert "cannot be understood" in plan.wait_for_earlier(lambda: dict(json.loads("{half")))

    def damaged() -> dict[str, Any]:
        raise job.JobError("the state is damaged")

    assert plan.wait_for_earlier(damaged) == "the state is damaged"


# ---- what stands in the way


def test_nothing_stands_in_the_way_of_a_healthy_host() -> None:
    assert plan.obstacles("h", both()["head"], view(), allow_management_rail=False) == []


@pytest.mark.fault(16)
def test_a_missing_interface_is_a_matter_of_cable_and_reboot() -> None:
    seen = view()
    seen["interfaces"][SECOND] = {"present": False, "addresses": []}
    (said,) = plan.obstacles("spark-033f", both()["head"], seen, allow_management_rail=True)
    assert said.startswith(f"{SECOND} is missing on spark-033f")
    assert "cable in" in said and "reboot" in said and "never rescan" in said


def test_no_carrier_is_not_a_matter_of_configuration() -> None:
    seen = view()
    seen["interfaces"][SECOND]["carrier"] = False
    (said,) = plan.obstacles("h", both()["head"], seen, allow_management_rail=False)
    assert "no carrier" in said
    # An interface that is switched off cannot tell; being configured switches it on.
    seen["interfaces"][SECOND]["up"] = False
    assert plan.obstacles("h", both()["head"], seen, allow_management_rail=False) == []


def test_only_a_connectx_7_is_ever_a_rail() -> None:
    seen = view()
    seen["interfaces"][SECOND]["cx7"] = False
    (said,) = plan.obstacles("h", both()["head"], seen, allow_management_rail=True)
    assert f"{SECOND} of h is no port of a ConnectX-7" in said


@pytest.mark.fault(21)
def test_nothing_changes_while_the_operators_way_is_not_known() -> None:
    seen = view()
    seen["management"] = {"interface": None, "address": "spark.example", "how": "no default route"}
    (said,) = plan.hindrances("h", both()["head"], seen, allow_management_rail=False)
    assert "no default route" in said and "ansible_host" in said
    assert plan.hindrances("h", both()["head"], seen, allow_management_rail=True) == []


def test_two_ports_instead_of_two_halves_are_not_configured() -> None:
    seen = view()
    assert plan.hindrances("h", both()["head"], seen, allow_management_rail=False) == []
    seen["interfaces"][SECOND]["pci"] = "0000:01:00.1"
    (said,) = plan.hindrances("h", both()["head"], seen, allow_management_rail=False)
    assert "0000:01:00" in said and "enP2p1s0f0np0" in said


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"management": {"interface": FIRST, "address": "192.0.2.11"}},
            f"192.0.2.11 of h is on {FIRST}",
        ),
        ({"default_route": SECOND}, f"leads over {SECOND}"),
        (
            {"management": {"interface": "enP7s7", "address": "192.168.178.200"}},
            "192.168.178.200 of h lies in 192.168.178.0/24",
        ),
    ],
)  # fmt: skip
def test_the_operators_way_is_never_a_rail(change: dict[str, Any], words: str) -> None:
    seen = {**view(), **change}
    (said,) = plan.obstacles("h", both()["head"], seen, allow_management_rail=False)
    assert words in said and "cx7_network_allow_management_rail" in said
    assert plan.obstacles("h", both()["head"], seen, allow_management_rail=True) == []


# ---- the pair


def plans(head: str, worker: str) -> dict[Any, plan.Plan]:
    return {
        "head": {"state": head, "changes": ["this"]},
        "worker": {"state": worker, "changes": ["that"]},
    }


@pytest.mark.parametrize(
    ("head", "worker", "servers", "expected"),
    [
        (plan.WORKING, plan.WORKING, [], (plan.ADOPT, plan.ADOPT)),
        (plan.WORKING, plan.WORKING, ["x"], (plan.ADOPT, plan.ADOPT)),
        (plan.FLEETING, plan.WORKING, [], (plan.CONFIGURE, plan.ADOPT)),
        (plan.FLEETING, plan.FLEETING, ["x"], (plan.ADOPT, plan.ADOPT)),
        (plan.DIFFERENT, plan.WORKING, ["x"], (plan.CONFIGURE, plan.ADOPT)),
        (plan.DIFFERENT, plan.FLEETING, ["x"], (plan.CONFIGURE, plan.CONFIGURE)),
    ],
)
def test_who_is_changed(
    head: str, worker: str, servers: list[str], expected: tuple[str, str]
) -> None:
    found = plan.actions(plans(head, worker), servers)
    assert (found["head"], found["worker"]) == expected


def decide(head: str, worker: str, servers: Sequence[str] = (), **changes: Any) -> plan.Decision:
    made = plans(head, worker)
    for one in made.values():
        one["refusals"] = list(changes.pop("refusals", ()))
        one["loses"] = list(changes.pop("loses", ()))
    options = {"allow_disruption": False, "allow_management_rail": False, "switching": {}}
    views = changes.pop("views", {"head": view(11), "worker": view(12)})
    return plan.decide(PAIR, both(), views, made, servers, **{**options, **changes})


def test_no_change_is_made_over_a_server_unless_it_is_allowed() -> None:
    found = decide(plan.DIFFERENT, plan.WORKING, ["hikari runs"])
    assert found.changing and "hikari runs" in found.refused and not found.obstacles
    found = decide(plan.DIFFERENT, plan.WORKING, ["hikari runs"], allow_disruption=True)
    assert found.changing and not found.refused
    assert decide(plan.DIFFERENT, plan.WORKING).refused == ""


def test_what_lives_only_until_the_next_boot_is_adopted_with_a_warning_under_a_server() -> None:
    found = decide(plan.FLEETING, plan.WORKING, ["hikari runs"], refusals=["no renderer"])
    assert not found.changing and not found.refused and not found.obstacles
    (words,) = found.warnings
    assert "spark-033f" in words and "--tags network" in words
    found = decide(plan.FLEETING, plan.WORKING)
    assert found.changing and not found.warnings
    assert decide(plan.FLEETING, plan.WORKING, ["x"], allow_disruption=True).changing


def test_no_rail_changes_under_a_switch_whatever_is_allowed() -> None:
    at_work = {"head": "", "worker": "a switch is at work"}
    found = decide(plan.DIFFERENT, plan.WORKING, switching=at_work, allow_disruption=True)
    (said,) = found.obstacles
    assert said.startswith("spark-5bf0: a switch is at work")
    assert not decide(plan.WORKING, plan.WORKING, switching=at_work).obstacles


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Result(3, "inactive\n", ""), ""),
        (Result(3, "failed\n", ""), ""),
        (Result(4, "unknown\n", ""), ""),
        (Result(0, "active\n", ""), "is active"),
        (Result(3, "activating\n", ""), "is activating"),
        (Result(3, "deactivating\n", ""), "is deactivating"),
        (Result(127, "", "systemctl: not found"), "not known (systemctl: not found)"),
    ],
)
def test_a_switch_at_work_is_told_from_none(said: Result, words: str) -> None:
    found = plan.switch_at_work(lambda argv, timeout: said)
    assert words in found and bool(found) == bool(words)


def test_what_hinders_a_change_hinders_no_adoption() -> None:
    views = {"head": view(11), "worker": view(12)}
    views["worker"]["management"]["interface"] = None
    assert not decide(plan.WORKING, plan.WORKING, views=views).obstacles
    (said,) = decide(plan.DIFFERENT, plan.WORKING, views=views).obstacles
    assert "spark-5bf0" in said


def test_ends_of_different_mtu_are_for_the_operator_to_decide() -> None:
    views: dict[Any, Any] = {"head": view(11), "worker": view(12)}
    views["worker"]["interfaces"][SECOND]["mtu"] = 9000
    (said,) = decide(plan.DIFFERENT, plan.WORKING, views=views).obstacles
    assert "1500" in said and "9000" in said and "cx7_network_mtu" in said
    assert plan.unproven(PAIR, both(), views) == [said]


def test_a_change_that_only_one_machine_kept_is_mended_by_the_next_run() -> None:
    for states in ((plan.WORKING, plan.DIFFERENT), (plan.DIFFERENT, plan.WORKING)):
        found = decide(*states)
        assert found.changing and not found.refused and not found.obstacles
        assert sorted(found.actions.values()) == [plan.ADOPT, plan.CONFIGURE]


def test_a_change_says_what_it_cannot_keep() -> None:
    found = decide(plan.DIFFERENT, plan.WORKING, loses=["10.66.0.1/24 of x"])
    assert found.warnings == ["spark-033f loses 10.66.0.1/24 of x: no file configures it"]
    assert not decide(plan.WORKING, plan.WORKING, loses=["10.66.0.1/24 of x"]).warnings


def test_what_netplan_refuses_stops_a_change_only() -> None:
    found = decide(plan.DIFFERENT, plan.WORKING, refusals=["it is mixed"])
    assert found.obstacles == ["spark-033f: it is mixed"]
    assert not decide(plan.WORKING, plan.WORKING, refusals=["it is mixed"]).obstacles


def test_a_refusal_names_what_would_change_and_who_runs() -> None:
    said = plan.refusal(PAIR, plans(plan.DIFFERENT, plan.WORKING), ["hikari runs"])
    assert "spark-033f: this" in said and "that" not in said
    assert "hikari runs" in said and "cx7_network_allow_disruption" in said


def host_views() -> dict[Any, Any]:
    """Both hosts observed, nothing running."""
    description = describe()
    return {
        role: {
            "units": {name: {"active": "inactive"} for name in description.all_units()},
            "containers": {},
            "apis": {},
        }
        for role in ("head", "worker")
    }


NOBODY: dict[Any, list[str]] = {"head": [], "worker": []}


def test_nobody_runs_only_when_everybody_is_plainly_down() -> None:
    description = describe()
    assert plan.running(description, host_views(), NOBODY, PAIR) == []
    for unseen in descriptions.ROLES:
        views = host_views()
        views[unseen] = None
        assert plan.running(description, views, NOBODY, PAIR)
    for role in ("head", "worker"):
        views = copy.deepcopy(host_views())
        views[role]["containers"] = None
        views[role]["units"] = None
        assert plan.running(description, views, NOBODY, PAIR)


def test_a_part_of_a_server_is_enough() -> None:
    description = describe()
    server = next(one for one in description.servers.values() if not one.ranks)
    views = host_views()
    views[server.units[0].host]["units"][server.units[0].unit] = {"active": "active"}
    (said,) = plan.running(description, views, NOBODY, PAIR)
    assert server.name in said


def test_a_pair_that_nobody_can_describe_counts_as_serving() -> None:
    assert plan.running(None, {}, NOBODY, PAIR)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Result(0, "", ""), []),
        (Result(127, "", "nvidia-smi: not found"), []),
        (Result(0, "42, python\n", ""), ["process 42, python on the GPU"]),
        (Result(18, "", "Driver/library version mismatch"), ["processes on the GPU cannot be "
         "listed (Driver/library version mismatch)"]),
    ],
)  # fmt: skip
def test_work_on_the_gpu_counts(tmp_path: Path, said: Result, expected: list[str]) -> None:
    found = plan.gpu_processes(lambda argv, timeout: said, tmp_path)
    assert found == expected
    running = plan.running(describe(), host_views(), {"head": found, "worker": []}, PAIR)
    assert running == [f"spark-033f: {words}" for words in expected]


@pytest.mark.parametrize(
    ("path", "text", "known"),
    [
        ("proc/driver/nvidia/version", "NVRM", False),
        ("sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de", False),
        ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x15b3", True),
    ],
)
def test_a_missing_nvidia_smi_says_nothing_where_a_gpu_is(
    tmp_path: Path, path: str, text: str, known: bool
) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(f"{text}\n")
    found = plan.gpu_processes(lambda argv, timeout: Result(127, "", "not found"), tmp_path)
    assert found == ([] if known else ["processes on the GPU cannot be listed (not found)"])


@pytest.mark.fault(20)
def test_a_change_is_proven_by_full_frames_both_ways() -> None:
    views: dict[Any, Any] = {"head": view(11), "worker": view(12)}
    assert plan.unproven(PAIR, both(), views) == []
    views["worker"]["paths"][SECOND] = {"size": 1472, "sent": 2, "received": 0, "error": ""}
    (said,) = plan.unproven(PAIR, both(), views)
    assert said.startswith("spark-5bf0 does not reach 192.168.178.11") and "1472" in said
    views["worker"] = None
    assert plan.unproven(PAIR, both(), views) == ["spark-5bf0 did not answer"]
    views["worker"] = view(99)
    assert len(plan.unproven(PAIR, both(), views)) == 2
