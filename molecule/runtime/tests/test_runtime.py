"""The NVIDIA runtime comes into a Docker that is at work, or is refused in words."""

import json
from collections.abc import Iterator

import pytest
from stories.machines import (
    HEAD,
    HOSTS,
    WORKER,
    assert_untouched,
    fingerprint,
    machine,
    on,
    on_both,
    read,
    unit,
)
from stories.plays import play
from stories.servers import assert_hikari_alone, back_to_hikari

pytestmark = pytest.mark.fault(11)

FILE = "/etc/docker/daemon.json"
IMAGE = "tensorfold-dsv41:standin"
BYSTANDER = "bystander"
CLIENT = "waiting-client.service"
SWITCHING = "pretended-switch.service"
HIDDEN = "pass-of-the-proxy"
PROOF = "Prove that a container gets the GPU"
LOOK = "Look at Docker, its NVIDIA runtime and what containers mount"

# An operator's file, in an order of its own.
OPERATORS = {
    "shutdown-timeout": 20,
    "proxies": {"http-proxy": f"http://me:{HIDDEN}@192.0.2.1:3128"},
    "log-opts": {"max-size": "10m"},
    "log-driver": "json-file",
}

# reset-failed: a unit may only be started so often in a minute.
_FORGET = f"""
set -e
echo '{json.dumps(OPERATORS)}' >{FILE}
chmod 0640 {FILE}
rm -f {FILE}.before-spark-pair
docker rm --force {BYSTANDER} >/dev/null 2>&1 || true
systemctl reset-failed docker
systemctl restart docker
docker info --format '{{{{json .Runtimes}}}}' | grep -vq nvidia
docker run --detach --name {BYSTANDER} --stop-signal KILL --entrypoint python3 {IMAGE} \\
    -c 'import time; time.sleep(900)'
"""
_AS_FOUND = f"""
set -e
docker rm --force {BYSTANDER} >/dev/null 2>&1 || true
rm -rf /etc/docker
mv /run/docker-as-found /etc/docker
systemctl reset-failed docker
systemctl restart docker
"""


@pytest.fixture(scope="module", autouse=True)
def pair_as_it_comes() -> Iterator[None]:
    """Hikari serves, and Docker knows the runtime; so it is again at the end."""
    back_to_hikari()
    play("runtime").succeeded()
    yield
    assert_hikari_alone()


@pytest.fixture(scope="module")
def without_runtime() -> Iterator[None]:
    """The operator's own daemon.json, a Docker that knows no NVIDIA runtime, and a container."""
    on_both("cp -a /etc/docker /run/docker-as-found")
    on_both(_FORGET)
    yield
    on_both(_AS_FOUND)


def _main_pids() -> dict[str, str]:
    return {host: unit(host, "docker.service", "MainPID")["MainPID"] for host in HOSTS}


def _bystanders() -> dict[str, str]:
    asked = "{{.State.Running}} {{.State.StartedAt}} {{.Id}}"
    return on_both(f"docker inspect --format '{asked}' {BYSTANDER}")


def _containers(host: str) -> list[str]:
    return on(host, "docker ps --all --format '{{.Names}}'").split()


def test_a_pair_as_it_comes_shows_its_gpus_and_changes_nothing() -> None:
    before = fingerprint()
    played = play("preflight,network,runtime").unchanged()
    for host in HOSTS:
        assert "NVIDIA GB10" in played.result_of(PROOF, host)["gpu"]
    assert_untouched(before)

    looked = play("preflight,network,runtime", check=True).unchanged()
    assert "would run 'nvidia-smi -L'" in looked.result_of(PROOF, HEAD)["gpu"]
    assert_untouched(before)


def test_a_machine_without_the_toolkit_is_refused() -> None:
    on(HEAD, "mv /usr/bin/nvidia-container-runtime-hook /run/")
    try:
        before = fingerprint()
        played = play("runtime").refused()
        assert {one.host for one in played.failures} == {HEAD}
        for words in (HEAD, "nvidia-container-runtime-hook", "nvidia-container-toolkit"):
            assert words in played.words
        assert_untouched(before)
    finally:
        on(HEAD, "mv /run/nvidia-container-runtime-hook /usr/bin/")


def test_a_directory_that_docker_made_as_root_is_given_back() -> None:
    place = f"{machine(WORKER).home}/.cache/dsv41-tensorfold/logs"
    mount = f"docker run --rm -v {place}:/logs --entrypoint python3 {IMAGE} -c ''"
    on(WORKER, f"rm -rf {place}; {mount}; touch {place}/of-root")
    try:
        assert on(WORKER, f"stat -c %U {place}").strip() == "root"
        played = play("runtime").succeeded()
        assert played.changes == [f"{WORKER}: {LOOK}"]
        assert f"sudo chown -R {machine(WORKER).user}: {place}" in played.output
        owners = on(WORKER, f"stat -c %U {place} {place}/of-root").split()
        assert owners == [machine(WORKER).user, "root"]
        play("runtime").unchanged()
    finally:
        on(WORKER, f"rm -f {place}/of-root")


def test_a_broken_daemon_json_is_refused_and_stays(without_runtime: None) -> None:
    on_both(f"cp -a {FILE} /run/operators.json")
    on(HEAD, f'echo \'{{"proxies": "{HIDDEN}",}}\' >{FILE}')
    on(WORKER, f'echo \'{{"runtimes": {{"nvidia": {{"path": "runc"}}}}}}\' >{FILE}')
    before = fingerprint()
    played = play("runtime").refused()
    told = {one.host: one.message for one in played.failures}
    assert HEAD in told[HEAD] and FILE in told[HEAD] and "not valid JSON" in told[HEAD]
    assert WORKER in told[WORKER] and "runtimes.nvidia runs runc" in told[WORKER]
    assert HIDDEN not in played.output
    assert_untouched(before)
    on_both(f"mv /run/operators.json {FILE}")


def test_a_missing_runtime_is_merged_in_while_docker_works(without_runtime: None) -> None:
    before, pids, bystanders = fingerprint(), _main_pids(), _bystanders()

    looked = play("runtime", check=True).succeeded()
    assert len(looked.changes) == len(HOSTS)
    assert '"path": "nvidia-container-runtime"' in looked.output and HIDDEN not in looked.output
    assert "would run 'nvidia-smi -L'" in looked.result_of(PROOF, HEAD)["gpu"]
    assert_untouched(before)

    played = play("runtime").succeeded()
    assert HIDDEN not in played.output
    for host in HOSTS:
        assert "NVIDIA GB10" in played.result_of(PROOF, host)["gpu"]
        found = json.loads(read(host, FILE))
        assert found.pop("runtimes")["nvidia"]["path"] == "nvidia-container-runtime"
        assert list(found.items()) == list(OPERATORS.items())
        assert json.loads(read(host, f"{FILE}.before-spark-pair")) == OPERATORS
        assert on(host, f"stat -c %a {FILE} {FILE}.before-spark-pair").split() == ["640", "640"]
        assert "nvidia" in json.loads(on(host, "docker info --format '{{json .Runtimes}}'"))
        assert _containers(host) == [BYSTANDER]
    assert _main_pids() == pids and _bystanders() == bystanders, "Docker was not left alone"

    play("runtime").unchanged()


def test_a_restart_that_would_end_something_is_refused(without_runtime: None) -> None:
    on(HEAD, _FORGET)
    pids, bystanders = _main_pids(), _bystanders()
    drop_in = "/run/systemd/system/docker.service.d"
    deaf = "[Service]\\nExecReload=\\nExecReload=/bin/true\\n"
    on(HEAD, f"mkdir -p {drop_in}; printf '{deaf}' >{drop_in}/deaf.conf; systemctl daemon-reload")
    try:
        client = f"systemd-run --quiet --unit {CLIENT} docker wait {BYSTANDER}"
        on(HEAD, f"systemctl reset-failed {CLIENT} 2>/dev/null || true; {client}")
        played = play("runtime")
        assert played.code != 0 and {one.host for one in played.failures} == {HEAD}
        for words in (HEAD, f"container {BYSTANDER}", f"of {CLIENT}", "hikari runs", "stays in"):
            assert words in played.words
        assert "container_runtime_allow_restart" in played.words
        assert _main_pids() == pids and _bystanders() == bystanders

        # A switch is the matter of both machines, and nothing allows a restart in one.
        allowed = {"container_runtime_allow_restart": True}
        lock = "mkdir -p /run/spark-pair; exec flock /run/spark-pair/switch.lock sleep 300"
        on(WORKER, f"systemd-run --quiet --unit {SWITCHING} bash -c '{lock}'")
        played = play("runtime", extra_vars=allowed)
        on(WORKER, f"systemctl stop {SWITCHING}; rm /run/spark-pair/switch.lock")
        assert {one.host for one in played.failures} == {HEAD}
        assert f"switch.lock on {WORKER}" in played.words
        assert _main_pids() == pids and _bystanders() == bystanders

        played = play("runtime", extra_vars=allowed).succeeded()
        assert "NVIDIA GB10" in played.result_of(PROOF, HEAD)["gpu"]
        assert _main_pids()[HEAD] != pids[HEAD] and _main_pids()[WORKER] == pids[WORKER]
    finally:
        on(HEAD, f"systemctl stop {CLIENT} || true; systemctl reset-failed {CLIENT} || true")
        on(HEAD, f"rm -r {drop_in}; systemctl daemon-reload")
