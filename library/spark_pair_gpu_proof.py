#!/usr/bin/python
"""Prove that a container gets the GPU."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_gpu_proof
short_description: Prove that a container gets the GPU
description:
  - Runs a container with C(--gpus all) whose command must name a GPU, and leaves no container
    behind. The image is pulled only if it is not on the host.
  - In check mode it is only spoken of.
  - A Docker that was started before the NVIDIA Container Toolkit was installed has to be restarted.
    C(restart) says so; with I(pair) it is done, if nothing would be ended by it.
options:
  host:
    description: Name of this host, for messages.
    type: str
    required: true
  image:
    description: Image to run.
    type: str
    required: true
  command:
    description: Program in the container and its arguments; it has to name a GPU.
    type: list
    elements: str
    required: true
  timeout:
    description: Seconds after which the container is removed and the proof has failed.
    type: int
    required: true
  expect:
    description: Regular expression that a line of the output has to match.
    type: str
    required: true
  expected:
    description: Whether what the container needs is there already. False only in check mode.
    type: bool
    default: true
  allow_restart:
    description: Whether Docker may be restarted even if that ends running containers.
    type: bool
    default: false
  pair:
    description: >-
      What both hosts have told just before a restart, C(serving) and C(switching), each a list of
      words. Without it Docker is not restarted.
    type: dict
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Prove that a container gets the GPU
  spark_pair_gpu_proof:
    host: "{{ inventory_hostname }}"
    image: ubuntu:24.04
    command: [nvidia-smi, -L]
    timeout: 60
    expect: '^GPU \d+: .+ \(UUID: '
"""

RETURN = r"""
restart:
  description: Why Docker has to be restarted before a container can show the GPU, or empty.
  type: str
  returned: success
gpu:
  description: The line that names the GPU, or what would be done.
  type: str
  returned: success
pulled:
  description: Whether the image had to be pulled.
  type: bool
  returned: success
restarted:
  description: Whether Docker had to be restarted.
  type: bool
  returned: success
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.container_runtime import proof, unreadable
from ansible.module_utils.spark_pair.container_runtime.docker import Host, pair_told
from ansible.module_utils.spark_pair.errors import SparkPairError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "command": {"type": "list", "elements": "str", "required": True},
            "timeout": {"type": "int", "required": True},
            "expect": {"type": "str", "required": True},
            "expected": {"type": "bool", "default": True},
            "allow_restart": {"type": "bool", "default": False},
            "pair": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not params["command"] or params["timeout"] < 1:
        module.fail_json(
            msg=f"The proof on {params['host']} needs a command and a time of at least one second: "
            "see container_runtime_proof_command and container_runtime_proof_timeout."
        )
    try:
        re.compile(params["expect"])
    except re.error as error:
        module.fail_json(
            msg=f"container_runtime_proof_expect of {params['host']} is no regular expression "
            f"({error}): correct it in the inventory."
        )
    wanted = proof.Wanted(
        params["image"], tuple(params["command"]), params["timeout"], params["expect"]
    )
    host = Host(params["host"])
    if module.check_mode:
        # Without what comes first Docker is not even asked: the question could start it.
        pull = params["expected"] and proof.image_machine(host, wanted.image) is None
        said = proof.intention(wanted, pull=pull)
        module.exit_json(changed=pull, gpu=said, pulled=False, restarted=False, restart="")
    try:
        shown = proof.prove(
            host, wanted, pair=pair_told(params["pair"]), allow_restart=params["allow_restart"]
        )
    except SparkPairError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=unreadable.sentence(params["host"], error))
    module.exit_json(
        restart=shown.restart,
        changed=shown.pulled or shown.restarted,
        gpu=shown.said,
        pulled=shown.pulled,
        restarted=shown.restarted,
    )


if __name__ == "__main__":
    main()
