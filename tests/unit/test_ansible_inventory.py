"""`make inventory`: what it writes is what a run accepts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from discovery import COMMIT, RAILS, checkout, crossed_pair, interface, view

from spark_pair import inventory, pair_variables
from spark_pair.discover import run as discovering
from spark_pair.discover.pair import DiscoveryError
from spark_pair.inventory_answers import FILES

FLAGS = [
    *("--head", "spark-a", "--head-address", "192.0.2.11", "--head-login", "ann"),
    *("--head-rails", "198.51.100.11/25,198.51.100.139/25"),
    *("--worker", "spark-b", "--worker-address", "192.0.2.12", "--worker-login", "ann"),
    *("--worker-user", "bob", "--worker-home", "/srv/bob"),
    *("--worker-rails", "enp1s0f0np0=198.51.100.12/25,enP2p1s0f0np0=198.51.100.140/25"),
]


TARGETS = ["--head", "ann@192.0.2.11", "--worker", "ann@192.0.2.12:2222"]


class Machines:
    """Stands for the two machines and for the play that looks at them."""

    def __init__(self) -> None:
        self.views: dict[Any, Any] = crossed_pair()
        self.asked: list[tuple[Any, discovering.Ssh]] = []
        self.error = ""

    def look(self, targets: Any, ssh: discovering.Ssh) -> Any:
        self.asked.append((targets, ssh))
        if self.error:
            raise DiscoveryError(self.error)
        return self.views


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    """No test reaches for a network; none has a terminal unless it says so."""
    made = Machines()
    monkeypatch.setattr("spark_pair.discover.run.look", made.look)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    return made


def run(target: Path, *more: str) -> int:
    return inventory.main([*FLAGS, "--no-discover", "--output", str(target), *more])


def look(target: Path, *more: str) -> int:
    return inventory.main([*TARGETS, "--output", str(target), *more])


def written(target: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Variables of each host by role, and those of the pair."""
    groups = yaml.safe_load((target / "hosts.yml").read_text())["spark_pair"]
    hosts = {
        role: {"name": name, **values}
        for role in ("head", "worker")
        for name, values in groups["children"][f"spark_{role}"]["hosts"].items()
    }
    variables = dict(groups.get("vars", {}))
    for file in sorted((target / "group_vars/spark_pair").iterdir()):
        variables.update(yaml.safe_load(file.read_text()) or {})
    return hosts, variables


def test_the_written_inventory_makes_a_valid_pair(tmp_path: Path) -> None:
    assert run(tmp_path, "--recipe-commit", "0" * 39 + "1", "--api", "open") == 0
    groups = yaml.safe_load((tmp_path / "hosts.yml").read_text())["spark_pair"]["children"]
    variables = inventory.default_variables()
    for file in (tmp_path / "group_vars/spark_pair").iterdir():
        variables.update(yaml.safe_load(file.read_text()))
    hostvars = {
        name: {**variables, **group["vars"], **values}
        for group in groups.values()
        for name, values in group["hosts"].items()
    }
    made = pair_variables.description_of("spark-a", hostvars)
    assert made["hosts"]["worker"]["user"] == "bob"
    assert made["hosts"]["head"]["home"] == "/home/ann"


def engine_text(target: Path) -> str:
    return (target / "group_vars/spark_pair/engine.yml").read_text()


def test_who_may_use_the_api_is_left_to_choose_when_nobody_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    text = engine_text(tmp_path)
    assert "# tensorfold_service_api_key: ..." in text
    assert "# tensorfold_service_api_open: true" in text
    assert "tensorfold_service_api_key (in a vault) or" in capsys.readouterr().out


def test_who_may_use_the_api_is_written_when_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--api", "open") == 0
    assert yaml.safe_load(engine_text(tmp_path))["tensorfold_service_api_open"] is True
    assert "api_key" not in capsys.readouterr().out
    assert run(tmp_path, "--api", "key", "--force") == 0
    assert "vault" in engine_text(tmp_path)
    assert "tensorfold_service_api_open" not in engine_text(tmp_path)
    assert "tensorfold_service_api_key (in a vault) in" in capsys.readouterr().out


SERVED = "DeepSeek-V4.1-Flash-1017"


@pytest.mark.parametrize(
    ("answer", "is_open", "said"),
    [
        ({"models": [SERVED], "words": SERVED}, True, "port 8888 of spark-a answers without a key"),
        ({"models": [], "words": "asks for a key (401)"}, False, "asks for a key (401)"),
        ({"models": ["Another"], "words": "Another"}, False, "yours to choose"),
        ({"models": [], "words": ""}, False, "yours to choose"),
    ],
)
def test_who_may_use_the_api_is_what_an_engine_does_that_serves(
    machines: Machines, tmp_path: Path, answer: dict[str, Any], is_open: bool, said: str
) -> None:
    machines.views["head"]["answering"] = [{"port": 8888, **answer}]
    assert look(tmp_path, "--head-user", "ann", "--worker-user", "bob") == 0
    text = engine_text(tmp_path)
    assert said in text
    assert ("tensorfold_service_api_open" in yaml.safe_load(text)) is is_open


def test_an_answer_about_the_api_that_says_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    answers = {"Who may use": "maybe"}
    monkeypatch.setattr(
        "builtins.input",
        lambda question: next(
            (said for begin, said in answers.items() if question.startswith(begin)), ""
        ),
    )
    assert run(tmp_path) == 2
    assert "'maybe' is no answer" in capsys.readouterr().err
    answers["Who may use"] = "open"
    assert run(tmp_path) == 0
    assert yaml.safe_load(engine_text(tmp_path))["tensorfold_service_api_open"] is True


def test_an_account_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    for role in ("head", "worker"):
        flags = [f"--{role}-login", "john.doe", f"--{role}-user", "john.doe"]
        assert run(tmp_path, *flags, "--force") == 0


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    (tmp_path / "hosts.yml").write_text("mine\n")
    assert run(tmp_path) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "hosts.yml").read_text() == "mine\n"
    assert run(tmp_path, "--force") == 0
    assert (tmp_path / "hosts.yml").read_text() != "mine\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--worker", "spark-a"], "both machines are called spark-a"),
        (["--worker-rails", "198.51.100.12/25"], "a cable has two ends"),
        (["--worker-rails", "198.51.100.12/24,198.51.100.140/25"], "must be in one subnet"),
        (["--head-rails", "198.51.100.11/24,198.51.100.139/24"], "a subnet of its own"),
        (["--head-rails", "198.51.100.11,198.51.100.139/25"], "lacks its prefix length"),
        (["--head-rails", "somewhere/25"], "not an address"),
        (["--head-rails", "a b=198.51.100.11/25,x=198.51.100.139/25"], "network interface"),
        (["--head-user", "Ann B"], "cannot be the account of the servers"),
        (["--head-home", "~ann"], "absolute path"),
        (["--wanted", "deepsek"], "did you mean 'deepseek'"),
        (["--recipe-commit", "27741e1"], "40 characters"),
    ],
)
def test_wrong_answers_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert run(tmp_path / "new", *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_without_a_terminal_a_missing_answer_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inventory.main(["--output", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert "Host name of the head" in said and "--head-name" in said


def test_answers_are_asked_for_with_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    replies = iter(
        [
            *("spark-a", "ann", "", "192.0.2.11", ""),
            *("spark-b", "", "", "192.0.2.12", ""),
            *("198.51.100.11/25", "198.51.100.12/25", "", ""),
        ]
    )

    def reply(prompt: str) -> str:
        asked.append(prompt)
        return next(replies)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", reply)
    assert inventory.main(["--output", str(tmp_path)]) == 0
    assert "Account to log in to spark-b with [ann]: " in asked
    hosts = yaml.safe_load((tmp_path / "hosts.yml").read_text())["spark_pair"]["children"]
    worker = hosts["spark_worker"]["hosts"]["spark-b"]
    assert worker["spark_home"] == "/home/ann"
    assert worker["cx7_network_rails"] == [
        {"interface": "enp1s0f0np0", "address": "198.51.100.12/25"}
    ]
    engine = (tmp_path / "group_vars/spark_pair/engine.yml").read_text()
    assert "# tensorfold_service_recipe_commit: ..." in engine


# --- with two machines to look at


def test_everything_is_filled_from_what_was_found(tmp_path: Path, machines: Machines) -> None:
    assert look(tmp_path) == 0
    hosts, variables = written(tmp_path)
    assert hosts["head"] == {
        "name": "spark-a",
        "ansible_host": "192.0.2.11",
        "ansible_user": "ann",
        "pair_peer": "spark-b",
        "spark_user": "ann",
        "spark_home": "/home/ann",
        "cx7_network_rails": [
            {"interface": RAILS[0], "address": "198.51.100.11/25"},
            {"interface": RAILS[1], "address": "198.51.100.139/25"},
        ],
    }
    assert (hosts["worker"]["spark_user"], hosts["worker"]["spark_home"]) == ("bob", "/srv/bob")
    assert hosts["worker"]["ansible_port"] == 2222
    assert variables["tensorfold_service_recipe_commit"] == COMMIT
    assert "tensorfold_service_recipe_url" not in variables  # the default, over another protocol
    assert variables["model_server_fallback"] == "hikari"
    assert variables["model_server_extra"] == {"hikari": {"api": {"model": "Hikari-Next"}}}
    [(targets, _)] = machines.asked
    assert targets["head"] == discovering.Target("192.0.2.11", "ann")
    assert targets["worker"] == discovering.Target("192.0.2.12", "ann", 2222)


def test_every_found_value_says_how(tmp_path: Path) -> None:
    assert look(tmp_path) == 0
    hosts = (tmp_path / "hosts.yml").read_text()
    for line in hosts.splitlines():
        if any(key in line for key in ("spark_user:", "spark_home:", "interface:", "spark-a:")):
            assert "  # " in line, line
    assert "HEAD of /home/ann/dsv41" in (tmp_path / FILES[1]).read_text()
    assert "printed by port 8000 of spark-b" in (tmp_path / FILES[2]).read_text()


def test_twice_the_same_run_gives_the_same_bytes(tmp_path: Path, machines: Machines) -> None:
    machines.views["worker"]["units"][0]["active"] = "activating"
    assert look(tmp_path) == 0
    first = {name: (tmp_path / name).read_bytes() for name in FILES}
    machines.views["worker"]["units"][0]["active"] = "active"
    assert look(tmp_path) == 2  # nothing is replaced unasked
    assert len(machines.asked) == 1  # and nobody is looked at for nothing
    assert look(tmp_path, "--force") == 0
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == first


FLAG_WINS = [
    ("--head-name", "other", ("head", "name")),
    ("--worker-user", "carl", ("worker", "spark_user")),
    ("--worker-home", "/data/carl", ("worker", "spark_home")),
    ("--head-login", "root", ("head", "ansible_user")),
    ("--recipe-commit", "1" * 40, "tensorfold_service_recipe_commit"),
    ("--fallback", "none", "model_server_fallback"),
]


@pytest.mark.parametrize(("flag", "value", "where"), FLAG_WINS, ids=[one[0] for one in FLAG_WINS])
def test_a_flag_wins_over_what_was_found(tmp_path: Path, flag: str, value: str, where: Any) -> None:
    more = ["--worker-home", "/home/carl"] if value == "carl" else []
    assert look(tmp_path, flag, value, *more) == 0
    hosts, variables = written(tmp_path)
    assert (variables[where] if isinstance(where, str) else hosts[where[0]][where[1]]) == value
    if value == "none":
        assert variables["model_server_extra"] == {}


def test_rails_of_one_end_are_enough_when_the_other_end_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"{RAILS[1]}=198.51.100.139/25,{RAILS[0]}=198.51.100.11/25"
    assert look(tmp_path, "--head-rails", given) == 0
    worker = written(tmp_path)[0]["worker"]["cx7_network_rails"]
    assert [rail["address"] for rail in worker] == ["198.51.100.140/25", "198.51.100.12/25"]
    assert look(tmp_path / "new", "--head-rails", "203.0.113.1/24,203.0.114.1/24") == 2
    assert "--worker-rails too" in capsys.readouterr().err


@pytest.mark.fault(31)
def test_four_interfaces_that_are_up_are_refused_before_anything_is_written(
    tmp_path: Path, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    four = [interface(name) for name in (*RAILS, "enp1s0f1np1", "enP2p1s0f1np1")]
    machines.views = {role: view(f"spark-{role}", interfaces=four) for role in ("head", "worker")}
    assert look(tmp_path / "new") == 2
    said = capsys.readouterr().err
    assert "--head-cable" in said and all(one["name"] in said for one in four)
    assert not (tmp_path / "new").exists()
    assert look(tmp_path, "--head-cable", RAILS[0], "--worker-cable", RAILS[1]) == 0


def test_what_was_not_found_is_asked_for_or_named(
    tmp_path: Path,
    machines: Machines,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for one in machines.views.values():
        one["accounts"] = []
    assert look(tmp_path / "new") == 2
    assert "--head-user" in capsys.readouterr().err
    asked: list[str] = []
    replies = iter(["ann", "/home/ann", "bob", "/srv/bob", "", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)

    def reply(prompt: str) -> str:
        asked.append(prompt)
        return next(replies)

    monkeypatch.setattr("builtins.input", reply)
    assert look(tmp_path) == 0
    assert len(asked) == 6  # nothing that was found is asked for
    assert "# tensorfold_service_recipe_commit" in (tmp_path / FILES[1]).read_text()


def test_units_that_could_not_be_read_are_refused_until_the_flag_tells(
    tmp_path: Path, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.views["head"].update(units=[], unread={"system units": "systemctl: no end"})
    assert look(tmp_path / "new") == 2
    said = capsys.readouterr().err
    assert "system units of spark-a could not be read (systemctl: no end)" in said
    assert "--fallback" in said
    assert not (tmp_path / "new").exists()
    assert look(tmp_path, "--fallback", "hikari") == 0
    assert written(tmp_path)[1]["model_server_fallback"] == "hikari"
    assert "not read on spark-a (head): system units" in (tmp_path / FILES[2]).read_text()


def test_two_owners_of_a_recipe_are_told_apart_by_the_flag(
    tmp_path: Path, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.views["head"]["accounts"][1]["checkout"] = checkout("/home/bob")
    assert look(tmp_path / "new") == 2
    assert "--head-user" in capsys.readouterr().err
    assert look(tmp_path, "--head-user", "bob") == 0
    assert written(tmp_path)[0]["head"]["spark_user"] == "bob"


def test_no_incumbent_leaves_the_candidates_for_review(tmp_path: Path, machines: Machines) -> None:
    machines.views["head"]["units"] = []
    machines.views["worker"]["units"][0]["why"] = "its description says qwen\nmodel: x"
    assert look(tmp_path) == 0
    _, variables = written(tmp_path)
    assert variables["model_server_fallback"] == "none"
    text = (tmp_path / FILES[2]).read_text()
    assert "# - candidate on spark-b (worker): qwen38fn-miaai-head.service" in text
    assert "hikari is there in part" in text
    assert "model: x" in text and "model" not in variables  # it stays in its comment


def test_no_template_of_somebody_elses_gets_into_the_inventory(
    tmp_path: Path, machines: Machines
) -> None:
    evil = "{{ lookup('pipe', 'id') }}"
    machines.views["worker"]["answering"][0].update(models=[evil], words=evil)
    machines.views["head"]["accounts"][0]["checkout"]["url"] = evil
    assert look(tmp_path) == 0
    assert evil not in str(written(tmp_path))
    assert "no plain word" in (tmp_path / FILES[2]).read_text()


def test_a_recipe_from_elsewhere_brings_its_address(tmp_path: Path, machines: Machines) -> None:
    made = checkout("/home/ann", url="https://example.org/fork.git", changed=3)
    machines.views["head"]["accounts"][0]["checkout"] = made
    assert look(tmp_path) == 0
    assert written(tmp_path)[1]["tensorfold_service_recipe_url"] == "https://example.org/fork.git"
    assert "3 changed files" in (tmp_path / FILES[1]).read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--worker", "spark-b"], "give --worker LOGIN@spark-b"),
        (["--head", "spark-a.local"], "--head spark-a.local is a name only"),
        (["--worker", ""], "the worker has none: give --worker LOGIN@ADDRESS"),
        (["--worker", "ann@192.0.2.12@x"], "no ssh target"),
        (["--worker-name", "spark-a"], "both machines are called spark-a"),
    ],
)
def test_targets_that_make_no_pair_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert look(tmp_path / "new", *flags) == 2
    assert said in capsys.readouterr().err


def test_a_machine_that_cannot_be_looked_at_ends_it(
    tmp_path: Path, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.error = "192.0.2.12 cannot be reached"
    assert look(tmp_path / "new") == 2
    assert "192.0.2.12 cannot be reached" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_names_alone_are_looked_at_by_nobody_and_that_is_said(
    tmp_path: Path, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--head", "spark-a", "--worker", "spark-b", "--output", str(tmp_path)]
    rails = ["--head-rails", "198.51.100.11/25", "--worker-rails", "198.51.100.12/25"]
    assert inventory.main([*flags, *rails]) == 0
    assert machines.asked == []
    assert written(tmp_path)[0]["head"]["ansible_host"] == "spark-a"
    said = capsys.readouterr().err
    assert "spark-a and spark-b are not looked at" in said
    assert "--head LOGIN@spark-a --worker LOGIN@spark-b" in said
    assert inventory.main([*flags, *rails, "--force", "--no-discover"]) == 0
    assert capsys.readouterr().err == ""


def test_ssh_options_serve_the_look_and_every_later_run(tmp_path: Path, machines: Machines) -> None:
    arguments = '-o ProxyJump=gate -o "UserKnownHostsFile=/a b"'
    assert look(tmp_path, "--private-key", "/k", f"--ssh-common-args={arguments}") == 0
    _, variables = written(tmp_path)
    assert variables["ansible_ssh_common_args"] == arguments
    assert variables["ansible_ssh_private_key_file"] == "/k"
    assert machines.asked[0][1].options() == [
        f"--ssh-common-args={arguments}",
        "--private-key=/k",
    ]


def test_the_inventory_for_looking_is_a_pair_that_says_no_more_than_how_to_reach_it() -> None:
    targets: dict[Any, Any] = {
        "head": discovering.Target("192.0.2.11", "ann"),
        "worker": discovering.Target("192.0.2.11", port=2222),
    }
    children = discovering.inventory(targets)["spark_pair"]["children"]
    assert children["spark_worker"]["hosts"] == {
        "worker": {"ansible_host": "192.0.2.11", "pair_peer": "head", "ansible_port": 2222}
    }
    assert pair_variables.pair_of(
        "head",
        {
            name: {**group["vars"], **values}
            for group in children.values()
            for name, values in group["hosts"].items()
        },
    ) == {"head": "head", "worker": "worker"}


class Ended:
    """A play that ended; it left `found` for the one who started it, if anything."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self.found = found
        self.command: list[str] = []

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.command = command
        output = json.loads(command[command.index("-e") + 1])["discover_output"]
        if self.found is not None:
            Path(output).write_text(json.dumps(self.found))
        return subprocess.CompletedProcess(command, 4)


REAL_LOOK = discovering.look
TWO: dict[Any, discovering.Target] = {
    "head": discovering.Target("192.0.2.11", "ann"),
    "worker": discovering.Target("192.0.2.12", "ann", 2222),
}


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        (None, ["ansible-playbook ended with 4"]),
        (
            {"192.0.2.12": "192.0.2.12 cannot be reached: no route. Try 'ansible x -m y', then z"},
            ["cannot be reached: no route. Try 'ssh -p 2222 ann@192.0.2.12' by hand."],
        ),
        (
            {"192.0.2.11": "one has no sudo", "192.0.2.12": "two has no sudo."},
            ["one has no sudo. two has no sudo. Nothing was written"],
        ),
    ],
)
def test_a_look_that_failed_says_why(
    monkeypatch: pytest.MonkeyPatch, problems: dict[str, str] | None, said: list[str]
) -> None:
    ended = Ended(None if problems is None else {"problems": problems, "views": {}})
    monkeypatch.setattr("subprocess.run", ended)
    with pytest.raises(DiscoveryError) as refused:
        REAL_LOOK(TWO, discovering.Ssh(private_key="/k"))
    assert all(words in str(refused.value) for words in said), refused.value
    assert "--private-key=/k" in ended.command


def test_views_come_back_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    views = {"192.0.2.11": {"hostname": "a"}, "192.0.2.12": {"hostname": "b"}}
    monkeypatch.setattr("subprocess.run", Ended({"problems": {}, "views": views}))
    found = REAL_LOOK(TWO, discovering.Ssh())
    assert {role: found[role]["hostname"] for role in TWO} == {"head": "a", "worker": "b"}
