"""What is done about the NVIDIA runtime follows from what Docker and its file say now."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from fake_docker import TOOLKIT, FakeDocker

from spark_pair.container_runtime import docker, mounts, ready, register
from spark_pair.container_runtime.daemon_json import RefusedError
from spark_pair.container_runtime.register import Step
from spark_pair.system import Result

pytestmark = pytest.mark.fault(11)

NVIDIA = {"path": "nvidia-container-runtime"}
QUIET = docker.Pair()
KNOWN = {"runc": {"path": "runc"}, "nvidia": NVIDIA}


@pytest.fixture
def fake(tmp_path: Path) -> FakeDocker:
    return FakeDocker(tmp_path)


def register_on(
    fake: FakeDocker,
    *,
    pair: docker.Pair | None = QUIET,
    allow_restart: bool = False,
    check: bool = False,
) -> register.Outcome:
    info, _ = fake.host.info()
    assert info
    unit = fake.host.unit()
    return register.register(
        fake.host, info, unit, pair=pair, allow_restart=allow_restart, check=check
    )


def refusal(fake: FakeDocker, pair: docker.Pair = QUIET, *, allow_restart: bool = False) -> str:
    before = fake.file.read_text() if fake.file.exists() else None
    with pytest.raises(RefusedError) as refused:
        register_on(fake, pair=pair, allow_restart=allow_restart)
    after = fake.file.read_text() if fake.file.exists() else None
    assert refused.value.changed == (before != after)
    words = str(refused.value)
    assert "spark-a" in words and "\n" not in words
    return words


def test_a_runtime_that_docker_knows_is_left_alone(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path, runtimes=dict(KNOWN))
    fake.operator_wrote("not even JSON")
    assert not register_on(fake).changed
    assert fake.file.read_text() == "not even JSON"
    assert not fake.called("systemctl re")


def test_a_missing_runtime_is_merged_and_taken_without_a_restart(fake: FakeDocker) -> None:
    fake.containers = ["somebody"]
    fake.operator_wrote('{\n  "debug": true,\n  "proxies": {"http-proxy": "http://a:b@c"}\n}\n')
    outcome = register_on(fake)
    assert outcome.step is Step.MERGE and outcome.changed
    assert list(json.loads(fake.file.read_text())) == ["debug", "proxies", "runtimes"]
    assert "nvidia" in fake.runtimes
    assert not fake.called("systemctl restart")
    assert "proxies" not in "".join(outcome.diff.values())
    assert not register_on(fake).changed


def test_what_an_interrupted_run_left_in_the_file_is_only_reloaded(fake: FakeDocker) -> None:
    text = json.dumps({"runtimes": {"nvidia": NVIDIA}})
    fake.operator_wrote(text)
    assert register_on(fake).step is Step.RELOAD
    assert fake.file.read_text() == text
    assert "nvidia" in fake.runtimes


@pytest.mark.parametrize(
    "text", [None, '{"debug": true}', json.dumps({"runtimes": {"nvidia": NVIDIA}})]
)
def test_check_mode_only_says_it(fake: FakeDocker, text: str | None) -> None:
    if text is not None:
        fake.operator_wrote(text)
    outcome = register_on(fake, check=True)
    assert outcome.changed and outcome.did
    assert (fake.file.read_text() if fake.file.exists() else None) == text
    assert not fake.called("systemctl re")


@pytest.mark.parametrize(
    "text",
    ['{"debug": true,}', "[]", '{"runtimes": {"nvidia": {"path": "/opt/gone"}}}'],
)
def test_a_file_that_cannot_be_merged_is_refused_and_untouched(fake: FakeDocker, text: str) -> None:
    fake.operator_wrote(text)
    assert "/etc/docker/daemon.json" in refusal(fake)
    assert fake.file.read_text() == text
    assert not fake.called("systemctl re")


def test_a_file_that_docker_would_not_accept_never_takes_its_place(fake: FakeDocker) -> None:
    fake.operator_wrote('{"debgu": true}')
    fake.objection = 'the proxy http://me:secret@proxy and "debgu" make no sense'
    words = refusal(fake)
    assert "debgu" in words and "secret" not in words
    assert [path.name for path in fake.file.parent.iterdir()] == ["daemon.json"]
    assert fake.file.read_text() == '{"debgu": true}'


def test_an_old_docker_that_cannot_validate_is_no_reason_to_refuse(fake: FakeDocker) -> None:
    fake.objection = "unknown flag: --validate"
    assert register_on(fake).changed


def test_the_file_that_the_daemon_was_started_with_is_the_one(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path, flags=("--config-file=/etc/other.json",), takes_reload=False)
    with pytest.raises(RefusedError):
        register_on(fake)
    assert "nvidia" in json.loads((tmp_path / "etc/other.json").read_text())["runtimes"]
    assert not fake.file.exists()


def test_runtimes_given_as_flags_are_refused(tmp_path: Path) -> None:
    # Docker would not start again with both.
    fake = FakeDocker(tmp_path, flags=("--add-runtime", "kata=/usr/bin/kata"))
    assert "--add-runtime" in refusal(fake)
    assert not fake.file.exists()


def test_a_registered_runtime_without_its_program_is_refused(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path, runtimes={"nvidia": {"path": "/opt/gone/runtime"}})
    assert "/opt/gone/runtime" in refusal(fake)


class TestRestart:
    """A reload was not enough."""

    @pytest.fixture
    def stubborn(self, tmp_path: Path) -> FakeDocker:
        return FakeDocker(tmp_path, takes_reload=False)

    def test_it_is_done_where_it_ends_nothing(self, stubborn: FakeDocker) -> None:
        stubborn.dependants = {"old.service": "inactive", "older.service": "failed"}
        assert register_on(stubborn).changed
        assert "nvidia" in stubborn.runtimes

    def test_it_is_refused_while_containers_run_and_names_them(self, stubborn: FakeDocker) -> None:
        stubborn.containers = ["dsv41-tensorfold", "grafana"]
        words = refusal(stubborn)
        assert "container dsv41-tensorfold, container grafana" in words
        assert "container_runtime_allow_restart" in words
        assert not stubborn.called("systemctl restart")
        # The next run decides the same from what it sees, and again when nothing runs any more.
        refusal(stubborn)
        stubborn.containers = []
        assert register_on(stubborn).step is Step.RELOAD
        assert "nvidia" in stubborn.runtimes

    def test_a_service_that_hangs_on_docker_counts_too(self, stubborn: FakeDocker) -> None:
        stubborn.live_restore = True
        stubborn.dependants = {"vllm.service": "active"}
        assert "service vllm.service" in refusal(stubborn)

    def test_live_restore_keeps_containers_alive(self, stubborn: FakeDocker) -> None:
        stubborn.live_restore, stubborn.containers = True, ["dsv41-tensorfold"]
        assert register_on(stubborn).changed

    def test_without_a_look_at_the_pair_it_only_asks_for_it(self, stubborn: FakeDocker) -> None:
        first = register_on(stubborn, pair=None)
        assert first.step is Step.MERGE and first.did and "daemon.json" in first.restart
        again = register_on(stubborn, pair=None)
        assert again.step is Step.RELOAD and not again.did and again.restart
        assert not stubborn.called("systemctl restart")

    @pytest.mark.parametrize("command", ["run --rm vllm", "wait vllm", "logs -f vllm"])
    def test_a_client_that_waits_for_a_container_is_no_matter_of_live_restore(
        self, stubborn: FakeDocker, command: str
    ) -> None:
        stubborn.live_restore, stubborn.containers = True, ["vllm"]
        stubborn.process(123, f"docker {command} -e TOKEN=secret", "vllm.service")
        words = refusal(stubborn)
        assert "docker client 123 of vllm.service" in words
        assert "secret" not in words and "container vllm" not in words

    def test_a_server_that_is_not_down_is_no_matter_of_live_restore(
        self, stubborn: FakeDocker
    ) -> None:
        stubborn.live_restore = True
        words = refusal(stubborn, docker.Pair(serving=("hikari runs",)))
        assert "hikari runs" in words and "container_runtime_allow_restart" in words
        allowed = docker.Pair(serving=("hikari runs",))
        assert register_on(stubborn, pair=allowed, allow_restart=True).changed

    def test_a_refusal_says_that_the_merged_file_stays(self, stubborn: FakeDocker) -> None:
        stubborn.containers = ["grafana"]
        assert "The entry stays in /etc/docker/daemon.json" in refusal(stubborn)
        assert "nvidia" in json.loads(stubborn.file.read_text())["runtimes"]

    @pytest.mark.parametrize("allow_restart", [False, True])
    def test_no_setting_allows_it_in_a_switch(
        self, stubborn: FakeDocker, allow_restart: bool
    ) -> None:
        at_work = "spark-pair-switch.service on spark-b is active"
        pair = docker.Pair(switching=(at_work,))
        words = refusal(stubborn, pair, allow_restart=allow_restart)
        assert at_work in words and "spark-pair history" in words
        assert not stubborn.called("systemctl restart")

    @pytest.mark.parametrize("state", ["active", "activating", "deactivating", ""])
    def test_a_switch_that_began_since_the_look_is_seen(
        self, stubborn: FakeDocker, state: str
    ) -> None:
        stubborn.switch = state
        assert "spark-pair-switch.service on spark-a" in refusal(stubborn)

    def test_a_held_lock_is_a_switch(self, stubborn: FakeDocker) -> None:
        lock = stubborn.root / "run/spark-pair/switch.lock"
        lock.parent.mkdir(parents=True)
        with lock.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            assert "holds /run/spark-pair/switch.lock on spark-a" in refusal(stubborn)
        assert register_on(stubborn).step is Step.RELOAD
        assert "nvidia" in stubborn.runtimes

    def test_bytes_come_back_as_they_were(self, stubborn: FakeDocker) -> None:
        old = b'\xef\xbb\xbf{\r\n\t"debug": true\r\n}'
        stubborn.file.write_bytes(old)
        stubborn.operator_wrote_bytes(old)
        stubborn.survives = False
        # The look before the restart was another run of the module, as it is in the play.
        register_on(stubborn, pair=None)
        assert stubborn.file.read_bytes() != old
        with pytest.raises(RefusedError, match="is what it was before"):
            register_on(stubborn)
        assert stubborn.file.read_bytes() == old

    def test_the_operator_may_allow_it(self, stubborn: FakeDocker) -> None:
        stubborn.containers = ["dsv41-tensorfold"]
        assert register_on(stubborn, allow_restart=True).changed

    def test_a_docker_that_does_not_come_up_gets_its_old_file_back(
        self, stubborn: FakeDocker
    ) -> None:
        stubborn.operator_wrote('{"debug": true}')
        stubborn.survives = False
        words = refusal(stubborn)
        assert "does not come up" in words and "journalctl" in words
        assert stubborn.file.read_text() == '{"debug": true}'
        assert stubborn.running

    def test_a_docker_that_still_does_not_know_it_is_said(self, stubborn: FakeDocker) -> None:
        stubborn.takes_restart = False
        assert "still does not know" in refusal(stubborn)


@pytest.mark.parametrize(
    ("line", "attached"),
    [
        ("docker run --rm vllm", True),
        ("/usr/bin/docker -H unix:///x --debug container run vllm", True),
        ("docker --context other attach vllm", True),
        ("docker wait vllm", True),
        ("docker exec -it vllm bash", True),
        ("docker logs --follow vllm", True),
        ("docker logs -ft vllm", True),
        ("docker logs vllm", False),
        ("docker start -a vllm", True),
        ("docker start vllm", False),
        ("docker compose up", True),
        ("docker compose up -d", False),
        ("docker ps", False),
        ("docker", False),
        ("dockerd run", False),
        ("bash -c docker run", False),
        ("", False),
    ],
)
def test_clients_that_stay_with_a_container_are_told_from_others(line: str, attached: bool) -> None:
    assert docker.is_attached(line.split()) is attached


@pytest.mark.parametrize("missing", TOOLKIT)
def test_a_toolkit_that_is_not_whole_is_refused_by_name(fake: FakeDocker, missing: str) -> None:
    (fake.root / "usr/bin" / missing).unlink()
    with pytest.raises(RefusedError, match=f"spark-a.*{missing}.*apt-get install nvidia-cont"):
        register.require_toolkit(fake.host)


def test_a_whole_toolkit_passes(fake: FakeDocker) -> None:
    register.require_toolkit(fake.host)


class TestInfo:
    """What different Dockers say of themselves."""

    def test_docker_ce_of_dgx_os(self) -> None:
        said = {
            "ServerVersion": "28.3.3",
            "Runtimes": {
                "io.containerd.runc.v2": {"path": "runc", "status": {"x": "y"}},
                "nvidia": {"path": "nvidia-container-runtime"},
            },
            "LiveRestoreEnabled": True,
            "ServerErrors": None,
        }
        info = docker.parse_info(json.dumps(said))
        assert info and info.has_nvidia and info.live_restore and info.version == "28.3.3"
        assert info.runtimes["nvidia"] == "nvidia-container-runtime"

    def test_docker_io_without_the_runtime(self) -> None:
        said = {"ServerVersion": "26.1.5+dfsg1", "Runtimes": {"runc": {"path": "runc"}}}
        info = docker.parse_info(json.dumps(said))
        assert info and not info.has_nvidia and not info.live_restore

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "Cannot connect to the Docker daemon",
            "[]",
            '{"ServerErrors": ["permission denied"], "ClientInfo": {}}',
            '{"ServerVersion": "", "Runtimes": {"nvidia": {}}}',
        ],
    )
    def test_no_answer_is_not_an_answer_without_runtimes(self, text: str) -> None:
        assert docker.parse_info(text) is None

    def test_the_reason_of_a_refused_account_is_kept(self, fake: FakeDocker) -> None:
        fake.account_may = False
        assert fake.host.info("spark") == (None, "permission denied or no daemon")


def test_unknown_containers_are_not_no_containers(tmp_path: Path) -> None:
    fake = FakeDocker(tmp_path, takes_reload=False)
    answer = fake.run

    def silent(argv: list[str], timeout: float) -> Result:
        return Result(1, "", "no answer") if argv[:2] == ["docker", "ps"] else answer(argv, timeout)

    host = docker.Host("spark-a", silent, tmp_path, pause=lambda _: None)  # type: ignore[arg-type]
    info, _ = host.info()
    assert info
    with pytest.raises(RefusedError, match="does not tell which containers run"):
        register.register(host, info, host.unit(), pair=QUIET, allow_restart=False, check=False)
    assert not fake.called("systemctl restart")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (("dockerd", "--config-file=/a"), "/a"),
        (("dockerd", "--config-file", "/a"), "/a"),
        (("dockerd", "-H", "fd://"), None),
        (("dockerd", "--config-file"), ""),
    ],
)
def test_flags_are_found_in_both_spellings(line: tuple[str, ...], value: str | None) -> None:
    assert docker.flag_value(line, "config-file") == value


class TestReady:
    """From the account to the registered runtime."""

    @pytest.fixture(autouse=True)
    def account(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        who = mounts.Account("spark", 1000, 1000, tmp_path)
        monkeypatch.setattr(mounts, "account", lambda *_: who)

    def look(self, fake: FakeDocker, *paths: str, check: bool = False) -> ready.Ready:
        wanted = ready.Wanted("spark", "/home/spark", paths, allow_restart=False)
        return ready.make_ready(fake.host, wanted, check=check)

    @pytest.mark.parametrize(
        ("unit", "lacks"),
        [
            ({"ActiveState": "inactive"}, ("running",)),
            ({"UnitFileState": "disabled"}, ("boot",)),
            ({"ActiveState": "failed", "UnitFileState": "disabled"}, ("running", "boot")),
        ],
    )
    def test_what_docker_lacks_comes_first(
        self, fake: FakeDocker, unit: dict[str, str], lacks: tuple[str, ...]
    ) -> None:
        fake.unit = unit
        assert self.look(fake).lacks == lacks
        assert not fake.called("docker info") and not fake.file.exists()

    def test_no_docker_at_all(self, fake: FakeDocker) -> None:
        fake.unit = {"LoadState": "not-found", "ActiveState": "inactive"}
        (fake.root / "usr/bin/dockerd").unlink()
        assert self.look(fake).lacks == ("docker",)

    def test_another_docker_is_not_joined_by_a_second(self, fake: FakeDocker) -> None:
        fake.unit = {"LoadState": "not-found", "ActiveState": "inactive"}
        with pytest.raises(RefusedError, match="not replaced"):
            self.look(fake)

    def test_a_masked_docker_is_somebodys_wish(self, fake: FakeDocker) -> None:
        fake.unit = {"LoadState": "masked"}
        with pytest.raises(RefusedError, match="masked"):
            self.look(fake)

    def test_without_the_toolkit_no_docker_is_installed(self, fake: FakeDocker) -> None:
        fake.unit = {"LoadState": "not-found"}
        (fake.root / "usr/bin/nvidia-ctk").unlink()
        with pytest.raises(RefusedError, match="nvidia-container-toolkit"):
            self.look(fake)

    def test_an_account_that_docker_does_not_know(self, fake: FakeDocker) -> None:
        fake.account_may = False
        found = self.look(fake)
        assert found.lacks == ("account",) and "permission denied" in found.why
        assert not fake.file.exists()

    def test_a_daemon_that_hangs_is_no_matter_of_the_account(self, fake: FakeDocker) -> None:
        fake.running, fake.unit = False, {"ActiveState": "active"}
        with pytest.raises(RefusedError, match="does not answer"):
            self.look(fake)

    def test_a_second_run_asks_twice_and_does_nothing(self, fake: FakeDocker) -> None:
        assert self.look(fake).did
        fake.calls.clear()
        done = self.look(fake)
        assert not done.did and not done.diff and done.version == "28.3.3"
        assert len(fake.calls) == 2

    def test_a_directory_that_cannot_be_used_is_refused_before_docker_is_touched(
        self, fake: FakeDocker
    ) -> None:
        (fake.root / "models").write_text("")
        with pytest.raises(RefusedError, match="no directory"):
            self.look(fake, "models")
        assert not fake.file.exists() and not fake.called("systemctl re")

    def test_a_file_that_is_refused_leaves_the_directories_alone(self, fake: FakeDocker) -> None:
        fake.operator_wrote("[]")
        with pytest.raises(RefusedError, match="JSON object"):
            self.look(fake, "models")
        assert not fake.called("runuser -u spark -- mkdir")

    def test_check_mode_says_both_and_does_neither(self, fake: FakeDocker) -> None:
        said = self.look(fake, "models", check=True)
        assert len(said.did) == 2 and any("models" in words for words in said.did)
        assert not fake.file.exists() and not fake.called("runuser -u spark -- mkdir")
