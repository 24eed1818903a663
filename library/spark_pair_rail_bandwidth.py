#!/usr/bin/python
"""One side of a bandwidth test over the rails."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_rail_bandwidth
short_description: One side of a bandwidth test over the rails
description:
  - C(look) says which tools this host has. C(serve) starts one server a rail, each a transient unit
    that ends after one client or after a minute. C(measure) runs the clients, one rail after the
    other. C(stop) ends servers that nobody asked.
  - GID indexes are read from sysfs at this moment. Buffers stay below a few megabytes.
  - The rails are busy for about five seconds each, so do not run it while a model serves.
options:
  does:
    description: Which part this host plays.
    type: str
    choices: [look, serve, measure, stop]
    required: true
  tool:
    description: Tool that both sides use. Not needed by C(look) and C(stop).
    type: str
    choices: ["", ib_write_bw, iperf3]
    default: ""
  rails:
    description: The rails in the same order on both hosts.
    type: list
    elements: dict
    default: []
    suboptions:
      interface:
        description: Interface of this host.
        type: str
        required: true
      address:
        description: Its IPv4 address; a prefix is ignored.
        type: str
        required: true
  peers:
    description: Interface to the peer's IPv4 address on that rail. Needed by C(measure).
    type: dict
    default: {}
attributes:
  check_mode:
    support: none
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Measure the rails
  spark_pair_rail_bandwidth:
    does: measure
    tool: ib_write_bw
    rails:
      - {interface: enp1s0f0np0, address: 192.168.177.12/24}
    peers:
      enp1s0f0np0: 192.168.177.11
  register: measured
"""

RETURN = r"""
tools:
  description: Tools that this host has.
  type: list
  returned: when looking
rails:
  description: Interface to tool, gbps (or null) and error.
  type: dict
  returned: when measuring
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.rails import bandwidth


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "does": {
                "type": "str",
                "choices": ["look", "serve", "measure", "stop"],
                "required": True,
            },
            "tool": {"type": "str", "choices": ["", *bandwidth.TOOLS], "default": ""},
            "rails": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    name: {"type": "str", "required": True} for name in ("interface", "address")
                },
            },
            "peers": {"type": "dict", "default": {}},
        },
        required_if=[("does", "serve", ("tool",)), ("does", "measure", ("tool",))],
    )
    does, tool = module.params["does"], module.params["tool"]
    rails = bandwidth.rails_of(module.params["rails"], module.params["peers"])
    if does == "look":
        module.exit_json(changed=False, tools=bandwidth.tools())
    if does == "stop":
        bandwidth.stop(rails)
        module.exit_json(changed=False)
    if does == "measure":
        module.exit_json(changed=False, rails=bandwidth.measure(tool, rails))
    try:
        bandwidth.serve(tool, rails)
    except bandwidth.BandwidthError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
