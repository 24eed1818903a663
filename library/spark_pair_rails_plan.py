#!/usr/bin/python
"""Look at the rails of one host and work out what would have to change."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_rails_plan
short_description: Work out what has to change for the rails of a host
description:
  - Compares the two rails with what is wanted. Where they differ, prepares netplan's file, has
    netplan check it on a copy, and names everything that stands in the way.
  - Changes nothing. Waits while an earlier change on this host is not confirmed yet, since it
    ends by being put back.
  - With O(prove_seconds) it only looks, and repeats until the peer answers a full frame on both
    rails, or the time is over.
options:
  wanted:
    description: What this host shall have, as the action C(spark_pair_rails_decide) gives it.
    type: dict
    required: true
  management:
    description: Name or address by which the controller reaches this host.
    type: str
    required: true
  prove_seconds:
    description: How long the peer may take to answer. 0 makes a plan instead.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Work out what has to change
  spark_pair_rails_plan:
    wanted: "{{ __cx7_network_wanted.wanted }}"
    management: "{{ ansible_host }}"
  register: __cx7_network_plan
"""

RETURN = r"""
view:
  description: What the rails look like.
  type: dict
  returned: success
plan:
  description: What would change, what stands in the way; null when only looked at.
  type: dict
  returned: success
gpu:
  description: Processes on the GPU, in words.
  type: list
  elements: str
  returned: success
switching:
  description: Why a switch may be at work on this host; empty when none is.
  type: str
  returned: success
"""

import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import system
from ansible.module_utils.spark_pair.rails import job, look, plan
from ansible.module_utils.spark_pair.rails.wanted import Wanted, wanted_from_dict


def run(argv: Any, timeout: float) -> system.Result:
    """Run a program of the host."""
    return system.run(argv, timeout=timeout)


def prove(wanted: Wanted, management: str, seconds: int) -> Mapping[str, Any]:
    """Look until both peers answer, or the time is over; the last view."""
    peers = {rail.interface: rail.peer for rail in wanted.rails}
    until = time.monotonic() + seconds
    while True:
        view: Mapping[str, Any] = look.look(list(peers), management, peers)
        if all(path["received"] for path in view["paths"].values()):
            return view
        if time.monotonic() >= until:
            return view
        time.sleep(0.5)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "wanted": {"type": "dict", "required": True},
            "management": {"type": "str", "required": True},
            "prove_seconds": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    wanted = wanted_from_dict(module.params["wanted"])
    management = module.params["management"]
    if module.params["prove_seconds"]:
        view = prove(wanted, management, module.params["prove_seconds"])
        module.exit_json(changed=False, view=view, plan=None, gpu=[], switching="")
    pending = plan.wait_for_earlier(job.Job().state)
    if pending:
        module.fail_json(msg=pending)
    view = look.look([rail.interface for rail in wanted.rails], management)
    module.exit_json(
        changed=False,
        view=view,
        plan=plan.make(wanted, view, runner=run),
        gpu=plan.gpu_processes(run),
        switching=plan.switch_at_work(run),
    )


if __name__ == "__main__":
    main()
