"""Rails that work are left alone; others are configured, proven, and put back if anything fails."""

import signal
from collections.abc import Iterator

import pytest
import rails
from stories.machines import (
    HEAD,
    HOSTS,
    WORKER,
    assert_untouched,
    fingerprint,
    on,
    on_both,
    pair_command,
)
from stories.plays import Controller, play, start_play
from stories.servers import generates
from stories.waiting import wait_for

from simulated_pair.naming import RAIL_INTERFACES

IMPATIENT = {
    "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=30s "
    "-o ServerAliveInterval=1 -o ServerAliveCountMax=3"
}
"""A machine without power is noticed after three seconds instead of half a minute."""


def test_working_rails_are_adopted_while_hikari_serves() -> None:
    before = fingerprint()
    assert generates("hikari")
    played = play("network").unchanged()
    assert_untouched(before)
    assert "full frames to the peer" in played.output


def test_a_change_is_refused_while_hikari_serves() -> None:
    before = fingerprint()
    for check in (True, False):
        played = play("network", extra_vars={"cx7_network_mtu": 9000}, check=check)
        assert played.code != 0, played.output
        for word in ("gets MTU 9000 (now 1500)", HEAD, WORKER, "hikari runs", "on the GPU"):
            assert word in played.words, played.words
        assert_untouched(before)
        # Check mode shows the change first.
        assert check or not played.changes, played.changes
    assert generates("hikari")


@pytest.fixture(scope="module")
def networkd() -> None:
    """No server, networkd as found, NVIDIA's older file and no addresses."""
    rails.stop_hikari()
    rails.lose_configuration()


@pytest.mark.usefixtures("networkd")
class TestWithNetworkd:
    """Servers, and the pair as it was found."""

    def test_check_mode_shows_the_files_and_changes_nothing(self) -> None:
        before = fingerprint()
        played = play("network", check=True).succeeded()
        for words in (
            f"+++ after: {rails.OURS}",
            f"+++ after: {rails.NVIDIAS} (removed)",
            rails.wanted_address(HEAD, "enP2p1s0f0np0"),
            rails.wanted_address(WORKER, "enp1s0f0np0"),
        ):
            assert words in played.output, words
        for host in HOSTS:
            said = played.result_of("Say what would be activated", host)["msg"]
            assert said.endswith("activate enp1s0f0np0, enP2p1s0f0np0 with networkd"), said
        assert_untouched(before)

    def test_an_older_file_gives_way(self) -> None:
        play("network").succeeded()
        rails.assert_rails_as_wanted(1500)
        for host in HOSTS:
            on(host, f"test ! -e {rails.NVIDIAS}")
            assert on(host, f"stat --format '%a %U' {rails.OURS}").strip() == "600 root"
            kept = on(host, "cat /var/lib/spark-pair/network/kept/*/etc/netplan/cx7-netplan.yaml")
            assert "link-local: [ ipv4 ]" in kept
            assert rails.phase(host) == "confirmed"

    def test_a_worker_without_power_leaves_both_as_they_were(self) -> None:
        before = rails.files()
        running = start_play("network", extra_vars={"cx7_network_mtu": 9000}, environment=IMPATIENT)
        rails.wait_until_armed(WORKER)
        pair_command("cut-power", WORKER)
        played = running.finish()
        assert played.code != 0
        assert WORKER in played.words and "put" in played.words
        pair_command("boot", WORKER)
        wait_for("the worker is restored", lambda: rails.phase(WORKER) == "restored", 60)
        wait_for("its job has ended", lambda: rails.files() == before, 20)
        rails.assert_rails_as_wanted(1500)
        # What nobody had confirmed was never brought up again.
        units = "-u systemd-networkd.service -u spark-pair-network-restore.service"
        said = on(WORKER, f"journalctl -b -o cat {units}")
        assert said.index("is put back as it was") < said.index("Starting systemd-networkd"), said


@pytest.fixture(scope="module")
def network_manager(networkd: None) -> Iterator[None]:
    """No server, NetworkManager as on DGX OS, NVIDIA's older file and no addresses."""
    on_both("systemctl disable --now systemd-networkd.socket systemd-networkd")
    # A boot brings Hikari back.
    rails.stop_hikari()
    on_both("systemctl enable --now NetworkManager")
    rails.lose_configuration()
    yield
    on_both("systemctl disable --now NetworkManager && systemctl enable systemd-networkd")


@pytest.mark.usefixtures("network_manager")
class TestWithNetworkManager:
    """DGX OS."""

    def test_larger_frames_by_choice(self) -> None:
        play("network", extra_vars={"cx7_network_mtu": 9000}).succeeded()
        rails.assert_rails_as_wanted(9000)
        for host in HOSTS:
            devices = on(host, "nmcli -t -f DEVICE,CONNECTION device")
            assert "enP2p1s0f0np0:netplan-enP2p1s0f0np0" in devices
            on(host, f"test ! -e {rails.NVIDIAS}")

    def test_the_second_run_changes_nothing(self) -> None:
        before = fingerprint()
        play("network", extra_vars={"cx7_network_mtu": 9000}).unchanged()
        assert_untouched(before)

    @pytest.mark.fault(10)
    def test_a_boot_brings_the_rails_up_as_they_were_confirmed(self) -> None:
        pair_command("cut-power", WORKER)
        pair_command("boot", WORKER)
        rails.stop_hikari()
        for rail in RAIL_INTERFACES:
            wanted = [rails.wanted_address(WORKER, rail)]
            wait_for(f"{rail} is up", lambda r=rail, w=wanted: rails.addresses(WORKER, r) == w, 30)
        rails.assert_rails_as_wanted(9000)
        assert rails.phase(WORKER) == "confirmed"

    def test_without_the_controller_both_put_themselves_back(self) -> None:
        """And a file that somebody has edited meanwhile stays as it is."""
        before = rails.files()
        controller = Controller(
            "network", {"cx7_network_mtu": 1500, "cx7_network_confirm_seconds": 10}
        )
        rails.wait_until_armed(WORKER)
        on(WORKER, f"echo '# mine' >>{rails.OURS}")
        rails.wait_until_armed(HEAD)
        controller.send(signal.SIGKILL)
        assert rails.phase(HEAD) == "armed", "it was confirmed before the controller died"
        for host in HOSTS:
            wait_for(f"{host} is put back", lambda host=host: rails.phase(host) == "restored", 60)
        wait_for("the head's job has ended", lambda: rails.files()[HEAD] == before[HEAD], 20)
        assert on(WORKER, f"tail -n 1 {rails.OURS}") == "# mine\n"
        assert f"except {rails.OURS}" in rails.result(WORKER)
        assert rails.mtu(HEAD, "enp1s0f0np0") == 9000
