#!/usr/bin/python
"""Put a kernel kit on the head, proven file by file."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_kit
short_description: Put a kernel kit on the head, proven file by file
description:
  - A kit lies in C(/var/lib/spark-pair/kits), in a folder named after its manifest. It is unpacked
    beside its place, each file compared with the manifest, and renamed as a whole.
  - One that is there is compared again at each run, and never changed.
  - Without O(archive) the module only looks.
options:
  manifest_sha256:
    description: The sha256 of the kit's file C(MANIFEST).
    type: str
    required: true
  count:
    description: Number of files that the manifest must list.
    type: int
    required: true
  archive:
    description: A tar archive on the host that holds the kit.
    type: path
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Unpack the kit
  spark_pair_kit:
    manifest_sha256: 4f1f9b9d0f9a3c6d9c0f6e9f3f8a5f4d8c4f3f1d0e6b7a5c9d8e7f6a5b4c3d2e
    count: 64
    archive: /var/lib/spark-pair/kits/4f1f9b9d0f9a.tar
"""

RETURN = r"""
path:
  description: Where the kit is, or is to be.
  type: path
  returned: success
present:
  description: Whether it is there, and right.
  type: bool
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import engine_kit


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "manifest_sha256": {"type": "str", "required": True},
            "count": {"type": "int", "required": True},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    declared = engine_kit.Declared(params["manifest_sha256"], params["count"])
    changed = False
    try:
        present = engine_kit.present(declared)
        if not present and params["archive"]:
            changed = True
            if not module.check_mode:
                engine_kit.install(Path(params["archive"]), declared)
                present = True
    except (engine_kit.KitError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, present=present, path=str(declared.place))


if __name__ == "__main__":
    main()
