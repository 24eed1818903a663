#!/usr/bin/python
"""Make the recipe's checkout on the head: a commit, patches, a kit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_checkout
short_description: Make the recipe's checkout on the head from a commit, patches and a kit
description:
  - A checkout is made beside its place and renamed, so that it is whole or absent. The patches are
    applied in their order; the kit's files are copied in.
  - One that is there is compared with what it was made from. An edit that somebody made is shown
    and refused, never overwritten.
options:
  path:
    description: The checkout's directory.
    type: path
    required: true
  url:
    description: Repository of the recipe.
    type: str
    required: true
  commit:
    description: Whole commit id.
    type: str
    required: true
  owner:
    description: Account that owns the checkout; git runs as it.
    type: str
    required: true
  patches:
    description: Patches in their order, each a file C(/var/lib/spark-pair/patches/<sha256>.patch).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What the operator knows it by.
        type: str
        required: true
      sha256:
        description: Its content.
        type: str
        required: true
  kit:
    description: The kernel kit, which M(spark_pair_kit) has put on the head.
    type: dict
    suboptions:
      manifest_sha256:
        description: The sha256 of its file C(MANIFEST).
        type: str
        required: true
      count:
        description: Number of files that the manifest must list.
        type: int
        required: true
      folder:
        description: Where its files lie in the checkout.
        type: str
        required: true
  look:
    description: Only compare a checkout that is there.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Make the checkout
  spark_pair_checkout:
    path: /var/lib/spark-pair/recipes/deepseek-0123456789ab
    url: https://example.org/recipe.git
    commit: 0123456789abcdef0123456789abcdef01234567
    owner: spark
    patches:
      - name: 0001-round-rows.patch
        sha256: 4f1f9b9d0f9a3c6d9c0f6e9f3f8a5f4d8c4f3f1d0e6b7a5c9d8e7f6a5b4c3d2e
"""

RETURN = r"""
present:
  description: Whether the checkout was there before, as declared.
  type: bool
  returned: success
missing_patches:
  description: The sha256 of each patch that is not on the host and would be needed.
  type: list
  elements: str
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import engine_checkout, engine_kit


def main() -> None:
    """Run the module."""
    one_patch = {name: {"type": "str", "required": True} for name in ("name", "sha256")}
    the_kit = {
        "manifest_sha256": {"type": "str", "required": True},
        "count": {"type": "int", "required": True},
        "folder": {"type": "str", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            **{name: {"type": "str", "required": True} for name in ("url", "commit", "owner")},
            "path": {"type": "path", "required": True},
            "patches": {"type": "list", "elements": "dict", "default": [], "options": one_patch},
            "kit": {"type": "dict", "options": the_kit},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    kit = None
    if params["kit"]:
        declared = engine_kit.Declared(params["kit"]["manifest_sha256"], params["kit"]["count"])
        kit = engine_checkout.Kit(declared, params["kit"]["folder"], declared.place)
    wanted = engine_checkout.Wanted(
        path=Path(params["path"]),
        url=params["url"],
        commit=params["commit"],
        owner=params["owner"],
        patches=tuple(
            engine_checkout.Patch(one["name"], one["sha256"]) for one in params["patches"]
        ),
        kit=kit,
    )
    try:
        present = engine_checkout.check(wanted)
        changed = not present and not params["look"]
        if changed and not module.check_mode:
            engine_checkout.make(wanted)
    except (engine_checkout.CheckoutError, engine_kit.KitError, OSError) as error:
        module.fail_json(msg=str(error))
    missing = [one.sha256 for one in wanted.patches if not present and not one.file().is_file()]
    module.exit_json(changed=changed, present=present, missing_patches=missing)


if __name__ == "__main__":
    main()
