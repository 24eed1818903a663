"""The pool that all lanes share: what a request takes, what fits at once, what is said about it."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from fake_pair import description_data
from hypothesis import given
from hypothesis import strategies as st

from spark_pair import cli, jsonfile, pool
from spark_pair.errors import DescriptionError
from spark_pair.pool import Client, Pool

ROOT = Path(__file__).resolve().parents[2]
STOCK = Pool(context=262_144, parallel=4)
EIGHT = Pool(context=262_144, parallel=8, rows=32)

sizes = st.integers(1, 1_000_000)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "taken"),
    [(1, 1, 2048), (2000, 30, 2048), (2000, 31, 4096), (30_000, 2500, 32_768)],
)
def test_a_request_takes_whole_blocks(prompt: int, max_tokens: int, taken: int) -> None:
    assert STOCK.takes(prompt, max_tokens) == taken


def test_what_fits_at_once() -> None:
    assert EIGHT.at_once(30_000, 2500) == 8
    assert EIGHT.at_once(110_000, 2500) == 2, "long histories queue, whatever the lanes"
    assert EIGHT.at_once(1000, 32_768) == 7, "the default budget alone fills the pool"
    assert STOCK.at_once(1000, 100) == 4
    assert STOCK.at_once(262_144, 1) == 0


@given(sizes, sizes, sizes, st.integers(1, 8), st.integers(16, 48))
def test_what_fits_at_once_fits_and_one_more_does_not(
    prompt: int, max_tokens: int, context: int, parallel: int, rows: int
) -> None:
    made = Pool(context, parallel, rows)
    taken, fit = made.takes(prompt, max_tokens), made.at_once(prompt, max_tokens)
    assert taken % pool.BLOCK == 0
    assert 0 <= taken - (prompt + max_tokens + rows + 2) < pool.BLOCK
    assert fit * taken <= context and fit <= parallel
    assert (fit + 1) * taken > context or fit + 1 > parallel


@pytest.mark.parametrize(
    ("made", "prompt", "said"),
    [
        (EIGHT, 110_000, ("takes 112640 of the 262144", "2 fit at once", "the pool decides")),
        (EIGHT, 1000, ("8 fit at once", "the 8 lanes decide", "room for 64")),
        (EIGHT, 30_000, ("8 fit at once", "end together")),
        (EIGHT, 262_000, ("does not fit at all",)),
    ],
)
def test_the_answer_in_words(made: Pool, prompt: int, said: tuple[str, ...]) -> None:
    for part in said:
        assert part in pool.words(made, prompt, 2500)


AGENTS = {"name": "agents", "at_once": 8, "prompt": 30_000, "max_tokens": 2500}


def test_clients_are_read() -> None:
    assert pool.clients("v", None) == pool.clients("v", []) == ()
    assert pool.clients("v", [{**AGENTS, "at_once": "8"}]) == (Client("agents", 8, 30_000, 2500),)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("agents", "v must be a list"),
        (AGENTS, "v must be a list"),
        (["agents"], "v[0] must have name, at_once, prompt, max_tokens"),
        ([{"name": "agents"}], "v[0] must have"),
        ([{**AGENTS, "lanes": 1}], "and nothing else"),
        ([AGENTS, {**AGENTS, "name": ""}], "v[1].name"),
        ([{**AGENTS, "name": "a\nb"}], "v[0].name"),
        ([{**AGENTS, "at_once": 0}], "v[0].at_once is '0'"),
        ([{**AGENTS, "at_once": True}], "v[0].at_once"),
        ([{**AGENTS, "prompt": "030000"}], "v[0].prompt"),
        ([{**AGENTS, "max_tokens": 2.5}], "v[0].max_tokens is '2.5'"),
    ],
)
def test_a_wrong_client_is_refused_by_name(raw: object, said: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        pool.clients("v", raw)
    assert said in str(caught.value)


def test_clients_that_fit_are_no_matter() -> None:
    assert pool.overload(EIGHT, []) == ""
    assert pool.overload(EIGHT, pool.clients("v", [AGENTS])) == ""


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ([{**AGENTS, "at_once": 9}], ("9 requests at once for 8 lanes", "294912 tokens")),
        ([AGENTS, {**AGENTS, "name": "me", "at_once": 1}], ("9 requests", "me 1 times 32768")),
        ([{**AGENTS, "prompt": 110_000}], ("901120 tokens for a pool of 262144", "8 times 112640")),
        (
            [{**AGENTS, "at_once": 1, "prompt": 262_144}],
            ("a request of agents", "refused however idle"),
        ),
    ],
)
def test_clients_that_do_not_fit_are_told_with_the_numbers(
    declared: list[dict[str, Any]], said: tuple[str, ...]
) -> None:
    told = pool.overload(EIGHT, pool.clients("v", declared))
    for part in said:
        assert part in told


# ---- the command and the filter -------------------------------------------------------------


def asked(*words: str, description: Path = Path("/nowhere/pair.json")) -> int:
    words = ("pool", "--prompt", "30000", "--max-tokens", "2500", *words)
    return cli.main(["--description", str(description), *words])


def test_the_command_answers_from_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("--context", "262144", "--parallel", "8", "--rows", "32") == 0
    assert "8 fit at once" in capsys.readouterr().out
    assert asked("--context", "262144", "--parallel", "8", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "context": 262_144,
        "parallel": 8,
        "rows": 16,
        "takes": 32_768,
        "at_once": 8,
    }


def test_without_an_engine_the_command_asks_for_the_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked() == 2
    assert "give --context" in capsys.readouterr().err
    assert asked("--context", "262144") == 2
    assert "give --parallel" in capsys.readouterr().err


def test_numbers_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("0", "-1", "8k", "²"):
        with pytest.raises(SystemExit):
            asked("--context", wrong, "--parallel", "8")
    assert "no whole number" in capsys.readouterr().err


def test_the_command_takes_what_runs_before_what_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, runs = tmp_path / "wanted", tmp_path / "runs"
    for folder, parallel in ((wanted, 8), (runs, 2)):
        folder.mkdir()
        serves = {"context": 262_144, "parallel": parallel, "round_rows": 32}
        jsonfile.write(folder / "generation.json", {"schema": 1, "serves": serves})
    data = description_data()
    data["servers"]["deepseek"]["generation"] = {
        "hash": "0123456789ab",
        "path": str(wanted),
        "current": str(tmp_path / "current"),
    }
    description = tmp_path / "pair.json"
    description.write_text(json.dumps(data))
    assert asked(description=description) == 0
    assert "8 fit at once" in capsys.readouterr().out
    (tmp_path / "current").symlink_to(runs)
    assert asked(description=description) == 0
    assert "2 fit at once" in capsys.readouterr().out
    assert asked("--parallel", "3", description=description) == 0
    assert "3 fit at once" in capsys.readouterr().out
    (runs / "generation.json").write_text('{"serves": {"context": "many"}}')
    assert asked(description=description) == 2


def test_the_command_needs_a_prompt_and_a_budget() -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module("spark_pair.pool_command").add_verbs(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--prompt", "1"])


def filters() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("filters", ROOT / "filter_plugins/spark_pair.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, Any] = module.FilterModule().filters()
    return made


def test_the_filter_answers_in_a_play() -> None:
    fit = filters()["spark_pair_pool"]
    assert fit(30_000, 2500, 262_144, 8, 32) == 8
    assert fit("110000", "2500", context="262144", parallel="8") == 2
    for wrong in ("many", None, 0):
        with pytest.raises(AnsibleFilterError, match="spark_pair_pool takes"):
            fit(wrong, 2500, 262_144, 8)
