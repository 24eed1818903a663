"""What the unit tests' systemd only plays: accounts, secrets, last steps, and every way to end."""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from stories.machines import HEAD, exit_code_of, machine, on
from stories.waiting import wait_for

NAME = "story"
UNIT = f"spark-pair-job-{NAME}.service"
FOLDER = f"/var/lib/spark-pair/jobs/{NAME}"
SECRET = "hf_StandInThatNobodyElseMayEverSeeX"  # noqa: S105
PYTHON = "/opt/spark-pair/current/venv/bin/python"

# As a download does, it puts a file of its order in place and notes it; also one that nobody has
# ordered. It says who and what it is, and ends as its first argument says.
_PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from spark_pair.jobs.inside import secret
from spark_pair.weights.download_order import DownloadOrder
from spark_pair.weights.provenance import Artefact, Held, Origin, stat_of
from spark_pair.weights.record import Proof, Proofs
end, job = sys.argv[1], Path(os.environ["SPARK_PAIR_JOB_FOLDER"])
order = DownloadOrder.from_dict(json.loads((job / "order.json").read_text()))
repo, commit = order.manifest.repo, order.manifest.commit
folder = order.where().snapshot(repo, commit)
folder.mkdir(parents=True, exist_ok=True)
artefact = Artefact("story", "repository", repo, commit, Origin.DOWNLOADED, 0, str(folder), {})
proofs = Proofs(job)
for name in (end, "a stranger"):
    (folder / name).write_text(name)
    stat, sha256 = stat_of(folder / name), order.manifest.file(end).sha256
    held = Held(stat.size, stat.mtime_ns, stat.inode, time.time(), "written", sha256)
    proofs.add(Proof(artefact, name, held))
told = {"uid": os.getuid(), "arguments": sys.argv[2:], "secret": len(secret("hf-token") or "")}
(job / "told.json").write_text(json.dumps(told))
if end.isdigit():
    sys.exit(int(end))
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""

_START = """
import json, sys
from spark_pair.jobs.units import Caps, Jobs
asked = json.loads(sys.argv[1])
caps = Caps(**asked.pop("caps"))
started = Jobs().start(asked.pop("name"), asked.pop("argv"), caps=caps, **asked)
print(json.dumps({"attached": started.attached, "same": started.same}))
"""


@pytest.fixture(autouse=True)
def _clean(prepared: None) -> Iterator[None]:
    forget = "from spark_pair.weights.provenance import Provenance; Provenance().forget('story')"
    clean = (
        f"systemctl stop {UNIT} 2>/dev/null; systemctl reset-failed {UNIT} 2>/dev/null; "
        f"rm -rf {FOLDER} {machine(HEAD).home}/.cache/huggingface/hub/models--own--story; "
        f"{PYTHON} -c {shlex.quote(forget)}"
    )
    on(HEAD, clean)
    yield
    on(HEAD, clean)


def order() -> Mapping[str, Any]:
    """Four files, each with its own name for content."""
    ends = ("0", "1", "killed", "waiting")
    files = [
        {
            "path": end,
            "size": len(end),
            "git_sha1": "c" * 40,
            "sha256": hashlib.sha256(end.encode()).hexdigest(),
        }
        for end in ends
    ]
    return {
        "schema": 1,
        "source": "story",
        "endpoint": "http://127.0.0.1:9",
        "home": str(machine(HEAD).home),
        "manifest": {"repo": "own/story", "commit": "a" * 40, "files": files},
        "files": list(ends),
    }


def start(end: str, *arguments: str) -> Mapping[str, Any]:
    """Start the job as the servers' account, with a secret, limits and a record."""
    asked = {
        "name": NAME,
        "argv": [PYTHON, "-c", _PROGRAM, end, *arguments],
        "words": "tell a story",
        "user": machine(HEAD).user,
        "secrets": {"hf-token": SECRET},
        "caps": {"memory_max": 2**30, "io_weight": 20, "cpu_weight": 30},
        "order": order(),
        "record": True,
    }
    words = shlex.join([PYTHON, "-c", _START, json.dumps(asked)])
    told: Mapping[str, Any] = json.loads(on(HEAD, words))
    return told


def look() -> Mapping[str, Any]:
    view: Mapping[str, Any] = json.loads(on(HEAD, f"spark-pair jobs look {NAME} --json"))
    return view


def ended() -> Mapping[str, Any]:
    """The job once it has ended."""
    return wait_for(
        "the job ends", lambda: view if (view := look())["state"] != "running" else None, 30
    )


def told() -> Mapping[str, Any]:
    """What the program has said about itself."""
    text = wait_for(
        "the program speaks", lambda: on(HEAD, f"cat {FOLDER}/told.json", check=False) or None, 30
    )
    said: Mapping[str, Any] = json.loads(text)
    return said


def recorded() -> set[str]:
    entries = json.loads(on(HEAD, "spark-pair weights --json", check=False))["artefacts"]
    return set(entries.get("story", {}).get("files", ()))


def test_the_program_gets_its_secret_and_its_words_and_no_more_than_that() -> None:
    words = ("a b", "price $HOME ${X} 100% $$", "-- \\n 'quoted'")
    assert start("waiting", *words) == {"attached": False, "same": True}
    said = told()
    assert said["arguments"] == list(words)
    assert said["secret"] == len(SECRET)
    assert said["uid"] == int(on(HEAD, f"id -u {machine(HEAD).user}"))
    pattern = f"[{SECRET[0]}]{SECRET[1:]}"  # which does not find itself
    found = on(
        HEAD,
        f"grep -rl {pattern} /var/lib/spark-pair /run/spark-pair /run/systemd "
        f"/proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; "
        f"journalctl --no-pager | grep {pattern}",
        check=False,
    )
    assert not found
    limits = on(HEAD, f"systemctl show {UNIT} --property MemoryMax,IOWeight,CPUWeight,User")
    assert set(limits.split()) == {
        f"MemoryMax={2**30}",
        "IOWeight=20",
        "CPUWeight=30",
        f"User={machine(HEAD).user}",
    }
    assert start("waiting", *words) == {"attached": True, "same": True}
    assert start("waiting") == {"attached": True, "same": False}


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        ("0", "done", "done"),
        ("1", "failed", "ended with exit code 1"),
        ("killed", "failed", "was killed (SIGKILL)"),
    ],
)
def test_what_is_proven_is_recorded_however_it_ends(end: str, state: str, words: str) -> None:
    start(end)
    view = ended()
    assert (view["state"], view["message"]) == (state, words)
    assert recorded() == {end}
    assert not on(HEAD, f"ls {FOLDER}/verified.jsonl 2>/dev/null", check=False)


def test_a_stop_ends_it_and_its_proofs_are_recorded() -> None:
    start("waiting")
    told()
    code, said = exit_code_of(HEAD, f"spark-pair jobs stop {NAME}")
    assert code == 0 and "was stopped" in said
    assert look()["result"]["stopped"] and recorded() == {"waiting"}
    code, said = exit_code_of(HEAD, f"spark-pair jobs stop {NAME}")
    assert code == 0 and "does not run" in said


def test_it_goes_on_when_sshd_is_restarted() -> None:
    start("waiting")
    told()
    show = f"systemctl show {UNIT} --property MainPID --value"
    before = on(HEAD, show)
    on(HEAD, "systemctl restart ssh")
    assert on(HEAD, show) == before and look()["state"] == "running"


def test_what_cannot_be_recorded_is_no_success() -> None:
    record = "/var/lib/spark-pair/provenance.json"
    on(HEAD, f"cp -a {record} /run/provenance 2>/dev/null; echo '{{' >{record}")
    try:
        start("0")
        view = ended()
        assert view["state"] == "failed" and "could not be recorded" in view["message"]
    finally:
        on(HEAD, f"rm {record}; mv /run/provenance {record} 2>/dev/null || true")
    # It was not thrown away either: the next run begins by recording it.
    start("1")
    ended()
    assert recorded() == {"0", "1"}
