"""Only a container that names a GPU proves that containers get one."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from spark_pair.container_runtime import proof
from spark_pair.container_runtime.daemon_json import RefusedError
from spark_pair.container_runtime.docker import Host, Pair
from spark_pair.container_runtime.proof import Trouble
from spark_pair.system import TIMED_OUT, Result

pytestmark = pytest.mark.fault(11)

GPU = "GPU 0: NVIDIA GB10 (UUID: GPU-0)\n"
MINE = {"aarch64": "arm64", "x86_64": "amd64"}.get(platform.machine(), platform.machine())
OTHER = "amd64" if MINE == "arm64" else "arm64"
EXPECT = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "group_vars/all/runtime.yml").read_text()
)["container_runtime_proof_expect"]
WANTED = proof.Wanted("ubuntu:24.04", ("nvidia-smi", "-L"), 60, EXPECT)
WRONG_FORMAT = "exec /usr/bin/nvidia-smi: exec format error"
NO_DRIVER = 'docker: could not select device driver "" with capabilities: [[gpu]].'
DONE = Result(0, "", "")
INFO = '{"ServerVersion": "28", "Runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}'


@dataclass
class Machine:
    """Docker's answers about one image and its container; each run takes the next of `runs`."""

    runs: list[Result] = field(default_factory=lambda: [Result(0, GPU, "")])
    image: str | None = MINE
    pull: Result = DONE
    containers: str = ""
    proofs: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], timeout: float) -> Result:
        self.calls.append(list(argv))
        match argv[:2]:
            case ["docker", "image"]:
                return Result(0 if self.image else 1, f"{self.image or ''}\n", "")
            case ["docker", "pull"]:
                self.image = MINE if self.pull.ok else None
                return self.pull
            case ["docker", "run"]:
                assert timeout == WANTED.timeout
                return self.runs.pop(0)
            case ["docker", "info"]:
                return Result(0, INFO, "")
            case ["docker", "ps"]:
                stale = "--filter" in argv
                return Result(0, self.proofs if stale else self.containers, "")
            case ["docker", "images"]:
                return Result(0, "engine:1\n<none>:<none>\n", "")
            case ["systemctl", "show"]:
                switch = argv[-1] == "spark-pair-switch.service"
                state = "LoadState=loaded\nActiveState=active\n"
                return Result(0, "ActiveState=inactive\n" if switch else state, "")
        assert argv[:2] in (["docker", "rm"], ["systemctl", "restart"]), argv
        return Result(0, "", "")

    def prove(self, pair: Pair | None = Pair()) -> proof.Proof:  # noqa: B008 - it is frozen
        host = Host("spark-a", self.run, Path("/nowhere"), pause=lambda _: None)
        return proof.prove(host, WANTED, pair=pair, allow_restart=False)

    def refusal(self) -> str:
        with pytest.raises(RefusedError) as refused:
            self.prove()
        assert "spark-a" in str(refused.value)
        return str(refused.value)

    def asked(self, *words: str) -> list[list[str]]:
        return [call for call in self.calls if call[: len(words)] == list(words)]


def test_a_gpu_that_is_named_is_the_proof() -> None:
    machine = Machine()
    assert machine.prove() == proof.Proof(GPU.strip())
    assert not machine.asked("docker", "pull")


def test_the_container_takes_nothing_with_it_and_nothing_of_the_image() -> None:
    words = proof.argv(WANTED, "proof-1", 1234.5)
    assert words[words.index("--pull") + 1] == "never"
    assert words[words.index("--gpus") + 1] == "all"
    assert words[words.index("--entrypoint") + 1] == "nvidia-smi"
    assert "--rm" in words and words[words.index("--name") + 1] == "proof-1"
    assert words[words.index("--label") + 1] == f"{proof.LABEL}=1234"
    assert words[-2:] == ["ubuntu:24.04", "-L"]


def test_an_image_is_pulled_only_when_it_is_missing() -> None:
    machine = Machine(image=None)
    assert machine.prove().pulled
    assert machine.asked("docker", "pull") == [["docker", "pull", "--quiet", "ubuntu:24.04"]]


def test_without_a_registry_the_images_on_the_machine_are_named() -> None:
    machine = Machine(image=None, pull=Result(1, "", "dial tcp: lookup registry: no such host"))
    words = machine.refusal()
    assert "no such host" in words and "container_runtime_proof_image" in words
    assert "engine:1" in words and "<none>" not in words
    assert not machine.asked("docker", "run")


@pytest.mark.parametrize(
    ("ran", "made_for", "expected"),
    [
        (Result(0, GPU, ""), MINE, None),
        (Result(0, "", ""), MINE, Trouble.NO_GPU),
        (Result(0, "No devices found.\n", ""), MINE, Trouble.NO_GPU),
        (Result(0, "No GPU found on this machine\n", ""), MINE, Trouble.NO_GPU),
        (Result(0, "GPU 0: unknown error\n", ""), MINE, Trouble.NO_GPU),
        (Result(0, f"a warning\n{GPU}", ""), MINE, None),
        (Result(TIMED_OUT, "", "no end after 60 s"), MINE, Trouble.LATE),
        (
            Result(1, "", WRONG_FORMAT),
            OTHER,
            Trouble.FOREIGN_IMAGE,
        ),
        (Result(1, "", WRONG_FORMAT), MINE, Trouble.EXEC_FORMAT),
        (Result(125, "", NO_DRIVER), MINE, Trouble.NO_DRIVER_KNOWN),
        (
            Result(18, "Failed to initialize NVML: Driver/library version mismatch\n", ""),
            MINE,
            Trouble.MODULE_MISMATCH,
        ),
        (
            Result(127, "", 'exec: "nvidia-smi": executable file not found in $PATH: unknown.'),
            MINE,
            Trouble.NO_COMMAND,
        ),
        (Result(1, "", "something else"), MINE, Trouble.OTHER),
    ],
)
def test_each_trouble_is_told_from_the_others(
    ran: Result, made_for: str, expected: Trouble | None
) -> None:
    assert proof.trouble(ran, WANTED, made_for, platform.machine()) is expected


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Trouble.EXEC_FORMAT, "legacy"),
        (Trouble.FOREIGN_IMAGE, OTHER),
        (Trouble.MODULE_MISMATCH, "reboot"),
        (Trouble.LATE, "container_runtime_proof_timeout"),
        (Trouble.NO_COMMAND, "container_runtime_proof_command"),
        (Trouble.NO_DRIVER_KNOWN, "when it starts"),
        (Trouble.NO_GPU, "container_runtime_proof_expect"),
        (Trouble.OTHER, "nvidia-smi -L"),
    ],
)
def test_each_trouble_has_its_hint(trouble: Trouble, words: str) -> None:
    assert words in proof.hint(trouble, WANTED, OTHER)


def test_a_container_that_hangs_is_removed() -> None:
    machine = Machine(runs=[Result(TIMED_OUT, "", "no end after 60 s")])
    assert "no end after 60 s" in machine.refusal()
    assert machine.calls[-1][:3] == ["docker", "rm", "--force"]
    (run,) = machine.asked("docker", "run")
    assert machine.calls[-1][-1] == run[run.index("--name") + 1]


def test_a_docker_older_than_the_toolkit_is_restarted_where_nothing_runs() -> None:
    machine = Machine(runs=[Result(125, "", NO_DRIVER), Result(0, GPU, "")])
    assert machine.prove().restarted
    assert machine.asked("systemctl", "restart")


def test_that_restart_spares_what_runs() -> None:
    machine = Machine(runs=[Result(125, "", NO_DRIVER)], containers="dsv41-tensorfold\n")
    assert "container dsv41-tensorfold" in machine.refusal()
    assert not machine.asked("systemctl", "restart")


def test_without_a_look_at_the_pair_that_restart_is_only_asked_for() -> None:
    machine = Machine(runs=[Result(125, "", NO_DRIVER)])
    assert machine.prove(None) == proof.Proof("", restart=proof.BEFORE_TOOLKIT)
    assert not machine.asked("systemctl", "restart")


def test_that_restart_spares_a_switch() -> None:
    machine = Machine(runs=[Result(125, "", NO_DRIVER)])
    with pytest.raises(RefusedError, match="a switch on spark-b"):
        machine.prove(Pair(switching=("a switch on spark-b",)))
    assert not machine.asked("systemctl", "restart")


def test_two_runs_at_once_have_containers_of_their_own() -> None:
    machine = Machine(runs=[Result(0, GPU, ""), Result(0, GPU, "")])
    machine.prove()
    machine.prove()
    first, second = (call[call.index("--name") + 1] for call in machine.asked("docker", "run"))
    assert first != second and first.startswith(proof.NAME)
    assert not machine.asked("docker", "rm")


def test_only_what_a_killed_run_has_left_is_removed() -> None:
    machine = Machine(proofs="old\t1000\nyoung\t99999999999\nodd\t<no value>\n")
    machine.prove()
    assert machine.asked("docker", "rm") == [["docker", "rm", "--force", "--volumes", "old"]]


def test_another_command_names_the_gpu_in_words_of_its_own() -> None:
    wanted = proof.Wanted("engine:1", ("python3", "-c", "…"), 60, "^cuda:0 ")
    assert wanted.gpu_in("loading\n  cuda:0 NVIDIA GB10\n") == "cuda:0 NVIDIA GB10"
    assert wanted.gpu_in(GPU) is None


@pytest.mark.parametrize("pull", [True, False])
def test_what_is_only_intended_names_image_and_command(pull: bool) -> None:
    words = proof.intention(WANTED, pull=pull)
    assert "'nvidia-smi -L' in a container of ubuntu:24.04" in words
    assert ("would pull ubuntu:24.04 and" in words) == pull
