"""netplan's files: reading, writing, and which of them may give way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.rails import netplan
from spark_pair.rails.netplan import Device, NetplanError, Ours, parse, render
from spark_pair.system import Result

FIRST, SECOND = "enp1s0f0np0", "enP2p1s0f0np0"
THIRD, FOURTH = "enp1s0f1np1", "enP2p1s0f1np1"
CX7 = (FIRST, SECOND, THIRD, FOURTH)
DEVICES = [
    *(Device(name, f"4c:bb:47:00:00:0{i}", "mlx5_core") for i, name in enumerate(CX7)),
    Device("enP7s7", "4c:bb:47:00:00:aa", "r8127"),
    Device("wlP9s9", "4c:bb:47:00:00:bb", "mt7925e"),
]
TARGET = "/etc/netplan/40-cx7.yaml"

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}", fullmatch=True)
addresses = st.builds("{}.{}.{}.{}/{}".format, *[st.integers(1, 223)] * 4, st.integers(1, 31))
contents = st.builds(
    Ours,
    st.dictionaries(names, addresses, min_size=2, max_size=2),
    st.sampled_from(["NetworkManager", "networkd"]),
    st.just({}),
    st.none() | st.sampled_from(["NetworkManager", "networkd"]),
)


@given(contents, st.data())
def test_what_is_written_is_what_is_read(ours: Ours, data: st.DataObject) -> None:
    names_of_both = st.sampled_from(sorted(ours.interfaces))
    ours = replace(
        ours,
        mtus=data.draw(st.dictionaries(names_of_both, st.integers(1500, 9216))),
        also=data.draw(st.dictionaries(names_of_both, st.lists(addresses, max_size=2))),
    )
    file = parse(render(ours))
    assert file.renderer == ours.common_renderer
    assert {one.name: one.body for one in file.definitions} == {
        name: netplan.body_of(ours, name) for name in ours.interfaces
    }
    assert {one.kind for one in file.definitions} == {"ethernets"}
    assert netplan.differences(parse(""), file, ours)[0:] == (
        [f"the renderer of the whole machine would change from none to {ours.common_renderer}"]
        if ours.common_renderer
        else []
    )


def migrate(files: dict[str, str], target: str = TARGET) -> netplan.Migration:
    return netplan.migration(
        [parse(text, path) for path, text in files.items()],
        target,
        [FIRST, SECOND],
        CX7,
        DEVICES,
    )


bodies = st.sampled_from(
    [
        {"dhcp4": True},
        {"link-local": ["ipv4"]},
        {"match": {"name": "enP7*"}},
        {"match": {"name": "en*"}},
        {"match": {"driver": "mlx5*"}},
        {"match": {"driver": ["r8127", "mlx5_core"]}},
        {"match": {"macaddress": "4C:BB:47:00:00:00"}},
        {"match": {"macaddress": "4c:bb:47:00:00:bb"}},
        {"match": {"name": "enp1*", "driver": "mlx5_core"}},
    ]
)
ids = st.sampled_from([*CX7, "enP7s7", "wlP9s9", "any", "br0", "eth9"])
networks = st.fixed_dictionaries(
    {},
    optional={
        "ethernets": st.dictionaries(ids, bodies, max_size=3),
        "wifis": st.dictionaries(ids, bodies, max_size=1),
        "bridges": st.dictionaries(ids, st.just({"interfaces": [FIRST]}), max_size=1),
        "renderer": st.just("NetworkManager"),
    },
)


@given(st.dictionaries(st.sampled_from([TARGET, "/etc/netplan/01.yaml", "/lib/netplan/0.yaml"]),
                       networks, max_size=3))  # fmt: skip
def test_no_interface_but_the_adapters_ever_loses_its_configuration(
    data: dict[str, dict[str, object]],
) -> None:
    files = {path: yaml.safe_dump({"network": network}) for path, network in data.items()}
    moved = migrate(files)
    others = [device for device in DEVICES if device.name not in CX7]
    for file in moved.replaced:
        assert file.path.startswith("/etc/")
        for one in file.definitions:
            assert one.kind == "ethernets"
            assert any(netplan.concerns(one, device) for device in DEVICES[:4])
            assert not any(netplan.concerns(one, device) for device in others)
    if moved.refusals:
        return
    # Nothing that stays may speak of a rail: two files about one interface add up to neither.
    gone = {file.path for file in moved.replaced}
    for path, text in files.items():
        if path not in gone:
            for one in parse(text, path).definitions:
                assert not any(netplan.concerns(one, device) for device in DEVICES[:2])


def test_no_name_in_the_inventory_makes_a_strange_interface_ours() -> None:
    nas = parse(
        "network: {ethernets: {enP7s7: {addresses: [10.9.9.9/24]}}}", "/etc/netplan/50.yaml"
    )
    moved = netplan.migration([nas], TARGET, ["enP7s7", "wlP9s9"], CX7, DEVICES)
    assert not moved.replaced and moved.refusals


NVIDIA = f"""
network:
  version: 2
  ethernets:
    {FIRST}:
      link-local: [ ipv4 ]
    {THIRD}:
      link-local: [ ipv4 ]
"""
MANAGEMENT = "network: {version: 2, ethernets: {enP7s7: {dhcp4: true}}}"


@pytest.mark.fault(10)
def test_an_older_file_gives_way_and_is_not_joined() -> None:
    moved = migrate({"/etc/netplan/cx7-netplan.yaml": NVIDIA, "/etc/netplan/50.yaml": MANAGEMENT})
    assert [file.path for file in moved.replaced] == ["/etc/netplan/cx7-netplan.yaml"]
    assert not moved.refusals


def test_the_file_of_the_same_name_is_replaced() -> None:
    assert [file.path for file in migrate({TARGET: NVIDIA}).replaced] == [TARGET]
    assert [file.path for file in migrate({TARGET: ""}).replaced] == [TARGET]


def test_a_renderer_for_everybody_stays() -> None:
    moved = migrate({"/etc/netplan/cx7.yaml": NVIDIA + "  renderer: NetworkManager\n"})
    assert moved.renderer == "NetworkManager"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"/etc/netplan/50-cloud-init.yaml": f"network: {{ethernets: {{{FIRST}: {{}}, enP7s7: "
             "{dhcp4: true}}}"},
            ["50-cloud-init.yaml configures ethernets.enP7s7 besides the rails",
             f"take ethernets.{FIRST} out of it"],
        ),
        (
            {"/etc/netplan/50.yaml": "network: {ethernets: {all: {match: {name: 'en*'}}}}"},
            ["the entry ethernets.all configures a rail together with something else"],
        ),
        ({TARGET: MANAGEMENT}, ["is to hold the rails (cx7_network_file)", "ethernets.enP7s7"]),
        ({TARGET: "network: {renderer: networkd}"}, ["the renderer of the whole machine"]),
        ({"/run/netplan/x.yaml": NVIDIA}, ["not the operator's to edit"]),
        (
            {"/etc/netplan/50.yaml": f"network: {{ethernets: {{{FIRST}: {{}}}}, bridges: {{br0: "
             f"{{interfaces: [{FIRST}]}}}}}}"},
            ["bridges.br0"],
        ),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_to_take_out(files: dict[str, str], words: list[str]) -> None:
    moved = migrate(files)
    assert not moved.replaced
    (said,) = moved.refusals
    for word in words:
        assert word in said, said


@pytest.mark.parametrize("text", ["network: [", "- 1", "network: 7", "network: {ethernets: []}"])
def test_a_file_that_cannot_be_understood_is_named(text: str) -> None:
    with pytest.raises(NetplanError, match=r"/etc/netplan/x\.yaml"):
        parse(text, "/etc/netplan/x.yaml")


def test_a_later_folder_hides_a_file_of_the_same_name(tmp_path: Path) -> None:
    for folder in netplan.FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lib/netplan/a.yaml").write_text("1")
    (tmp_path / "etc/netplan/a.yaml").write_text("2")
    (tmp_path / "etc/netplan/not.txt").write_text("3")
    (tmp_path / "run/netplan/b.yaml").write_text("4")
    assert netplan.read_texts(tmp_path) == {"/etc/netplan/a.yaml": "2", "/run/netplan/b.yaml": "4"}


OURS = Ours({FIRST: "192.168.177.11/24", SECOND: "192.168.178.11/24"})


class PlayedNetplan:
    """Merges files as netplan does, as far as these tests need it."""

    def __init__(self, spoilt: str = "") -> None:
        self.spoilt = spoilt
        self.generated = 0

    def __call__(self, argv: Sequence[str], timeout: float) -> Result:
        root = Path(argv[-1])
        assert argv[:2] == ["netplan", "generate"] or argv[:2] == ["netplan", "get"]
        assert root.parent.name.startswith("spark-pair-netplan-")
        if argv[1] == "generate":
            self.generated += 1
            return Result(1, "", "Error in network definition") if self.spoilt == "generate" else (
                Result(0, "", "")
            )  # fmt: skip
        merged: dict[str, object] = {}
        for text in netplan.read_texts(root).values():
            for kind, entries in ((yaml.safe_load(text) or {}).get("network") or {}).items():
                if isinstance(entries, dict):
                    place = merged.setdefault(kind, {})
                    assert isinstance(place, dict)
                    for name, body in entries.items():
                        place[name] = {**place.get(name, {}), **(body or {})}
                else:
                    merged[kind] = entries
        if self.spoilt and root.name == "after" and isinstance(merged["ethernets"], dict):
            merged["ethernets"][self.spoilt]["critical"] = True
        return Result(0, yaml.safe_dump({"network": merged}), "")


def merged(files: dict[str, str], removes: list[str], runner: PlayedNetplan) -> list[str]:
    given_up = [(one.kind, one.name) for path in removes for one in parse(files[path]).definitions]
    return netplan.check_merged(
        files, {TARGET: render(OURS)}, removes, given_up, ours=OURS, runner=runner,
        root=Path("/nowhere"),
    )  # fmt: skip


def test_netplan_itself_is_asked_about_a_copy() -> None:
    runner = PlayedNetplan()
    files = {"/etc/netplan/cx7.yaml": NVIDIA, "/etc/netplan/50.yaml": MANAGEMENT}
    assert merged(files, ["/etc/netplan/cx7.yaml"], runner) == []
    assert runner.generated == 2


GENERATED = "[Match]\nName=enP7s7\n\n[Network]\nDHCP=ipv4\n"
PROFILE = "[connection]\nid=netplan-enP7s7\nuuid=626dd384-8b3d-3690-9511-192b2c79b3fd\n"


def unapplied(new: Path, now: Path, about_rails: list[str]) -> list[str]:
    return netplan.unapplied(netplan.generated(new), netplan.generated(now), about_rails)


def test_a_copy_is_generated_without_touching_the_hosts_own_files(tmp_path: Path) -> None:
    """`netplan generate` reloads systemd, and that generates the host's files too."""
    put(tmp_path, netplan.GENERATOR, "")
    runner = PlayedNetplan()
    asked: list[list[str]] = []

    def watched(argv: Sequence[str], timeout: float) -> Result:
        asked.append(list(argv))
        if argv[0] == str(tmp_path / netplan.GENERATOR):
            return Result(0, "", "")
        return runner(argv, timeout)

    files = {"/etc/netplan/50.yaml": MANAGEMENT}
    said = netplan.check_merged(
        files, {TARGET: render(OURS)}, [], [], ours=OURS, runner=watched, root=tmp_path
    )
    assert said == [] and len(asked) == 4 and runner.generated == 0


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("path", "text", "other"),
    [
        ("run/systemd/network/10-netplan-enP7s7.network", GENERATED, GENERATED + "DHCP=no\n"),
        (
            "run/NetworkManager/system-connections/netplan-enP7s7.nmconnection",
            PROFILE,
            PROFILE + "[ipv4]\nmethod=auto\n",
        ),
    ],
)
@pytest.mark.fault(21)
def test_somebodys_unapplied_edit_is_not_activated_in_passing(
    tmp_path: Path, path: str, text: str, other: str
) -> None:
    new, now = tmp_path / "new", tmp_path / "now"
    put(new, path, text)
    put(now, path, text.replace("626dd384", "00000000"))
    assert unapplied(new, now, [FIRST]) == []
    put(now, path, other)
    (said,) = unapplied(new, now, [FIRST])
    assert f"/{path} would be activated too" in said
    assert unapplied(new, now, ["enP7s7"]) == []
    (now / path).unlink()
    assert unapplied(new, now, [FIRST]) == [said]
    (new / path).unlink()
    put(now, "run/systemd/network/05-mine.network", "not netplan's")
    assert unapplied(new, now, [FIRST]) == []


def test_a_second_file_about_a_rail_would_show() -> None:
    files = {"/etc/netplan/cx7.yaml": NVIDIA.replace("link-local: [ ipv4 ]", "gateway4: 10.0.0.1")}
    (said,) = merged(files, [], PlayedNetplan())
    assert FIRST in said and "gateway4" in said


def test_a_file_that_netplan_refuses_is_not_written() -> None:
    (said,) = merged({}, [], PlayedNetplan("generate"))
    assert "netplan would refuse" in said


def test_a_change_of_anything_else_would_show() -> None:
    (said,) = merged({"/etc/netplan/50.yaml": MANAGEMENT}, [], PlayedNetplan("enP7s7"))
    assert said == "the configuration of ethernets.enP7s7 would change"
    files = {"/etc/netplan/50.yaml": MANAGEMENT}
    said = netplan.check_merged(
        files,
        {TARGET: render(OURS)},
        list(files),
        [],
        ours=OURS,
        runner=PlayedNetplan(),
        root=Path("/nowhere"),
    )[0]
    assert said == "the configuration of ethernets.enP7s7 would change"
