#!/usr/bin/python
"""Measure what stands between a host and a working pair; reads only, judges nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_preflight
short_description: Measure what stands between a host and a working pair
description:
  - Reads files, asks programs and tries the ways to the peer, all at once and each with a deadline.
    Changes nothing and needs nothing installed.
  - What could not be read is null, with its reason in C(unread). Nothing fails because of it.
options:
  user:
    description: Account that runs the servers on this host.
    type: str
    required: true
  home:
    description: Its home directory.
    type: str
    required: true
  pair:
    description:
      - What the inventory says about this host and its peer, from the filter
        C(spark_pair_preflight_asked). Empty for a host without a pair.
    type: dict
    default: {}
  hub_url:
    description: What the head asks to see whether the Hub is in reach. Empty is not asked.
    type: str
    default: ""
  controller_time:
    description: Time of the controller in seconds since the epoch.
    type: float
    default: 0
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
measured:
  description: Every measurement by name, null for one that could not be taken.
  type: dict
  returned: always
unread:
  description: Why a measurement could not be taken, by name.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.preflight import collect


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "home": {"type": "str", "required": True},
            "pair": {"type": "dict", "default": {}},
            "hub_url": {"type": "str", "default": ""},
            "controller_time": {"type": "float", "default": 0.0},
        },
        supports_check_mode=True,
    )
    asked = dict(module.params)
    found = collect.measure(collect.Asked(**asked.pop("pair"), **asked))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
