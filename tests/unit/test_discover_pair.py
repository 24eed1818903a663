"""What two machines that were looked at make of an inventory."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from discovery import (
    COMMIT,
    NAMES,
    RAILS,
    SECOND_PORT,
    account,
    checkout,
    crossed_pair,
    interface,
    unit,
    view,
)
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.description import ROLES, Role
from spark_pair.discover import pair, words
from spark_pair.discover.pair import DiscoveryError
from spark_pair.inventory import default_variables

NOTHING: dict[Role, str | None] = {"head": None, "worker": None}
CATALOG: dict[str, Any] = default_variables()["model_server_catalog"]
USERS: dict[Role, str] = {"head": "ann", "worker": "ann"}
OURS = {"dsv41-tensorfold.service"}


def rails(views: dict[Role, Any], **cables: str) -> dict[Role, list[tuple[str, str]]]:
    wanted: dict[Role, str | None] = {role: cables.get(role) for role in ROLES}
    found = pair.rails(views, NAMES, wanted)
    return {role: [(rail.interface, rail.address) for rail in found[role]] for role in ROLES}


def incumbent(views: dict[Role, Any]) -> pair.Incumbent:
    return pair.incumbent(views, NAMES, CATALOG, "deepseek", OURS)


def owner(seen: Any) -> pair.Found | None:
    return pair.account(seen, "head", "spark-a")


def bare(*interfaces: dict[str, Any]) -> dict[Role, Any]:
    found = list(interfaces) or [interface(name) for name in RAILS]
    return {role: view(NAMES[role], interfaces=found) for role in ROLES}


# --- rails


def test_addresses_that_pair_up_are_adopted() -> None:
    assert rails(crossed_pair()) == {
        "head": [(RAILS[0], "198.51.100.11/25"), (RAILS[1], "198.51.100.139/25")],
        "worker": [(RAILS[0], "198.51.100.12/25"), (RAILS[1], "198.51.100.140/25")],
    }


def test_rails_follow_the_subnets_also_when_they_cross() -> None:
    views = crossed_pair()
    one, two = views["worker"]["interfaces"]
    one["addresses"], two["addresses"] = two["addresses"], one["addresses"]
    assert rails(views)["worker"] == [
        (RAILS[1], "198.51.100.12/25"),
        (RAILS[0], "198.51.100.140/25"),
    ]


def test_free_subnets_are_proposed_for_the_twins_of_the_cabled_port() -> None:
    views = bare(
        *(interface(name) for name in RAILS),
        *(interface(name, carrier=False) for name in SECOND_PORT),
    )
    views["head"]["networks"] = ["192.168.177.0/26"]
    views["worker"]["networks"] = ["192.168.178.0/23", "10.0.0.0/8"]
    assert rails(views) == {
        "head": [(RAILS[0], "192.168.180.11/24"), (RAILS[1], "192.168.181.11/24")],
        "worker": [(RAILS[0], "192.168.180.12/24"), (RAILS[1], "192.168.181.12/24")],
    }


def test_one_rail_is_adopted_and_its_twin_gets_a_subnet_of_its_own() -> None:
    views = crossed_pair()
    views["head"]["interfaces"][1]["addresses"] = ["169.254.7.7/16"]
    views["worker"]["interfaces"][1]["addresses"] = ["169.254.8.8/16"]
    found = rails(views)
    assert found["head"] == [(RAILS[0], "198.51.100.11/25"), (RAILS[1], "192.168.177.11/24")]


@pytest.mark.fault(20)
def test_twins_in_one_subnet_are_never_adopted_both() -> None:
    views = bare()
    for last, role in enumerate(ROLES, 1):
        views[role] = view(
            NAMES[role],
            interfaces=[
                interface(RAILS[0], f"198.51.100.{last}/24"),
                interface(RAILS[1], f"198.51.100.{last + 100}/24"),
            ],
        )
    networks = [ipaddress.ip_interface(address).network for _, address in rails(views)["head"]]
    assert len(set(networks)) == 2


@pytest.mark.fault(31)
def test_four_interfaces_that_are_up_are_named_and_not_all_taken() -> None:
    views = bare(*(interface(name) for name in (*RAILS, *SECOND_PORT)))
    with pytest.raises(DiscoveryError) as refused:
        rails(views)
    said = str(refused.value)
    assert "4 interfaces of spark-a have a carrier" in said and "--head-cable" in said
    assert all(name in said for name in (*RAILS, *SECOND_PORT))


@pytest.mark.fault(31)
def test_the_flag_says_which_of_two_cabled_ports_it_is() -> None:
    views = bare(*(interface(name) for name in (*RAILS, *SECOND_PORT)))
    found = rails(views, head=SECOND_PORT[1], worker="p0")
    assert [name for name, _ in found["head"]] == list(SECOND_PORT)
    assert [name for name, _ in found["worker"]] == list(RAILS)
    with pytest.raises(DiscoveryError, match="--head-cable is 'eth0'"):
        rails(views, head="eth0", worker="p0")


@pytest.mark.fault(31)
def test_addresses_tell_which_of_two_cabled_ports_leads_to_the_peer() -> None:
    views = crossed_pair()
    for role in ROLES:
        views[role]["interfaces"] += [interface(name) for name in SECOND_PORT]
    assert [name for name, _ in rails(views)["head"]] == list(RAILS)


@pytest.mark.fault(31)
def test_the_management_network_tells_nothing_about_the_cable() -> None:
    views: dict[Role, Any] = {}
    for last, role in enumerate(ROLES, 11):
        managed = interface(SECOND_PORT[0], f"192.0.2.{last}/24")
        more = [*(interface(name) for name in RAILS), managed, interface(SECOND_PORT[1])]
        views[role] = view(NAMES[role], interfaces=more)
        views[role]["management"]["interface"] = SECOND_PORT[0]
    with pytest.raises(DiscoveryError, match="4 interfaces of spark-a have a carrier"):
        rails(views)


def test_without_any_carrier_only_one_port_is_no_guess() -> None:
    assert [name for name, _ in rails(bare(*(interface(n, carrier=None) for n in RAILS)))["head"]]
    with pytest.raises(DiscoveryError, match="no interface of spark-a has one"):
        rails(bare(*(interface(n, carrier=None) for n in (*RAILS, *SECOND_PORT))))


@pytest.mark.fault(16)
def test_a_missing_device_or_twin_is_refused_with_what_to_do() -> None:
    with pytest.raises(DiscoveryError, match="never rescan the PCI bus"):
        rails({**bare(), "worker": view("spark-b", interfaces=[])})
    with pytest.raises(DiscoveryError, match=f"shows {RAILS[0]} only"):
        rails(bare(interface(RAILS[0])))


@pytest.mark.parametrize("what", ["routes", f"addresses of {RAILS[0]}"])
def test_what_could_not_be_read_is_no_free_interface(what: str) -> None:
    views = bare()
    views["worker"]["unread"] = {what: "ip: no end after 5 s"}
    with pytest.raises(DiscoveryError, match="no end after 5 s"):
        rails(views)


NETWORKS = st.lists(
    st.builds(
        lambda third, length: str(
            ipaddress.ip_network(f"192.168.{third}.0/{length}", strict=False)
        ),
        st.integers(0, 255),
        st.integers(18, 30),
    ),
    max_size=40,
)


@given(NETWORKS, NETWORKS)
def test_a_proposal_overlaps_nothing_that_either_machine_uses(
    head: list[str], worker: list[str]
) -> None:
    views = bare()
    views["head"]["networks"], views["worker"]["networks"] = head, worker
    try:
        found = rails(views)
    except DiscoveryError as refused:
        assert "--head-rails" in str(refused)
        return
    proposed = [ipaddress.ip_interface(address).network for _, address in found["head"]]
    assert len(set(proposed)) == 2
    for network in proposed:
        assert not any(network.overlaps(ipaddress.ip_network(used)) for used in head + worker)
    assert [ipaddress.ip_interface(address).network for _, address in found["worker"]] == proposed


# --- accounts and recipe


def test_the_owner_of_the_recipe_comes_before_the_owner_of_weights_and_the_login() -> None:
    views = crossed_pair()
    assert owner(views["head"]) == pair.Found("ann", "owns /home/ann/dsv41")
    assert owner(views["worker"]) == pair.Found("bob", "owns 196 GiB (210 GB) of model data")
    assert pair.home(views["worker"], "bob") == pair.Found(
        "/srv/bob", "from the machine's list of accounts"
    )
    assert pair.home(views["worker"], "carl") is None


def test_the_account_of_a_running_server_comes_before_the_login() -> None:
    accounts = [account("ann"), account("bob")]
    for over in ({"scope": "user:bob"}, {"user": "bob"}):
        seen = view("a", accounts=accounts, units=[unit("vllm.service", **over)])
        assert owner(seen) == pair.Found("bob", "runs vllm.service")
    login = owner(view("a", accounts=accounts))
    assert login is not None and login.value == "ann"
    root = [account("root", "/root", uid=0, checkout=checkout("/root"))]
    assert owner(view("a", accounts=root, login="root")) is None


def test_a_folder_that_is_no_checkout_tells_nothing_about_the_account() -> None:
    notes = checkout("/home/alice", commit=None, problem="not a git checkout")
    accounts = [account("alice", checkout=notes), account("bob", checkout=checkout("/home/bob"))]
    assert owner(view("a", accounts=accounts)) == pair.Found("bob", "owns /home/bob/dsv41")


def stored(name: str, count: int) -> dict[str, Any]:
    return account(name, models=[{"name": "x/y", "bytes": count, "broken_links": 0}])


@pytest.mark.parametrize(
    "over",
    [
        {"accounts": [account(one, checkout=checkout(f"/home/{one}")) for one in ("bob", "eve")]},
        {"accounts": [stored("bob", 100 << 30), stored("eve", 150 << 30)]},
        {
            "accounts": [account("bob"), account("eve")],
            "units": [unit("a.service", user="bob"), unit("b.service", scope="user:eve")],
        },
    ],
    ids=["checkouts", "weights", "units"],
)
def test_several_accounts_that_could_run_the_servers_are_named(over: dict[str, Any]) -> None:
    with pytest.raises(DiscoveryError) as refused:
        owner(view("a", **over))
    said = str(refused.value)
    assert "bob" in said and "eve" in said and "spark-a" in said and "--head-user" in said


def test_a_small_cache_beside_the_weights_is_no_second_owner() -> None:
    found = owner(view("a", accounts=[stored("alice", 1 << 30), stored("bob", 200 << 30)]))
    assert found is not None and found.value == "bob"


def test_the_recipe_is_the_heads_and_what_differs_is_said() -> None:
    views = crossed_pair()
    other = "1" * 40
    views["worker"]["accounts"][0]["checkout"] = checkout("/home/ann", commit=other, changed=8)
    views["head"]["accounts"][1]["checkout"] = checkout("/home/bob", commit=None, problem="no git")
    found = pair.recipe(views, NAMES, USERS)
    assert found.commit == pair.Found(COMMIT, "HEAD of /home/ann/dsv41 of spark-a")
    said = " | ".join(found.remarks)
    assert f"is at {other}" in said and "8 changed files" in said and "no git" in said
    assert pair.recipe({"head": view("a"), "worker": view("b")}, NAMES, USERS).commit is None


def test_the_checkout_of_the_servers_account_comes_first() -> None:
    views = crossed_pair()
    views["head"]["accounts"][1]["checkout"] = checkout("/home/bob", commit="1" * 40)
    found = pair.recipe(views, NAMES, {"head": "bob", "worker": "ann"})
    assert found.commit == pair.Found("1" * 40, "HEAD of /home/bob/dsv41 of spark-a")


def test_one_repository_has_many_addresses() -> None:
    default = default_variables()["tensorfold_service_recipe_url"]
    assert pair.same_repository(checkout("/h")["url"], default)
    assert not pair.same_repository("https://github.com/me/fork.git", default)


# --- the incumbent


def test_crossed_roles_are_the_catalogues_own() -> None:
    found = incumbent(crossed_pair())
    assert found.fallback == pair.Found("hikari", "its units are on spark-a and spark-b")
    assert found.model == pair.Found("Hikari-Next", "printed by port 8000 of spark-b")


def test_the_model_of_the_catalogue_needs_no_correction_and_silence_is_said() -> None:
    views = crossed_pair()
    views["worker"]["answering"] = [
        {"port": 8000, "models": ["x", "Qwen3.8-Flash-Next"], "words": "x, Qwen3.8-Flash-Next"}
    ]
    assert incumbent(views).model is None
    views["worker"]["answering"] = []
    found = incumbent(views)
    assert found.model is None and "did not answer" in found.remarks[0]
    views["worker"]["answering"] = [{"port": 8000, "models": [], "words": "asks for a key (401)"}]
    assert "asks for a key" in incumbent(views).remarks[0]


def test_a_server_the_other_way_round_is_said_and_is_no_fallback() -> None:
    views = crossed_pair()
    views["head"]["units"], views["worker"]["units"] = (
        views["worker"]["units"],
        views["head"]["units"],
    )
    found = incumbent(views)
    assert found.fallback.value == "none"
    assert any("hikari is crossed the other way" in one and "Swap" in one for one in found.warnings)


def test_half_a_server_is_no_fallback() -> None:
    views = crossed_pair()
    views["head"]["units"] = [unit("qwen38fn-miaai-worker.service", scope="user:ann")]
    found = incumbent(views)
    assert found.fallback.value == "none"
    assert found.warnings == (
        "hikari is there in part: qwen38fn-miaai-worker.service was not found on spark-a",
    )


def test_without_an_incumbent_the_candidates_are_written_down_and_ours_are_none() -> None:
    views = bare()
    views["head"]["units"] = [unit("dsv41-tensorfold.service"), unit("ollama.service")]
    views["worker"]["units"] = [unit("llm.service", scope="user:ann", enabled="disabled")]
    views["worker"]["answering"] = [{"port": 11434, "models": ["m"], "words": "m"}]
    views["worker"]["containers"] = [
        {"name": "c", "image": "i", "state": "exited", "restart": "always", "gpu": True}
    ]
    found = incumbent(views)
    said = " | ".join(found.remarks)
    assert found.fallback.value == "none"
    assert "candidate on spark-a (head): ollama.service" in said and "dsv41" not in said
    assert "llm.service of the account ann" in said and "port 11434" in said
    assert found.warnings == (
        "container c on spark-b (i) comes back by itself: restart policy always",
    )


SILENT = {"system units": "systemctl: no end after 15 s"}


@pytest.mark.parametrize("what", ["system units", "state of units (system)"])
def test_units_that_could_not_be_read_are_not_taken_for_no_incumbent(what: str) -> None:
    views = crossed_pair()
    views["head"].update(units=[], unread={what: "systemctl: no end after 15 s"})
    found = incumbent(views)
    assert found.unknown == f"{what} of spark-a could not be read (systemctl: no end after 15 s)"
    assert words.of_servers(found, "hikari")[:1] == [
        f"model_server_fallback is hikari, which cannot be compared: {found.unknown}"
    ]


def test_a_server_whose_units_are_all_there_is_known_whatever_else_was_not_read() -> None:
    catalog = {"mine": {"units": [{"host": "head", "unit": "mine.service"}], "api": {}}}
    views = bare()
    views["head"]["units"] = [unit("mine.service")]
    views["worker"]["unread"] = {
        **SILENT,
        "state of units (user:ann)": "no manager",
        "containers": "docker: no end",
        "listening ports (tcp)": "no such file",
        "hostname": "of no concern",
    }
    found = pair.incumbent(views, NAMES, catalog, "deepseek", OURS)
    assert (found.fallback.value, found.unknown) == ("mine", "")
    assert found.warnings == tuple(
        f"not read on spark-b (worker): {what}: {views['worker']['unread'][what]}. "
        "What serves or revives a server there is not known"
        for what in (
            "containers",
            "listening ports (tcp)",
            "state of units (user:ann)",
            "system units",
        )
    )


@pytest.mark.fault(13)
def test_what_revives_the_incumbent_and_no_switch_stops_is_a_warning() -> None:
    views = crossed_pair()
    views["head"]["units"] += [
        unit("cheer.timer", "keeper", "starts qwen38fn-miaai-worker.service"),
        unit("other.timer", "keeper", "starts ollama.service"),
    ]
    metrics = unit("qwen38fn-miaai-metrics.service", "keeper", "asks the server on port 8000")
    views["worker"]["units"] += [
        {**metrics, "timers": ["qwen38fn-miaai-metrics.timer"]},
        {**metrics, "unit": "lonely.service"},
    ]
    found = incumbent(views)
    assert [one for one in found.warnings if "cheer.timer" in one]
    assert [one for one in found.warnings if "lonely.service" in one]
    # What a known timer starts rests with it; the others are the catalogue's, or of no concern.
    assert len(found.warnings) == 2


# --- words


def test_the_summary_names_what_was_not_read_and_is_one_line_each() -> None:
    views = crossed_pair()
    views["head"]["unread"] = {"containers": "docker: permission denied"}
    views["head"]["units"] = [unit("x.service", why="its name says\x1b[31m\nqwen")]
    views["head"]["not_asked"] = [29500, 41234]
    shown = words.summary("spark-a (head)", views["head"])
    assert "not asked     29500, 41234: listening, and no server is known to use them" in shown
    assert "not read      containers: docker: permission denied" in shown
    assert "\x1b" not in shown and "qwen)" in shown
    assert "196 GiB (210 GB)" in shown and COMMIT in shown and "198.51.100.11/25" in shown


def variables(**over: Any) -> dict[str, Any]:
    found = {
        "spark_user": "ann",
        "spark_home": "/home/ann",
        "tensorfold_service_recipe_commit": COMMIT,
        "cx7_network_rails": [{"interface": RAILS[0], "address": "198.51.100.11/25"}],
    }
    return {**found, **over}


def test_an_inventory_that_fits_differs_in_nothing() -> None:
    views = {"spark-a": crossed_pair()["head"]}
    assert words.differences({"head": "spark-a"}, views, {"spark-a": variables()}) == []


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"spark_user": "carl"}, "spark_user of spark-a is carl: there is no such account"),
        ({"spark_home": "/srv/ann"}, "its account's is /home/ann"),
        ({"tensorfold_service_recipe_commit": "0" * 40}, f"is at {COMMIT}"),
        (
            {"cx7_network_rails": [{"interface": RAILS[0], "address": "203.0.113.1/24"}]},
            "the interface has 198.51.100.11/25",
        ),
        (
            {"cx7_network_rails": [{"interface": "eth9", "address": "203.0.113.1/24"}]},
            "rail eth9 of spark-a is no ConnectX-7 interface there",
        ),
    ],
)
def test_what_differs_is_named(over: dict[str, Any], said: str) -> None:
    views = {"spark-a": crossed_pair()["head"]}
    found = words.differences({"head": "spark-a"}, views, {"spark-a": variables(**over)})
    assert len(found) == 1 and said in found[0]


def test_a_fallback_that_differs_is_named() -> None:
    found = words.of_servers(incumbent(crossed_pair()), "none")
    assert "found: hikari" in found[0] and "Hikari-Next" in found[-1]


@pytest.mark.parametrize(
    ("said", "about_sudo"),
    [
        ("Missing sudo password", True),
        ("Premature end of stream waiting for become success.\n>>> sudo: a password is", True),
        ("Timeout (12s) waiting for privilege escalation prompt", True),
        ("ann is not in the sudoers file.", True),
        ("Incorrect password", True),
        ("ann@192.0.2.11: Permission denied (publickey,password).", False),
        ("MODULE FAILURE: No space left on device", False),
        ("", False),
    ],
)
def test_only_a_message_about_sudo_leads_to_the_advice_about_sudo(
    said: str, about_sudo: bool
) -> None:
    shown = words.not_looked_at("spark-a", said)
    first = said.partition("\n")[0] or "no answer"
    assert first in shown and "\n" not in shown
    assert ("--ask-become-pass" in shown) is about_sudo
    assert shown.startswith("spark-a answers, but could not be looked at: ") is not about_sudo
