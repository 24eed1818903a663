#!/usr/bin/python
"""Try whether an account reaches the peer over ssh without a password, at each address."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_peer_ssh
short_description: Try whether an account reaches the peer over ssh without a password
description:
  - Tries every address at the same time, with the host key checked against what the account knows.
    Reads only.
options:
  user:
    description: Account on this host.
    type: str
    required: true
  peer_user:
    description: Account on the peer.
    type: str
    required: true
  addresses:
    description: The peer's addresses.
    type: list
    elements: str
    required: true
  port:
    description: Port of the peer's ssh server.
    type: int
    default: 22
  timeout:
    description: Seconds to wait for a connection.
    type: int
    default: 10
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Try the way to the peer
  spark_pair_peer_ssh:
    user: spark
    peer_user: spark
    addresses: [192.0.2.12, 192.168.177.12]
  register: tried
"""

RETURN = r"""
failures:
  description: What ssh said, by address, for those that failed.
  type: dict
  returned: always
all_answer:
  description: Whether every address answered.
  type: bool
  returned: always
"""

from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.system import run


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "peer_user": {"type": "str", "required": True},
            "addresses": {"type": "list", "elements": "str", "required": True},
            "port": {"type": "int", "default": 22},
            "timeout": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    timeout = params["timeout"]

    def attempt(address: str) -> str | None:
        done = run(
            [
                "runuser", "-u", params["user"], "--",
                "ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
                "-o", "UpdateHostKeys=no",
                "-o", f"ConnectTimeout={timeout}", "-p", str(params["port"]),
                f"{params['peer_user']}@{address}", "true",
            ],
            timeout=timeout + 10,
        )  # fmt: skip
        return None if done.ok else done.last_words(1)

    with ThreadPoolExecutor() as pool:
        said = dict(zip(params["addresses"], pool.map(attempt, params["addresses"]), strict=True))
    failures = {address: words for address, words in said.items() if words is not None}
    module.exit_json(changed=False, failures=failures, all_answer=not failures)


if __name__ == "__main__":
    main()
