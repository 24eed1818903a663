"""A third server that somebody made with "docker run": no code knows it, only the inventory.

One story in chapters: each begins where the one before has ended.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stories import preparation, servers
from stories.machines import (
    HEAD,
    WORKER,
    assert_never_two_servers,
    clear_faults,
    exit_code_of,
    is_active,
    machine,
    on,
    set_fault,
)
from stories.plays import Played, play
from stories.servers import assert_deepseek_alone, back_to_hikari, completion, generates
from stories.waiting import wait_for

PROGRAM = Path(__file__).resolve().parents[1] / "vanilla_server.py"
IMAGE = "tensorfold-dsv41:standin"
CONTAINER, UNIT = "vanilla", "vanilla.service"
SIMULATION = "/srv/simulation"
RUN = (
    f"docker run --detach --name {CONTAINER} --restart unless-stopped --network host "
    f"--volume /opt/qwen38fn:/opt/qwen38fn:ro --volume {SIMULATION}:{SIMULATION} "
    f"{IMAGE} python3 -I {SIMULATION}/{PROGRAM.name}"
)
IN_THE_SIMULATION = {"ready_timeout": 60, "probe": {"timeout": 5}}
VARIABLES: dict[str, Any] = {
    "model_server_containers": [
        {"host": "worker", "container": CONTAINER, "unit": UNIT, "stop_timeout": 10}
    ],
    "model_server_extra": {
        "hikari": {**IN_THE_SIMULATION, "unit_stop_timeout": 20},
        "deepseek": {**IN_THE_SIMULATION, "unit_stop_timeout": 60},
        "vanilla": {
            "api": {"host": "worker", "port": 8001, "model": "Vanilla-1"},
            "metrics": {
                "running": "vllm:num_requests_running",
                "waiting": "vllm:num_requests_waiting",
                "progress": ["vllm:generation_tokens_total"],
            },
            "units": [{"host": "worker", "unit": UNIT}],
            "ports": [{"host": "worker", "port": 8001}],
            "unit_stop_timeout": 30,
            "ready_timeout": 60,
            "probe": {
                "timeout": 5,
                "body": {
                    "messages": [{"role": "user", "content": "Reply with the single word OK."}],
                    "max_tokens": 16,
                    "chat_template_kwargs": {"enable_thinking": False},
                },
            },
        },
    },
    "model_server_fallback": "vanilla",
}


@pytest.fixture(scope="module", autouse=True)
def world(prepared: None) -> Iterator[None]:
    back_to_hikari()
    (machine(WORKER).state / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    servers.API["vanilla"] = (WORKER, 8001, "Vanilla-1")
    yield
    preparation.forget()
    exit_code_of(HEAD, "spark-pair switch none --drain stop")
    on(WORKER, f"systemctl disable --now {UNIT}; rm -f /etc/systemd/system/{UNIT}", check=False)
    on(WORKER, f"systemctl daemon-reload; docker rm --force {CONTAINER}", check=False)
    del servers.API["vanilla"]
    play("service").succeeded()
    back_to_hikari()


def run(tags: str, **more: Any) -> Played:
    return play(tags, extra_vars={**VARIABLES, **more})


def container() -> dict[str, Any]:
    """What Docker says of the container."""
    (told,) = json.loads(on(WORKER, f"docker inspect {CONTAINER}"))
    return {
        "id": told["Id"],
        "started": told["State"]["StartedAt"],
        "running": told["State"]["Running"],
        "restart": told["HostConfig"]["RestartPolicy"]["Name"],
    }


def assert_vanilla_alone() -> None:
    assert generates("vanilla"), completion("vanilla")
    assert [name for name in servers.API if generates(name, 2)] == ["vanilla"]
    assert is_active(WORKER, UNIT)
    assert_never_two_servers()


def test_its_unit_is_written_and_what_runs_is_not_touched() -> None:
    """It serves already, and Hikari has not been there for long."""
    on(HEAD, "spark-pair switch none")
    on(WORKER, RUN)
    wait_for("it serves", lambda: generates("vanilla", 2), 30)
    before = container()
    run("service").succeeded()
    assert container() == before
    assert on(WORKER, f"systemctl is-enabled {UNIT} || true").strip() == "disabled"
    assert not is_active(WORKER, UNIT)


def test_its_unit_takes_it_over_without_an_interruption() -> None:
    before = container()
    on(WORKER, f"systemctl enable --now {UNIT}")
    assert container() == {**before, "restart": "no"}
    assert_vanilla_alone()
    run("service").unchanged()


def test_it_is_switched_from() -> None:
    before = container()
    run("cutover").succeeded()
    assert_deepseek_alone()
    assert container() == {**before, "restart": "no", "running": False}
    assert on(WORKER, f"systemctl is-enabled {UNIT}").strip() == "enabled"


def test_it_is_gone_back_to() -> None:
    played = run("rollback").succeeded()
    assert played.switch["exit"] == 0
    assert_vanilla_alone()


def test_it_is_brought_back_when_the_new_one_does_not_start() -> None:
    set_fault(HEAD, "recipe", start="exit1_ranks_running")
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek", seconds=120)
    clear_faults()
    assert code == 20, said
    assert "vanilla serves, verified by a completion" in said
    assert_vanilla_alone()


def test_an_owner_without_a_fallback_gets_the_former_one_back() -> None:
    run("service", model_server_fallback="none").succeeded()
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek", seconds=120)
    assert code == 0, said
    assert_deepseek_alone()
    code, said = exit_code_of(HEAD, "spark-pair switch vanilla", seconds=120)
    assert code == 0, said
    assert_vanilla_alone()
