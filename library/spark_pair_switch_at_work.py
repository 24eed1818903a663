#!/usr/bin/python
"""Look whether a switch is at work on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_switch_at_work
short_description: Look whether a switch is at work on a host
description:
  - Looks at the switch's unit and at its lock, and changes nothing.
options:
  host:
    description: Name of this host, for the words.
    type: str
    required: true
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look whether a switch is at work
  spark_pair_switch_at_work:
    host: "{{ inventory_hostname }}"
  register: seen
"""

RETURN = r"""
switching:
  description: What tells of a switch at work, in words; what cannot be told is among them.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.container_runtime.docker import Host


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"host": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    module.exit_json(changed=False, switching=Host(module.params["host"]).switching())


if __name__ == "__main__":
    main()
