#!/usr/bin/python
"""Have Docker know the NVIDIA runtime, and the account own what containers mount."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_container_runtime
short_description: Have Docker know the NVIDIA runtime
description:
  - Refuses without the NVIDIA Container Toolkit. Says in C(lacks) what of Docker itself is
    missing, and does nothing then.
  - Merges one entry into Docker's C(daemon.json) and reloads Docker, only when the running daemon
    does not know the runtime. Every other key stays; the bytes from before the latest merge are
    kept in C(daemon.json.before-spark-pair), those of two earlier ones beside it. When the reload
    was not enough C(restart) says so; with I(pair) Docker is then restarted, if nothing would be
    ended by it.
  - Makes the directories that containers mount, and gives those back to the account that Docker has
    made as root.
  - The diff shows the runtimes of the file, never the rest of it.
options:
  host:
    description: Name of this host, for messages.
    type: str
    required: true
  user:
    description: Account that runs the servers on this host.
    type: str
    required: true
  home:
    description: Its home directory.
    type: path
    required: true
  paths:
    description: Directories below the home that containers mount.
    type: list
    elements: str
    required: true
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
  diff_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Have Docker know the NVIDIA runtime
  spark_pair_container_runtime:
    host: "{{ inventory_hostname }}"
    user: "{{ spark_user }}"
    home: "{{ spark_home }}"
    paths: [.cache/huggingface]
"""

RETURN = r"""
restart:
  description: Why Docker has yet to be restarted, or empty.
  type: str
  returned: success
lacks:
  description: What must come first, of C(docker), C(running), C(boot), C(account). Usually none.
  type: list
  elements: str
  returned: success
why:
  description: What Docker said to the account when it did not let it in.
  type: str
  returned: success
version:
  description: Version of the running Docker, or null while something is lacking.
  type: str
  returned: success
did:
  description: What was done, in check mode what would be done.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.container_runtime import ready, unreadable
from ansible.module_utils.spark_pair.container_runtime.docker import Host, pair_told
from ansible.module_utils.spark_pair.errors import SparkPairError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "home": {"type": "path", "required": True},
            "paths": {"type": "list", "elements": "str", "required": True},
            "allow_restart": {"type": "bool", "default": False},
            "pair": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    params = module.params
    wanted = ready.Wanted(
        user=params["user"],
        home=params["home"],
        paths=tuple(params["paths"]),
        allow_restart=params["allow_restart"],
        pair=pair_told(params["pair"]),
    )
    try:
        made = ready.make_ready(Host(params["host"]), wanted, check=module.check_mode)
    except SparkPairError as error:
        module.fail_json(msg=str(error), changed=getattr(error, "changed", False))
    except OSError as error:
        module.fail_json(msg=unreadable.sentence(params["host"], error))
    for note in made.notes:
        module.warn(note)
    module.exit_json(
        changed=bool(made.did),
        restart=made.restart,
        lacks=list(made.lacks),
        why=made.why,
        version=made.version,
        did=list(made.did),
        diff=list(made.diff),
    )


if __name__ == "__main__":
    main()
