#!/usr/bin/python
"""Look at what a host must bring along before anything is done to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_preflight
short_description: Look at what a host must bring along
description:
  - Checks Python, root rights, the account that runs the servers and its home. Reads only, and
    reports what failed instead of failing.
options:
  user:
    description: Account that runs the servers on this host.
    type: str
    required: true
  home:
    description: Its home directory.
    type: str
    required: true
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look at the machine
  spark_pair_preflight:
    user: "{{ spark_user }}"
    home: "{{ spark_home }}"
  register: looked
"""

RETURN = r"""
checks:
  description: State (ok or failed) and words of each check.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import preflight


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "home": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    checks = preflight.look(module.params["user"], module.params["home"])
    module.exit_json(changed=False, checks=checks)


if __name__ == "__main__":
    main()
