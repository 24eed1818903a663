"""`make inventory`: what it writes is what a run accepts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from spark_pair import inventory, pair_variables

FLAGS = [
    *("--head", "spark-a", "--head-address", "192.0.2.11", "--head-login", "ann"),
    *("--head-rails", "198.51.100.11/25,198.51.100.139/25"),
    *("--worker", "spark-b", "--worker-address", "192.0.2.12", "--worker-login", "ann"),
    *("--worker-user", "bob", "--worker-home", "/srv/bob"),
    *("--worker-rails", "enp1s0f0np0=198.51.100.12/25,enP2p1s0f0np0=198.51.100.140/25"),
]


def run(target: Path, *more: str) -> int:
    return inventory.main([*FLAGS, "--output", str(target), *more])


def test_the_written_inventory_makes_a_valid_pair(tmp_path: Path) -> None:
    assert run(tmp_path, "--recipe-commit", "0" * 39 + "1") == 0
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
        (["--worker", "spark-a"], "itself"),
        (["--worker-rails", "198.51.100.12/25"], "a cable has two ends"),
        (["--worker-rails", "198.51.100.12/24,198.51.100.140/25"], "must be in one subnet"),
        (["--head-rails", "198.51.100.11/24,198.51.100.139/24"], "a subnet of its own"),
        (["--head-rails", "198.51.100.11,198.51.100.139/25"], "lacks its prefix length"),
        (["--head-rails", "somewhere/25"], "not an address"),
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert inventory.main(["--output", str(tmp_path / "new")]) == 2
    assert "Host name of the head" in capsys.readouterr().err


def test_answers_are_asked_for_with_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    replies = iter(
        [
            *("spark-a", "ann", "", "192.0.2.11", "", "198.51.100.11/25"),
            *("spark-b", "", "", "192.0.2.12", "", "198.51.100.12/25"),
            "",
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
