"""Variables of a small pair as a run would see them, for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from spark_pair.inventory import default_variables

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hostvars(**changes: Any) -> dict[str, dict[str, Any]]:
    """Both hosts' variables; `changes` are set for both."""
    shared = {
        **default_variables(),
        "tensorfold_service_recipe_commit": COMMIT,
        "tensorfold_service_image": "engine:test",
        "tensorfold_service_api_open": True,
        **changes,
    }
    if "tensorfold_service_ablit" not in changes:
        wanted = str(shared["ablit_graft_enabled"]).lower()
        shared["tensorfold_service_ablit"] = int(wanted in ("true", "yes", "on"))
    return {
        "spark-a": {
            **shared,
            "pair_role": "head",
            "pair_peer": "spark-b",
            "ansible_host": "192.0.2.11",
            "spark_user": "ann",
            "spark_home": "/home/ann",
            "cx7_network_rails": [
                {"interface": "enp1s0f0np0", "address": "198.51.100.11/25"},
                {"interface": "enP2p1s0f0np0", "address": "198.51.100.139/25"},
            ],
        },
        "spark-b": {
            **shared,
            "pair_role": "worker",
            "pair_peer": "spark-a",
            "ansible_host": "192.0.2.12",
            "spark_user": "bob",
            "spark_home": "/srv/bob",
            "cx7_network_rails": [
                {"interface": "enp1s0f0np0", "address": "198.51.100.12/25"},
                {"interface": "enP2p1s0f0np0", "address": "198.51.100.140/25"},
            ],
        },
    }
