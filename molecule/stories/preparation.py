"""Preparing the pair for stories that begin with a switch, once for as long as nothing changes."""

import hashlib
import subprocess

from simulated_pair.naming import CHECKOUT

from .machines import on_both, pair_command
from .plays import play

# Outside of what the plays write. It outlives a boot, which undoes nothing of theirs, and goes with
# "reset --bare".
_STAMP = "/var/lib/simulated-pair/prepared-for-stories"
_PRODUCT = (
    "action_plugins",
    "filter_plugins",
    "group_vars",
    "inventory/simulated",
    "library",
    "playbooks",
    "roles",
    "site.yml",
    "spark_pair",
    "pyproject.toml",
)


def prepare() -> None:
    """Have the tool and the services of this checkout on both machines.

    The weights that lie there are on record, as --tags adopt leaves them: without, a plain run
    refuses, which is another story. A pair that another state of the checkout has prepared begins
    from nothing: upgrades are no matter of these stories.
    """
    wanted = _content()
    look = f"[ ! -e /etc/spark-pair/pair.json ] || cat {_STAMP} 2>/dev/null || true"
    found = set(on_both(look).values())
    if found == {wanted}:
        return
    pair_command("reset", "--bare", "--recorded")
    play("runtime,tools,service").succeeded()
    note()


def note() -> None:
    """Note that this checkout's plays, with no variables of a story's own, prepared the pair."""
    on_both(f"printf %s {_content()} >{_STAMP}")


def forget() -> None:
    """Have the next story prepare the pair again, because this one changed what was prepared."""
    on_both(f"rm -f {_STAMP}")


def _content() -> str:
    """A hash over everything that decides what the plays write."""
    digest = hashlib.sha256()
    listed = subprocess.check_output(
        ["find", "-L", *_PRODUCT, "-type", "f", "-not", "-name", "*.pyc"], cwd=CHECKOUT, text=True
    )
    for name in sorted(listed.splitlines()):
        digest.update(name.encode() + b"\0" + (CHECKOUT / name).read_bytes())
    return digest.hexdigest()
