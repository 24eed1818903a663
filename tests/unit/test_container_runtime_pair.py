"""Before Docker is restarted, both hosts of the pair have told who serves and who switches."""

from __future__ import annotations

from typing import Any

import pytest
from pair_hostvars import hostvars

from spark_pair import description as descriptions
from spark_pair import pair_variables
from spark_pair.container_runtime import pair

pytestmark = pytest.mark.fault(11)

Variables = dict[str, dict[str, Any]]


@pytest.fixture
def quiet() -> Variables:
    """Nothing runs on either host, and no switch is at work."""
    variables = hostvars()
    data = pair_variables.description_of("spark-a", variables)
    units = descriptions.parse(data).all_units()
    for host in ("spark-a", "spark-b"):
        view = {
            "units": {name: {"active": "inactive"} for name in units},
            "containers": {},
            "apis": {},
        }
        variables[host] |= {
            "__container_runtime_found": {"restart": ""},
            "__container_runtime_proof": {"restart": ""},
            "__container_runtime_observed": {"description": data, "view": view},
            "__container_runtime_switch": {"switching": []},
        }
    return variables


def test_usually_nobody_needs_one(quiet: Variables) -> None:
    assert pair.restarts(quiet, "spark-a") == []


@pytest.mark.parametrize("register", ["__container_runtime_found", "__container_runtime_proof"])
def test_both_hosts_hear_of_a_restart_of_one(quiet: Variables, register: str) -> None:
    quiet["spark-b"][register] = {"restart": "it is older than the toolkit"}
    assert pair.restarts(quiet, "spark-a") == pair.restarts(quiet, "spark-b") == ["spark-b"]


def test_a_quiet_pair_has_nothing_to_tell(quiet: Variables) -> None:
    assert pair.told(quiet, "spark-a") == {"serving": [], "switching": []}


def test_a_unit_of_a_server_on_the_other_host_counts(quiet: Variables) -> None:
    seen = quiet["spark-b"]["__container_runtime_observed"]
    servers = descriptions.parse(seen["description"]).servers.values()
    server, unit = next(
        (server.name, part.unit)
        for server in servers
        if not server.ranks
        for part in server.units
        if part.host == "worker"
    )
    seen["view"]["units"][unit] = {"active": "active"}
    for host in ("spark-a", "spark-b"):
        (words,) = pair.told(quiet, host)["serving"]
        assert server in words


def test_a_switch_on_the_other_host_counts(quiet: Variables) -> None:
    quiet["spark-a"]["__container_runtime_switch"] = {"switching": ["a switch holds …"]}
    assert pair.told(quiet, "spark-b")["switching"] == ["a switch holds …"]


@pytest.mark.parametrize(
    ("register", "part"),
    [("__container_runtime_observed", "serving"), ("__container_runtime_switch", "switching")],
)
def test_a_host_that_tells_nothing_is_not_quiet(quiet: Variables, register: str, part: str) -> None:
    del quiet["spark-b"][register]
    assert pair.told(quiet, "spark-a")[part]
