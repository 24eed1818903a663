#!/usr/bin/python
"""Look at a host that no inventory describes yet."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_discover
short_description: Look at a host that no inventory describes yet
description:
  - Finds accounts with model data, the interfaces of the direct link and which of them are twins,
    units and containers that serve a model or revive a server, and ports that answer as one.
  - Reads only. A listening port of loopback is asked once for C(/v1/models) if O(ports), a unit or
    container of a server, or custom says that a model server has it; the others are only listed.
options:
  login:
    description: Account that the controller logged in with. Empty takes the one that sudo names.
    type: str
    default: ""
  address:
    description: Address or name by which the controller reached this host.
    type: str
    required: true
  units:
    description: Units of the catalogue's servers, which are servers whatever they run.
    type: list
    elements: str
    default: []
  ports:
    description: Ports of the catalogue's servers.
    type: list
    elements: int
    default: []
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look at the machine
  spark_pair_discover:
    address: "{{ ansible_host }}"
  become: true
  register: looked
"""

RETURN = r"""
view:
  description: What was found, and under C(unread) what could not be read and why.
  type: dict
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.discover import look, servers


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "login": {"type": "str", "default": ""},
            "address": {"type": "str", "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
        },
        supports_check_mode=True,
    )
    login = module.params["login"] or os.environ.get("SUDO_USER", "") or "root"
    known = servers.Known(tuple(module.params["units"]), tuple(module.params["ports"]))
    view = look.look(login, module.params["address"], known=known)
    module.exit_json(changed=False, view=view)


if __name__ == "__main__":
    main()
