#!/usr/bin/python
"""Change the rails of one host under a dead man's switch."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_rails_job
short_description: Change the rails of a host under a dead man's switch
description:
  - Runs one verb of the job as a unit C(spark-pair-job-network-…) and waits for it. The unit goes
    on when this connection is lost.
  - C(apply) writes and activates a plan; unless it is confirmed within O(confirm_seconds), the host
    puts everything back by itself. C(confirm) keeps it, C(restore) puts it back at once.
  - A verb that fails is told in RV(ok) and RV(message); the module itself fails only when the job
    could not be run.
options:
  verb:
    description: What to do.
    type: str
    choices: [apply, confirm, restore]
    required: true
  id:
    description: Name of the change, the same for its three verbs.
    type: str
    required: true
  plan:
    description: What M(spark_pair_rails_plan) has prepared (for C(apply)).
    type: dict
  wanted:
    description: What this host shall have (for C(apply)).
    type: dict
  allow_disruption:
    description: Whether C(apply) may go on while something computes on the GPU.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Apply
  spark_pair_rails_job:
    verb: apply
    id: "{{ __cx7_network_change.id }}"
    plan: "{{ __cx7_network_plan.plan }}"
    wanted: "{{ __cx7_network_wanted.wanted }}"
"""

RETURN = r"""
ok:
  description: Whether the verb did what it is for.
  type: bool
  returned: success
message:
  description: What happened.
  type: str
  returned: success
"""

import json
import pkgutil
import sys
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import system
from ansible.module_utils.spark_pair.rails import job

UNIT = "spark-pair-job-network"
PLANS = "/run/spark-pair"
"""Where a plan lies while it is carried out, under its change's own name."""
VERB_SECONDS = 420


def diff_of(plan: dict[str, Any]) -> list[dict[str, str]]:
    """The file before and after, and each file that gives way."""
    shown = [
        {
            "before": plan["before"].get(item["path"], ""),
            "after": item["content"],
            "before_header": item["path"],
            "after_header": item["path"],
        }
        for item in plan["writes"]
    ]
    shown += [
        {
            "before": plan["before"][path],
            "after": "",
            "before_header": path,
            "after_header": f"{path} (removed)",
        }
        for path in plan["removes"]
    ]
    return shown


def job_plan(params: dict[str, Any]) -> dict[str, Any]:
    """What the job is handed."""
    plan, wanted = params["plan"], params["wanted"]
    return {
        "id": params["id"],
        "allow_disruption": params["allow_disruption"],
        "confirm_seconds": wanted["confirm_seconds"],
        "renderer": plan["renderer"],
        "interfaces": plan["interfaces"],
        "writes": plan["writes"],
        "removes": plan["removes"],
        "expect": plan["expect"],
    }


def install() -> None:
    """Put the job where a boot will still find it."""
    source = pkgutil.get_data(job.__package__, "job.py")
    if source is None:
        raise OSError("its source was not shipped")
    job.Files().write(job.JOB, source, 0o700)


def carry_out(verb: str, identity: str, words: list[str]) -> dict[str, Any]:
    """Run one verb to its end: ok, message, changed, left.

    Its own words come through its own pipe, so that no other run's are taken for them.
    """
    done = system.run(
        [
            "systemd-run", "--quiet", "--collect", "--wait", "--pipe",
            f"--unit={UNIT}-{verb}-{identity}",
            "--", sys.executable, "-I", job.JOB, verb, *words,
        ],
        timeout=VERB_SECONDS,
    )  # fmt: skip
    told = job.told_by(done.out)
    if told is None:
        words_left = f"the job did not end: {done.last_words()}"
        return {"ok": False, "message": words_left, "changed": True, "left": []}
    return {
        "ok": told["ok"],
        "message": told["message"],
        "changed": told["changed"],
        "left": told.get("left", []),
    }


def would_do(plan: dict[str, Any]) -> str:
    """What applying a plan would do."""
    files = ", ".join(item["path"] for item in plan["writes"])
    rails = ", ".join(plan["activates"])
    return f"would write {files} and activate {rails} with {plan['renderer']}"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "verb": {"type": "str", "choices": ["apply", "confirm", "restore"], "required": True},
            "id": {"type": "str", "required": True},
            "plan": {"type": "dict"},
            "wanted": {"type": "dict"},
            "allow_disruption": {"type": "bool", "default": False},
        },
        required_if=[("verb", "apply", ("plan", "wanted"))],
        supports_check_mode=True,
    )
    verb, identity, plan = (module.params[name] for name in ("verb", "id", "plan"))
    diff = diff_of(plan) if verb == "apply" else []
    if module.check_mode:
        words = would_do(plan) if verb == "apply" else f"would {verb} the change"
        module.exit_json(ok=True, message=words, changed=True, diff=diff)
    try:
        if verb != "apply":
            result = carry_out(verb, identity, [identity])
        else:
            install()
            file = f"{PLANS}/network-plan-{identity}.json"
            job.Files().write(file, json.dumps(job_plan(module.params)).encode(), 0o600)
            result = carry_out(verb, identity, [file])
            job.Files().remove(file)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"the job that changes the rails could not be run: {error}")
        return
    module.exit_json(**result, diff=diff if result["changed"] else [])


if __name__ == "__main__":
    main()
