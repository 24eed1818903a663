"""What one host's rails look like, from trees of /sys and from program output."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rails_host import FIRST, MANAGEMENT, PORTS, SECOND, Machine, gid_text, netplan, spark, table

from spark_pair.rails import look, nextboot
from spark_pair.system import Result

PEERS = {FIRST: "192.168.177.12", SECOND: "192.168.178.12"}


def test_a_healthy_host_is_seen_whole(tmp_path: Path) -> None:
    view = spark(tmp_path).look("10.20.0.11", PEERS)
    assert view["unread"] == {}
    assert view["cx7"] == [SECOND, FIRST]
    assert view["pci_functions"] == ["0000:01:00.0", "0002:01:00.0"]
    assert view["interfaces"][FIRST] == {
        "present": True,
        "up": True,
        "carrier": True,
        "operstate": "up",
        "speed_mbps": 200000,
        "mtu": 1500,
        "mac": "4c:bb:47:00:00:00",
        "addresses": ["192.168.177.11/24"],
        "addresses6": [],
        "cx7": True,
        "port": "p0",
        "switch": "4cbb47fffe000001",
        "wireless": False,
        "pci": "0000:01:00.0",
        "pcie_speed": "32.0 GT/s PCIe",
        "pcie_width": 4,
        "firmware": "28.45.4028",
        "rdma": "rocep1s0f0",
        "rdma_state": "ACTIVE",
        "gids": {"192.168.177.11": 3},
        "counters": {"port_rcv_data": 4711, "out_of_sequence": 0},
    }
    assert view["interfaces"][SECOND]["rdma"] == "roceP2p1s0f0"
    assert view["renderer"] == "networkd"
    assert view["persistent"] == dict.fromkeys([FIRST, SECOND], "/etc/netplan/40-cx7.yaml")
    assert view["default_route"] == MANAGEMENT
    assert view["paths"][SECOND] == {
        "peer": "192.168.178.12", "size": 1472, "sent": 2, "received": 2, "error": ""
    }  # fmt: skip


@pytest.mark.fault(4)
def test_each_device_has_its_own_gid_index(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.gids(SECOND, table("192.168.178.11/24", first=5))
    view = machine.look()
    assert view["interfaces"][FIRST]["gids"] == {"192.168.177.11": 3}
    assert view["interfaces"][SECOND]["gids"] == {"192.168.178.11": 5}


@pytest.mark.fault(4)
def test_an_index_that_moved_with_a_reboot_is_found_again(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    assert look.gid_index(FIRST, "192.168.177.11", tmp_path) == ("rocep1s0f0", 3)
    machine.gids(FIRST, table("192.168.177.11/24", first=6))
    assert look.gid_index(FIRST, "192.168.177.11", tmp_path) == ("rocep1s0f0", 6)
    machine.gids(FIRST, {})
    assert look.gid_index(FIRST, "192.168.177.11", tmp_path) is None


@pytest.mark.fault(4)
def test_a_gid_of_version_1_or_of_another_address_does_not_count(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.gids(
        FIRST,
        {
            2: (gid_text("192.168.177.11"), "IB/RoCE v1"),
            3: (gid_text("192.168.177.111"), "RoCE v2"),
        },
    )
    view = machine.look()
    assert view["interfaces"][FIRST]["gids"] == {}
    assert view["unread"] == {}


@pytest.mark.fault(4)
def test_a_gid_whose_type_cannot_be_read_is_unknown_and_not_absent(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.gids(FIRST, {3: (gid_text("192.168.177.11"), "")})
    view = machine.look()
    assert view["interfaces"][FIRST]["gids"] == {}
    assert "type of GID 3 of rocep1s0f0" in view["unread"][f"{FIRST}/gids"]


@given(st.ip_addresses(v=4))
def test_an_address_survives_as_a_gid(address: ipaddress.IPv4Address) -> None:
    assert look.gid_address(f"{gid_text(str(address))}\n") == str(address)


@given(st.ip_addresses(v=6))
def test_a_gid_of_another_kind_is_no_address(gid: ipaddress.IPv6Address) -> None:
    expected = None if gid.ipv4_mapped is None else str(gid.ipv4_mapped)
    assert look.gid_address(gid.exploded) == expected


@given(st.lists(st.tuples(st.ip_addresses(v=4), st.booleans()), max_size=12), st.data())
def test_the_lowest_index_of_version_2_is_found(
    entries: list[tuple[ipaddress.IPv4Address, bool]], data: st.DataObject
) -> None:
    rows = [
        (index, gid_text(str(address)), "RoCE v2" if second else "IB/RoCE v1")
        for index, (address, second) in enumerate(entries)
    ]
    for address, _ in entries:
        wanted = str(address)
        places = [place for place, entry in enumerate(entries) if entry == (address, True)]
        shuffled = data.draw(st.permutations(rows))
        assert look.roce_v2_index(shuffled, wanted) == min(places, default=None)


@pytest.mark.fault(16)
def test_a_card_that_left_the_bus_is_said_to_be_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.plain(MANAGEMENT, "10.20.0.11/24")
    machine.write("sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de")
    view = machine.look()
    assert view["pci_functions"] == []
    assert view["cx7"] == []
    assert not view["interfaces"][FIRST]["present"]
    assert view["unread"] == {}


def test_a_bus_that_cannot_be_read_is_unknown_and_not_empty(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.plain(MANAGEMENT)
    view = machine.look()
    assert view["pci_functions"] is None
    assert "pci" in view["unread"]


def test_one_rail_down(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.write(f"sys/class/net/{SECOND}/carrier", "0")
    machine.write(f"sys/class/net/{SECOND}/speed", "-1")
    view = machine.look()
    assert view["interfaces"][FIRST]["carrier"] is True
    assert view["interfaces"][SECOND]["carrier"] is False
    assert view["interfaces"][SECOND]["speed_mbps"] is None
    assert view["unread"] == {}


def test_an_interface_that_is_switched_off_has_no_carrier(tmp_path: Path) -> None:
    machine = spark(tmp_path, up=False)
    (tmp_path / f"sys/class/net/{FIRST}/carrier").unlink()  # the kernel answers EINVAL
    view = machine.look()
    assert view["interfaces"][FIRST]["up"] is False
    assert view["interfaces"][FIRST]["carrier"] is False
    assert view["unread"] == {}


def test_what_cannot_be_read_is_none_with_its_reason(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    (tmp_path / f"sys/class/net/{FIRST}/mtu").unlink()
    machine.write(f"sys/class/net/{FIRST}/speed", "fast")
    machine.answers["ip address"] = Result(127, "", "ip: not found")
    view = machine.look("", PEERS)
    assert view["interfaces"][FIRST]["mtu"] is None
    assert view["interfaces"][FIRST]["speed_mbps"] is None
    assert view["unread"][f"{FIRST}/mtu"] == "it is not there"
    assert view["unread"][f"{FIRST}/speed"] == "it says 'fast'"
    assert view["unread"][f"{SECOND}/addresses"] == "ip: not found"
    assert view["paths"][FIRST]["sent"] is None


def test_a_narrow_pcie_link_is_seen(tmp_path: Path) -> None:
    view = spark(tmp_path, width=2, pcie_speed="2.5 GT/s PCIe").look()
    assert view["interfaces"][SECOND]["pcie_width"] == 2
    assert view["interfaces"][SECOND]["pcie_speed"] == "2.5 GT/s PCIe"


@pytest.mark.fault(31)
def test_every_port_of_the_card_is_seen_but_only_the_rails_are_asked_about(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.port("enp1s0f1np1")
    machine.port("enP2p1s0f1np1", carrier=False)
    view = machine.look()
    assert view["cx7"] == sorted(PORTS)
    assert view["interfaces"]["enp1s0f1np1"]["carrier"] is True
    assert view["interfaces"]["enP2p1s0f1np1"]["carrier"] is False
    assert set(view["persistent"]) == {FIRST, SECOND}


@pytest.mark.fault(45)
def test_ip_is_asked_about_one_device_at_a_time_and_never_about_neighbours(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    view = machine.look("10.20.0.11", PEERS)
    asked = [argv for argv in machine.asked if argv[0] == "ip"]
    assert {argv[2] for argv in asked} == {"address", "route"}
    for argv in asked:
        if argv[2] == "address":
            assert argv == ["ip", "-json", "address", "show", "dev", argv[-1]]
    # The answers above name no device at all.
    assert view["interfaces"][SECOND]["addresses"] == ["192.168.178.11/24"]
    assert view["management"]["interface"] == MANAGEMENT


@pytest.mark.fault(20)
def test_pings_fill_a_frame_and_are_bound_to_their_interface(tmp_path: Path) -> None:
    machine = spark(tmp_path, mtu=9000)
    machine.lost = {SECOND: 2}
    view = machine.look("", PEERS)
    pings = sorted(argv for argv in machine.asked if argv[0] == "ping")
    assert pings == [
        ["ping", "-4", "-n", "-c", "2", "-i", "0.2", "-W", "1", "-M", "do", "-s", "8972",
         "-I", name, PEERS[name]]
        for name in (SECOND, FIRST)
    ]  # fmt: skip
    assert view["paths"][FIRST]["received"] == 2
    assert view["paths"][SECOND] == {
        "peer": "192.168.178.12", "size": 8972, "sent": 2, "received": 0, "error": ""
    }  # fmt: skip


def test_nothing_is_sent_without_peers(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    assert machine.look()["paths"] == {}
    assert "ping" not in {argv[0] for argv in machine.asked}


def test_a_ping_that_could_not_send_failed_and_one_that_did_not_run_is_unknown(
    tmp_path: Path,
) -> None:
    machine = spark(tmp_path)
    machine.answers["ping"] = Result(
        1, "2 packets transmitted, 0 received, +2 errors\n", "ping: local error: message too long"
    )
    path = machine.look("", PEERS)["paths"][FIRST]
    assert (path["sent"], path["received"]) == (2, 0)
    assert path["error"] == "local error: message too long"
    machine.answers["ping"] = Result(2, "", "ping: connect: Network is unreachable")
    path = machine.look("", PEERS)["paths"][FIRST]
    assert (path["sent"], path["received"]) == (0, 0)
    assert path["error"] == "connect: Network is unreachable"
    machine.answers["ping"] = Result(127, "", "ping: not found")
    path = machine.look("", PEERS)["paths"][FIRST]
    assert (path["sent"], path["received"]) == (None, None)
    assert path["error"] == "ping: not found"


@pytest.mark.fault(21)
def test_a_wireless_management_path_is_seen(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.plain("wlP9s9", "10.30.0.11/24", wireless=True)
    found = machine.look("10.30.0.11")["management"]
    assert found == {
        "interface": "wlP9s9", "wireless": True, "address": "10.30.0.11", "how": "has 10.30.0.11"
    }  # fmt: skip


@pytest.mark.fault(21)
def test_a_management_address_on_a_rail_is_seen(tmp_path: Path) -> None:
    assert spark(tmp_path).look("192.168.178.11")["management"]["interface"] == SECOND


def test_a_management_name_of_this_host_alone_leads_to_the_ssh_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = spark(tmp_path)
    machine.plain("wlP9s9", "10.30.0.11/24", wireless=True)
    machine.default = "wlP9s9"
    # As /etc/hosts has it for a machine's own name.
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.1.1", 0))])
    monkeypatch.setattr("os.getpid", lambda: 700)
    machine.write("proc/700/environ", "SUDO_USER=operator\0")
    machine.write("proc/700/status", "Name:\tpython3\nPPid:\t600")
    machine.write("proc/600/environ", "A=b\0SSH_CONNECTION=10.20.0.1 50000 10.20.0.11 22\0C=d")
    machine.write("proc/600/status", "Name:\tsudo\nPPid:\t1")
    found = machine.look("spark-a.example")["management"]
    assert found["interface"] == MANAGEMENT
    assert found["wireless"] is False
    assert "ssh connection" in found["how"]


def test_without_any_other_sign_the_default_route_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = spark(tmp_path)
    monkeypatch.setattr("socket.getaddrinfo", _unknown_name)
    found = machine.look("spark-a.example")["management"]
    assert (found["interface"], found["how"]) == (MANAGEMENT, "has the default route")
    machine.default = ""
    found = machine.look("spark-a.example")["management"]
    assert found["interface"] is None
    assert "spark-a.example" in found["how"]


def _unknown_name(*_: object, **__: object) -> None:
    raise OSError("Name or service not known")


def test_of_several_default_routes_the_cheapest_counts() -> None:
    routes = [{"dev": "wlan0", "metric": 600}, {"gateway": "10.0.0.1"}, {"dev": "eth0"}]
    assert look.parse_default(json.dumps(routes)) == "eth0"
    assert look.parse_default("[]") is None


@pytest.mark.parametrize(
    ("services", "devices", "renderer"),
    [
        (("active", "active"), f"{FIRST}:connected:x\n{SECOND}:unavailable:\n", "NetworkManager"),
        (("active", "active"), f"{FIRST}:unmanaged:\n{SECOND}:unmanaged:\n", "networkd"),
        (("active", "inactive"), f"{FIRST}:unmanaged:\n{SECOND}:unmanaged:\n", None),
        (("active", "active"), f"{FIRST}:connected:x\n{SECOND}:unmanaged:\n", None),
        (("active", "active"), f"{FIRST}:connected (externally):x\n{SECOND}:unmanaged:\n",
         "networkd"),
        (("active", "inactive"), f"{FIRST}:connected (externally):x\n{SECOND}:connected:\n",
         "NetworkManager"),
        (("inactive", "active"), "", "networkd"),
        (("inactive", "failed"), "", None),
    ],
)  # fmt: skip
def test_who_brings_the_rails_up(
    tmp_path: Path, services: tuple[str, str], devices: str, renderer: str | None
) -> None:
    machine = spark(tmp_path)
    machine.services, machine.nm_devices = services, devices
    view = machine.look()
    assert view["renderer"] == renderer
    assert view["renderer_why"]


def test_a_renderer_that_cannot_be_found_out_has_a_reason(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.answers["systemctl"] = Result(127, "", "systemctl: not found")
    assert machine.look()["renderer_why"] == "systemctl does not say who is active: " \
        "systemctl: not found"  # fmt: skip


def test_nmcli_escapes_colons() -> None:
    text = "enp1s0f0np0:connected:Wired\\: 1\nlo:connected (externally):lo\n"
    assert look.parse_nm_devices(text) == {
        "enp1s0f0np0": "connected", "lo": "connected (externally)"
    }  # fmt: skip


FLOW = (
    "network: {version: 2, ethernets: {RAIL: {link-local: [], addresses: [192.168.177.11/24]}, "
    "other: {addresses: [192.168.177.99/24]}}}".replace("RAIL", FIRST)
)
MATCHED = f"""network:
  ethernets:
    NM-7a:
      renderer: NetworkManager
      match:
        name: "{FIRST}"
      addresses:
      - "192.168.177.11/24"
"""
KEYFILE = f"""[connection]
id=rail
interface-name={FIRST}

[ipv4]
address1=192.168.177.11/24,192.168.177.1
method=manual
"""
NETWORK = (
    "[Match]\nName=enp1s0f0* eth9\n\n[Network]\nDHCP=no\n[Address]\nAddress=192.168.177.11/24\n"
)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/netplan/50-flow.yaml", FLOW),
        ("etc/netplan/90-NM-7a.yaml", MATCHED),
        ("etc/netplan/40-cx7.yaml", netplan(11).replace(FIRST, f'"{FIRST}"')),
        ("etc/NetworkManager/system-connections/rail.nmconnection", KEYFILE),
        ("etc/NetworkManager/system-connections/mac", KEYFILE.replace(
            f"interface-name={FIRST}", "[ethernet]\nmac-address=4C:BB:47:00:00:00")),
        ("etc/systemd/network/40-rail.network", NETWORK),
    ],
)  # fmt: skip
def test_where_an_address_is_kept_for_the_next_boot(tmp_path: Path, path: str, text: str) -> None:
    machine = Machine(tmp_path)
    machine.port(FIRST, "192.168.177.11/24", "169.254.3.4/16")
    machine.port(SECOND)
    machine.write(path, text)
    assert machine.look()["persistent"] == {FIRST: f"/{path}", SECOND: None}


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("run/NetworkManager/system-connections/rail.nmconnection", KEYFILE),
        ("run/systemd/network/10-netplan-rail.network", NETWORK),
        ("run/netplan/40-cx7.yaml", netplan(11)),
        ("etc/NetworkManager/system-connections/rail.nmconnection",
         KEYFILE.replace("[ipv4]", "autoconnect=false\n[ipv4]")),
        ("etc/NetworkManager/system-connections/rail.nmconnection",
         KEYFILE.replace(FIRST, "eth0")),
        ("etc/netplan/40-cx7.yaml", netplan(11).replace("177.11/24", "177.111/24")),
        ("etc/netplan/40-cx7.yaml", netplan(11).replace("[192", "[]  # was [192")),
        ("etc/netplan/40-cx7.yaml", netplan(11).replace(FIRST, SECOND)),
        ("etc/netplan/40-cx7.yaml.off", netplan(11)),
        ("etc/netplan/40-cx7.yaml", f"network: {{ethernets: {{{FIRST}: {{dhcp4: true, routes: "
         "[{to: 192.168.177.11/24, via: 192.168.177.1}]}}}"),
        ("etc/netplan/90-NM-7a.yaml", MATCHED + "      networkmanager:\n        passthrough:\n"
         "          connection.autoconnect: \"false\"\n"),
        ("etc/netplan/40-cx7.yaml", netplan(11).replace("    link-local: []",
         "    activation-mode: \"off\"\n      link-local: []", 1)),
        ("etc/systemd/network/40-rail.network", NETWORK.replace("enp1s0f0*", "enp1s0f1*")),
    ],
)  # fmt: skip
def test_what_does_not_outlive_a_boot(tmp_path: Path, path: str, text: str) -> None:
    machine = Machine(tmp_path)
    machine.port(FIRST, "192.168.177.11/24")
    machine.write(path, text)
    assert machine.look()["persistent"][FIRST] is None


def test_an_address_is_kept_only_if_all_of_the_interface_are(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.addresses[FIRST].append("192.168.50.1/24")
    view = machine.look()
    assert view["persistent"][FIRST] is None
    assert view["kept"][FIRST] == {
        "192.168.177.11/24": "/etc/netplan/40-cx7.yaml", "192.168.50.1/24": None
    }  # fmt: skip


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = spark(tmp_path)
    machine.write("etc/netplan/90-secret.yaml", "network: {}")
    read = Path.read_text

    def refuse(path: Path, *args: str, **options: str) -> str:
        if path.name == "90-secret.yaml":
            raise PermissionError(13, "Permission denied")
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    unread: dict[str, str] = {}
    address = "192.168.177.11/24"
    found = nextboot.kept(nextboot.entries(FIRST, None, tmp_path, unread), [address])
    assert found == {address: "/etc/netplan/40-cx7.yaml"}
    assert unread == {"/etc/netplan/90-secret.yaml": "Permission denied"}


def test_an_older_file_of_the_same_name_is_hidden(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.write("lib/netplan/40-cx7.yaml", netplan(99))
    assert machine.look()["persistent"][FIRST] == "/etc/netplan/40-cx7.yaml"
    machine.write("lib/netplan/40-cx7.yaml", netplan(11))
    machine.write("etc/netplan/40-cx7.yaml", "network: {}")
    assert machine.look()["persistent"][FIRST] is None


def test_files_about_one_interface_add_up(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.write("etc/netplan/90-mtu.yaml", f"network: {{ethernets: {{{FIRST}: {{mtu: 9000}}}}}}")
    view = machine.look()
    assert view["persistent"][FIRST] == "/etc/netplan/40-cx7.yaml"
    assert view["kept_mtu"] == {FIRST: 9000, SECOND: None}
    machine.write("etc/netplan/91.yaml",
                  f"network: {{ethernets: {{{FIRST}: {{activation-mode: manual}}}}}}")  # fmt: skip
    assert machine.look()["persistent"][FIRST] is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/netplan/50-flow.yaml", FLOW.replace("link-local", "mtu: 9000, link-local")),
        ("etc/NetworkManager/system-connections/rail", KEYFILE + "[ethernet]\nmtu=9000\n"),
        ("etc/systemd/network/40-rail.network", NETWORK + "[Link]\nMTUBytes=9000\n"),
    ],
)
def test_the_mtu_of_the_next_boot_is_read(tmp_path: Path, path: str, text: str) -> None:
    machine = Machine(tmp_path)
    machine.port(FIRST, "192.168.177.11/24")
    machine.port(SECOND)
    machine.write(path, text)
    assert machine.look()["kept_mtu"] == {FIRST: 9000, SECOND: None}


def test_a_netplan_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    machine = spark(tmp_path)
    machine.write("etc/netplan/90-broken.yaml", "network: [")
    view = machine.look()
    assert view["persistent"][FIRST] == "/etc/netplan/40-cx7.yaml"
    assert "is not YAML" in view["unread"]["/etc/netplan/90-broken.yaml"]
