#!/usr/bin/python
"""Look at the two rails of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_rails
short_description: Look at the two rails of a host
description:
  - Reads link, speed, addresses, MTU, PCIe and RDMA state of the rails from sysfs and C(ip), where
    their addresses are configured for the next boot, who brings them up, and which interface
    carries the management address. Changes nothing.
  - RoCE v2 GID indexes are read at this moment, since they move.
  - With O(peers), two full frames that may not be cut are sent over each rail.
options:
  interfaces:
    description: Interfaces of the rails. All interfaces of a ConnectX-7 are looked at besides.
    type: list
    elements: str
    default: []
  management:
    description: Name or address by which the controller reaches this host.
    type: str
    default: ""
  peers:
    description: Interface to the peer's IPv4 address on that rail. Without it nothing is sent.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look at the rails
  spark_pair_rails:
    interfaces: "{{ cx7_network_rails | map(attribute='interface') }}"
    management: "{{ ansible_host }}"
    peers: {enp1s0f0np0: 192.168.177.12, enP2p1s0f0np0: 192.168.178.12}
  register: looked
"""

RETURN = r"""
view:
  description: >-
    What the rails look like. What could not be read is null, with the reason in RV(view.unread).
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.rails import look


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "management": {"type": "str", "default": ""},
            "peers": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    peers = {str(name): str(peer) for name, peer in module.params["peers"].items() if peer}
    view = look.look(module.params["interfaces"], module.params["management"], peers)
    module.exit_json(changed=False, view=view)


if __name__ == "__main__":
    main()
