#!/usr/bin/env python3
"""Dynamic part of the simulated inventory: where the machines of this checkout's pair are.

Computed by the function that also names the containers, so nothing has to be generated and the
inventory can be read before the pair exists.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from simulated_pair.naming import CHECKOUT, RAIL_INTERFACES, Machine, Pair, pair_of

# The stand-in recipe's commit, which is the same wherever its repository is made.
RECIPE_HEAD = CHECKOUT / "simulated_pair" / "standins" / "recipe" / "HEAD.txt"


def host_variables(pair: Pair, machine: Machine) -> dict[str, Any]:
    """Return one machine's inventory variables."""
    peer = pair.worker if machine is pair.head else pair.head
    options = {
        "UserKnownHostsFile": str(pair.known_hosts),
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
    }
    return {
        "ansible_host": machine.management,
        "ansible_user": machine.user,
        "ansible_ssh_private_key_file": str(pair.private_key),
        "ansible_ssh_common_args": " ".join(
            f"-o {shlex.quote(f'{name}={value}')}" for name, value in options.items()
        ),
        "ansible_python_interpreter": "/usr/bin/python3",
        "pair_peer": peer.name,
        "spark_user": machine.user,
        "spark_home": machine.home,
        "weights_hub_endpoint": pair.hub_url,
        "tensorfold_service_recipe_commit": RECIPE_HEAD.read_text().strip(),
        "cx7_network_rails": [
            {"interface": interface, "address": f"{address}/24"}
            for interface, address in zip(RAIL_INTERFACES, machine.addresses[1:], strict=True)
        ],
    }


def inventory() -> dict[str, Any]:
    """Return the inventory as Ansible's script interface wants it."""
    pair = pair_of()
    return {
        "all": {"hosts": [machine.name for machine in pair.machines]},
        "_meta": {"hostvars": {m.name: host_variables(pair, m) for m in pair.machines}},
    }


if __name__ == "__main__":
    print(json.dumps(inventory() if "--host" not in sys.argv else {}, indent=2))
