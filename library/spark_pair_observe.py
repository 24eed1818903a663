#!/usr/bin/python
"""Look at one host of a pair: who serves, which parts run, how much memory is left."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_observe
short_description: Look at one host of a pair
description:
  - Works on a host without the tool. Reads only, but asks servers whose API is on this host for one
    short completion.
  - A description that is on the host is used before the one that is given.
options:
  description:
    description: What C(/etc/spark-pair/pair.json) would hold, for a host without one. May be empty.
    type: dict
    required: true
  role:
    description: Place of this host in its pair.
    type: str
    choices: [head, worker]
    required: true
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look at the host
  spark_pair_observe:
    description: "{{ hostvars | spark_pair_description(inventory_hostname) }}"
    role: "{{ pair_role }}"
  register: seen
"""

RETURN = r"""
description:
  description: The description that was used, or null.
  type: dict
  returned: always
problem:
  description: Why the host could not be described, or null.
  type: str
  returned: always
view:
  description: What the host looks like, or null without a description.
  type: dict
  returned: always
state:
  description: What the switch remembers (head only), or null.
  type: dict
  returned: always
last_switch:
  description: The newest switch (head only), or null.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.description import ROLES
from ansible.module_utils.spark_pair.observing import observed


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "description": {"type": "dict", "required": True},
            "role": {"type": "str", "choices": list(ROLES), "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    module.exit_json(changed=False, **observed(params["description"], params["role"]))


if __name__ == "__main__":
    main()
