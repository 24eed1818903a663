#!/usr/bin/python
"""Write a generation of an engine's configuration on the head."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_generation
short_description: Write a generation of an engine's configuration on the head
description:
  - A generation is a copy of the recipe's checkout with its settings, in a directory named after a
    hash of all that. It is written beside its place and renamed.
  - One that is there is compared, never overwritten, because it may be the one that serves.
  - The link C(current) is not touched; only the switch flips it.
options:
  path:
    description: The generation's directory.
    type: path
    required: true
  checkout:
    description: The recipe's pristine checkout.
    type: path
    required: true
  commit:
    description: Commit that the checkout must stand at.
    type: str
    required: true
  current:
    description: Link to the generation that the server runs now, for the diff.
    type: path
    required: true
  local_sh:
    description: Content of the recipe's settings file. Written with mode 0600.
    type: str
    required: true
  launch:
    description: Content of the script that runs the recipe's scripts.
    type: str
    required: true
  generation_json:
    description: Content of the generation's manifest.
    type: str
    required: true
  owner:
    description: Account that owns the checkout and the settings.
    type: str
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Write the generation
  spark_pair_generation:
    path: /var/lib/spark-pair/generations/0123456789ab
    checkout: /var/lib/spark-pair/recipes/deepseek-0123456789ab
    commit: 0123456789abcdef0123456789abcdef01234567
    current: /var/lib/spark-pair/current/deepseek
    local_sh: "PORT=8888\n"
    launch: "#!/bin/sh\n"
    generation_json: "{}\n"
    owner: spark
"""

RETURN = r"""
present:
  description: Whether the generation was there before.
  type: bool
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import generation


def main() -> None:
    """Run the module."""
    texts = ("commit", "local_sh", "launch", "generation_json", "owner")
    module = AnsibleModule(
        argument_spec={
            **{name: {"type": "str", "required": True} for name in texts},
            **{
                name: {"type": "path", "required": True} for name in ("path", "checkout", "current")
            },
        },
        supports_check_mode=True,
    )
    params = module.params
    wanted = generation.Wanted(
        path=Path(params["path"]),
        checkout=Path(params["checkout"]),
        commit=params["commit"],
        local_sh=params["local_sh"],
        launch=params["launch"],
        manifest=params["generation_json"],
        owner=params["owner"],
    )
    try:
        present = generation.check(wanted)
        result = {"changed": not present, "present": present}
        if not present:
            result["diff"] = {
                "before_header": f"{params['current']} (what runs)",
                "after_header": str(wanted.path),
                "before": generation.current_local_sh(Path(params["current"])),
                "after": wanted.local_sh,
            }
            if not module.check_mode:
                generation.make(wanted)
    except (generation.GenerationError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
