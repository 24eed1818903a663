#!/usr/bin/python
"""Write a file that holds a secret, in place and for its owner only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_secret_file
short_description: Write a file that holds a secret, in place and for its owner only
description:
  - Unlike M(ansible.builtin.copy) it changes the file itself and does not put another in its place,
    so that a container which was given the file sees the new content.
  - Runs as the account that the file belongs to. Its mode is always 0600. Nothing of the content is
    ever shown.
options:
  path:
    description: The file. Folders that are missing are made.
    type: path
    required: true
  content:
    description: What it holds.
    type: str
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Write the key that the API asks for
  spark_pair_secret_file:
    path: /home/spark/.cache/dsv41-tensorfold/state/api-key
    content: "spark-pair: {{ vaulted_key }}\n"
  become: true
  become_user: spark
"""

RETURN = r""" # """

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import secret_file


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    path, content = Path(module.params["path"]), module.params["content"]
    try:
        if module.check_mode:
            changed = not secret_file.is_as_wanted(path, content)
        else:
            changed = secret_file.write(path, content)
    except secret_file.SecretFileError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
