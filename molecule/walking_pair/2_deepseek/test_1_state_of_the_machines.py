"""What a host looks like after site.yml: files, rights, keys, units."""

import json
import re

import pytest
from stories.machines import HEAD, HOSTS, PAIR, WORKER, exit_code_of, machine, on
from testinfra import get_host
from testinfra.host import Host

from simulated_pair.naming import Machine

GENERATION = "/var/lib/spark-pair/current/deepseek"


def _host(name: str) -> Host:
    spark = machine(name)
    extra = f"-o UserKnownHostsFile={PAIR.known_hosts} -o IdentitiesOnly=yes"
    return get_host(
        f"ssh://{spark.user}@{spark.management}?sudo=true"
        f"&ssh_identity_file={PAIR.private_key}&controlpersist=120",
        ssh_extra_args=extra,
    )


@pytest.fixture(params=HOSTS)
def spark(request: pytest.FixtureRequest) -> Machine:
    return machine(request.param)


@pytest.fixture
def host(spark: Machine) -> Host:
    return _host(spark.name)


@pytest.fixture
def head() -> Host:
    return _host(HEAD)


def _peer(spark: Machine) -> Machine:
    return PAIR.worker if spark is PAIR.head else PAIR.head


def test_both_hold_the_same_description_of_the_pair(spark: Machine, host: Host) -> None:
    file = host.file("/etc/spark-pair/pair.json")
    assert (file.mode, file.user, file.group) == (0o644, "root", "root")
    described = json.loads(file.content_string)
    assert described.pop("me") == spark.role
    assert described["schema"] == 1
    assert {role: one["name"] for role, one in described["hosts"].items()} == {
        "head": HEAD,
        "worker": WORKER,
    }
    assert described["hosts"][spark.role]["home"] == spark.home
    assert described["hosts"][spark.role]["addresses"] == list(spark.addresses)
    peer = json.loads(_host(_peer(spark).name).file(file.path).content_string)
    del peer["me"]
    assert described == peer


def test_the_account_may_run_the_fixed_verbs_and_sudo_accepts_the_file(
    spark: Machine, host: Host
) -> None:
    file = host.file("/etc/sudoers.d/spark-pair")
    assert (file.mode, file.user) == (0o440, "root")
    rules = [line for line in file.content_string.splitlines() if line and line[0] != "#"]
    assert rules == [f"{spark.user} ALL=(root) NOPASSWD: /usr/local/bin/spark-pair node *"]
    assert host.run("visudo -c").rc == 0


def test_secrets_are_closed_to_all_but_root(host: Host) -> None:
    folder = host.file("/etc/spark-pair/secrets")
    assert (folder.is_directory, folder.mode, folder.user) == (True, 0o700, "root")


def test_the_tool_is_a_release_behind_a_link(host: Host) -> None:
    current = host.file("/opt/spark-pair/current")
    assert re.fullmatch(r"/opt/spark-pair/releases/[0-9a-f]{12}", current.linked_to)
    tool = host.file("/usr/local/bin/spark-pair")
    assert tool.is_symlink and host.file(tool.linked_to).mode & 0o111
    assert host.run("spark-pair --version").stdout.split()[-1] in current.linked_to


def test_units_call_the_release_itself(spark: Machine, host: Host) -> None:
    release = host.file("/opt/spark-pair/current").linked_to
    names = {"head": ("switch", "resume"), "worker": ("resume",)}[spark.role]
    for name in names:
        text = host.file(f"/etc/systemd/system/spark-pair-{name}.service").content_string
        assert f"ExecStart={release}/" in text, "an upgrade would change the tool under a switch"
    assert host.service("spark-pair-resume.service").is_enabled
    assert host.file("/etc/systemd/system/spark-pair-switch.service").exists is (
        spark.role == "head"
    )


def test_the_way_back_is_there_without_ansible(host: Host) -> None:
    script = host.file("/usr/local/bin/rollback-to-hikari.sh")
    assert (script.mode, script.user) == (0o755, "root")


def test_the_engines_unit_is_as_designed_and_not_enabled(head: Host) -> None:
    unit = head.file("/etc/systemd/system/dsv41-tensorfold.service").content_string
    for line in (
        "Type=oneshot",
        "RemainAfterExit=yes",
        f"User={PAIR.head.user}",
        f"ExecStart={GENERATION}/launch start.sh restart",
        f"ExecStopPost={GENERATION}/launch stop.sh",
        "TimeoutStartSec=120",
        "TimeoutStopSec=180",
    ):
        assert line in unit.splitlines()
    assert "[Install]" not in unit
    state = head.check_output("systemctl is-enabled dsv41-tensorfold.service")
    assert state == "static", "after a boot the machine belongs to what is enabled"
    assert not _host(WORKER).file("/etc/systemd/system/dsv41-tensorfold.service").exists


def test_the_generation_that_serves(head: Host) -> None:
    current = head.file(GENERATION)
    assert re.fullmatch(r"/var/lib/spark-pair/generations/[0-9a-f]{12}", current.linked_to)
    settings = head.file(f"{GENERATION}/recipe/scripts/local.sh")
    assert (settings.mode, settings.user) == (0o600, PAIR.head.user)
    launch = head.file(f"{GENERATION}/launch")
    assert launch.mode == 0o755
    assert "env -i" in launch.content_string, "a stale variable would reach the engine"
    link = head.file(f"{PAIR.head.home}/dsv41")
    assert link.is_symlink and current.linked_to in link.linked_to
    commit = head.run("git -c safe.directory=* -C %s rev-parse HEAD", f"{GENERATION}/recipe")
    manifest = json.loads(head.file(f"{GENERATION}/generation.json").content_string)
    assert manifest["commit"] == commit.stdout.strip()


def test_keys_are_limited_to_the_peers_addresses(spark: Machine, host: Host) -> None:
    peer = _peer(spark)
    key = _host(peer.name).file(f"{peer.home}/.ssh/id_ed25519.pub").content_string.split()[1]
    authorized = host.file(f"{spark.home}/.ssh/authorized_keys").content_string.splitlines()
    (line,) = [line for line in authorized if key in line]
    (allowed,) = re.findall(r'from="([^"]*)"', line)
    assert set(allowed.split(",")) == set(peer.addresses)
    private = host.file(f"{spark.home}/.ssh/id_ed25519")
    assert (private.mode, private.user) == (0o600, spark.user)


def test_the_peers_host_key_is_pinned_under_every_name(spark: Machine, host: Host) -> None:
    peer = _peer(spark)
    real = on(peer.name, "cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub").strip()
    for name in (*peer.addresses, peer.name):
        found = host.run("ssh-keygen -F %s -f %s", name, f"{spark.home}/.ssh/known_hosts")
        assert real in found.stdout, f"{name} is not pinned"


@pytest.mark.parametrize("way", ["management", "rail 0", "rail 1"])
def test_each_may_ask_the_other_on_every_way(spark: Machine, way: str) -> None:
    peer = _peer(spark)
    address = peer.addresses[["management", "rail 0", "rail 1"].index(way)]
    code, said = exit_code_of(
        spark.name,
        f"runuser -u {spark.user} -- ssh -o BatchMode=yes -o StrictHostKeyChecking=yes "
        f"{peer.user}@{address} sudo -n /usr/local/bin/spark-pair node hello",
    )
    assert code == 0, said


def test_hikaris_units_are_as_they_were(spark: Machine) -> None:
    code, said = exit_code_of(
        spark.name,
        "for unit in /etc/systemd/system/qwen38fn-*.{service,timer}; do"
        ' [ ! -f "$unit" ] || cmp "$unit" "/opt/qwen38fn/units/${unit##*/}" || exit 1; done',
    )
    assert code == 0, said
