"""The table, the sentence that ends a run, the evidence, the page of checks, and what is asked."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pair_hostvars import hostvars
from preflight_host import PAIR, Pair, healthy_pair

from spark_pair import findings_table, pair_variables, roles
from spark_pair.findings import Finding, Grade
from spark_pair.preflight import asked, evidence, judge, load

ROOT = Path(__file__).resolve().parents[2]
AT = datetime(2026, 11, 29, 18, 12, 35, tzinfo=UTC)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return healthy_pair(tmp_path / "pair")


def whole(findings: dict[str, Finding], *accepted: str) -> str:
    """The table with all that stands below it."""
    return findings_table.table(
        "preflight", PAIR, list(findings.values()), titles=judge.TITLES, accepted=accepted
    )


def shown(findings: dict[str, Finding], *accepted: str) -> dict[str, list[str]]:
    """Rows of the table by title."""
    text = whole(findings, *accepted)
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows if not row[0].startswith("!")}


def hints(findings: dict[str, Finding], *accepted: str) -> list[str]:
    text = whole(findings, *accepted)
    return [line.strip() for line in text.splitlines() if line.strip().startswith("!")]


def test_a_row_a_check_and_a_column_a_host(pair: Pair) -> None:
    found = pair.judge()
    rows = shown(found)
    assert rows["preflight"] == ["spark-a (head)", "spark-b (worker)", "verdict"]
    assert rows["kernel"] == ["6.17.0-1032-nvidia", "6.17.0-1032-nvidia", "ok"]
    assert rows["tools of the head"] == ["git, python3, hf", "-", "ok"]
    assert set(rows) >= {check.title for check in judge.CATALOGUE}
    assert hints(found) == []


def test_what_is_wrong_stands_below_worst_first(pair: Pair) -> None:
    pair.head.facts["hub"] = None
    pair.head.units["systemd-oomd.service"] = "active"
    pair.head.managed_oom["system.slice"] = "kill"
    pair.worker.facts["architecture"] = "x86_64"
    found = pair.judge()
    names = [line.split()[1].rstrip(":") for line in hints(found)]
    assert names == ["architecture", "oom_daemons", "hub"]
    rows = shown(found)
    assert rows["architecture"][-1] == "FAIL"
    assert rows["out-of-memory daemons"][-1] == "warn"
    assert rows["Hugging Face Hub"] == ["unknown", "-", "unknown"]


def test_an_accepted_failure_is_shown_as_such_and_stops_nothing(pair: Pair) -> None:
    pair.worker.facts["architecture"] = "x86_64"
    found = pair.judge()
    assert findings_table.summary(list(found.values()), ()).startswith("spark-b: this is x86_64")
    assert findings_table.summary(list(found.values()), ("architecture",)) == ""
    assert shown(found, "architecture")["architecture"][-1] == "accepted"
    assert hints(found, "architecture")[0].startswith("! architecture (accepted): ")


def test_the_sentence_names_the_first_and_counts_the_rest(pair: Pair) -> None:
    pair.worker.facts["architecture"] = "x86_64"
    pair.worker.units["earlyoom.service"] = "active"
    said = findings_table.summary(list(pair.judge().values()), ())
    assert said.endswith("(and 1 more in the table above)") and "\n" not in said


def test_warnings_and_unknowns_never_stop(pair: Pair) -> None:
    pair.head.facts["hub"] = None
    pair.head.units["systemd-oomd.service"] = "active"
    pair.head.managed_oom["system.slice"] = "kill"
    assert findings_table.summary(list(pair.judge().values()), ()) == ""


def test_a_machine_that_is_down_has_an_empty_column(pair: Pair) -> None:
    found = pair.judge(only="head")
    rows = shown(found)
    assert rows["reachable over ssh"] == ["yes", "FAILED", "FAIL"]
    assert rows["kernel"] == ["6.17.0-1032-nvidia", "-", "unknown"]
    assert hints(found)[0] == "! reachable: spark-b (the worker of this pair) cannot be reached"


def test_checks_that_say_the_same_share_a_line(pair: Pair) -> None:
    (shared,) = [line for line in hints(pair.judge(only="head")) if "not looked at" in line]
    assert shared.startswith(
        "! os, dgx_os, kernel, driver, firmware, bios, machine_id, clocks, time_skew"
    )
    assert shared.endswith("(unknown): spark-b: not looked at")


def test_rows_without_anything_to_read_are_left_out() -> None:
    lacking = judge.Seen(failure="Missing sudo password")
    rows = shown(Pair.findings({"head": lacking, "worker": lacking}))
    assert rows["root through sudo"] == ["FAILED", "FAILED", "FAIL"]
    assert "memory available" not in rows


def test_the_table_fits_a_terminal_whatever_is_in_it(pair: Pair) -> None:
    pair.head.write("etc/os-release", f'PRETTY_NAME="{"long " * 40}"\n')
    text = whole(pair.judge())
    assert max(map(len, text.splitlines())) <= 120


def test_the_evidence_holds_everything_and_no_secret(pair: Pair) -> None:
    pair.worker.facts["architecture"] = "x86_64"
    seen = {role: host.look() for role, host in pair.hosts().items()}
    found = list(Pair.findings(seen).values())
    content = evidence.document(PAIR, seen, found, ["architecture"], AT)
    json.dumps(content)
    assert content["pair"] == "spark-a+spark-b" and content["verdict"] == "pass"
    by_id = {one["id"]: one for one in content["findings"]}
    assert list(by_id) == [check.id for check in judge.CATALOGUE]
    assert by_id["architecture"]["verdict"] == "accepted"
    assert by_id["kernel_cma"]["guards"] == [3]
    assert content["hosts"]["spark-a"]["measured"]["gpu"]["clocks.sm"] == "2418"
    assert evidence.document(PAIR, seen, found, [], AT)["verdict"] == "fail"


def test_one_file_a_run_and_none_replaced(tmp_path: Path) -> None:
    content = {"pair": "spark-a+spark-b"}
    first = evidence.write(tmp_path, content, AT)
    assert first == tmp_path / "spark-a+spark-b" / "20261129T181235Z.json"
    assert json.loads(first.read_text()) == content
    second = evidence.write(tmp_path, {**content, "n": 2}, AT)
    assert second.name == "20261129T181235Z-2.json"
    assert json.loads(first.read_text()) == content


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("a file")
    with pytest.raises(OSError, match="evidence"):
        evidence.write(tmp_path / "evidence", {"pair": "a+b"}, AT)


def test_the_page_of_checks_is_the_catalogue() -> None:
    page = (ROOT / "docs/preflight.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
    expected = [
        (check.id, check.means, ", ".join(map(str, check.guards))) for check in judge.CATALOGUE
    ]
    assert rows == expected, "\n" + "\n".join(
        f"| `{name}` | {means} | {faults} |" for name, means, faults in expected
    )


def test_the_sizes_are_those_of_the_page_about_the_first_run() -> None:
    page = (ROOT / "docs/first-run.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]*) \| [\d.]+ \| (\d+) \|$", page, flags=re.MULTILINE))
    assert rows["head, stock weights: counted byte by byte"] == str(load.MODELS_GIB["head"])
    assert rows["worker"] == str(load.MODELS_GIB["worker"])
    assert rows["image, on each machine"] == str(load.IMAGE_GIB)


def test_a_misspelt_variable_of_preflight_is_refused() -> None:
    known, prefixes = roles.known_variables(ROOT), roles.role_prefixes(ROOT)
    names = ["preflight_acept", "preflight_accept", "preflight_hub_url"]
    assert pair_variables.misspelt(names, known, prefixes) == [
        ("preflight_acept", "preflight_accept")
    ]


# What is asked of a host, from the inventory.

ROLES: dict[Any, str] = {"head": "spark-a", "worker": "spark-b"}


def of(host: str, variables: dict[str, dict[str, Any]], *absent: str) -> dict[str, Any]:
    return asked.of_host(host, variables, ROLES, {}, absent)


def test_a_host_is_asked_about_its_peer() -> None:
    made = of("spark-a", hostvars())
    assert made["is_head"] is True and made["management"] == "192.0.2.11"
    assert made["peer"] == {
        "user": "bob",
        "addresses": ["192.0.2.12", "198.51.100.12", "198.51.100.140"],
        "port": "22",
    }
    assert made["rails"] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert made["rail_peers"]["enP2p1s0f0np0"] == "198.51.100.140"


def test_a_peer_that_is_away_is_not_asked_for() -> None:
    made = of("spark-a", hostvars(), "spark-b")
    assert "peer" not in made and "rail_peers" not in made


def test_a_host_without_a_pair_speaks_for_itself() -> None:
    assert asked.of_host("spark-a", hostvars(), {}, {}, ()) == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], []),
        (["clocks", "gpu"], ["clocks", "gpu"]),
        ("clocks", ["clocks"]),
        ("clocks, gpu", ["clocks", "gpu"]),
        ('["clocks", "gpu"]', ["clocks", "gpu"]),
        ("[clocks]", ["clocks"]),
        ("", []),
        ("[]", []),
        (None, []),
        (7, ["7"]),
        ({"clocks": True}, ["{'clocks': True}"]),
    ],
)
def test_accepted_names_however_the_command_line_gives_them(
    value: Any, expected: list[str]
) -> None:
    assert asked.accepted(value) == expected


@pytest.mark.parametrize(
    "rails",
    [None, "text", ["text"], [{"interface": "x"}], [{"interface": "x", "address": "10.0.0.1"}]],
)
def test_rails_that_make_no_sense_are_left_out(rails: Any) -> None:
    variables = hostvars(cx7_network_rails=rails)
    for host in variables.values():
        host["cx7_network_rails"] = rails
    assert of("spark-a", variables)["rails"] == []
    wanted = asked.wanted(ROLES, variables, {}, ["x"])
    assert wanted.rails == {"head": [], "worker": []} and wanted.problems == ("x",)


@pytest.mark.parametrize(("mtu", "expected"), [("", None), (9000, 9000), ("9000", 9000)])
def test_what_the_rails_should_be(mtu: Any, expected: int | None) -> None:
    variables = hostvars(cx7_network_mtu=mtu, cx7_network_link_speed=100_000)
    description = pair_variables.description_of("spark-a", variables)
    wanted = asked.wanted(ROLES, variables, description, [])
    assert wanted.mtu == expected and wanted.link_speed == 100_000
    assert wanted.description is not None and wanted.description.wanted == "deepseek"


AGENTS = {"name": "agents", "at_once": 4, "prompt": 110_000, "max_tokens": 2500}


def _doubts(**variables: Any) -> tuple[str, ...]:
    made = hostvars(**variables)
    description = pair_variables.description_of("spark-a", made)
    return tuple(asked.wanted(ROLES, made, description, []).doubts)


def test_clients_that_cannot_all_fit_are_a_doubt_with_the_numbers() -> None:
    assert _doubts(tensorfold_service_clients=[{**AGENTS, "at_once": 2}]) == ()
    (words,) = _doubts(tensorfold_service_clients=[AGENTS])
    assert words.startswith("tensorfold_service_clients: ")
    assert "450560 tokens for a pool of 262144" in words and "agents 4 times 112640" in words
    larger = _doubts(tensorfold_service_clients=[AGENTS], tensorfold_service_context=1_048_576)
    assert larger == ()


def test_only_the_clients_of_the_wanted_server_count() -> None:
    one = {"unit": "dsv41-tensorfold.service"}
    crowded = {**one, "clients": [AGENTS]}
    assert _doubts(tensorfold_service_engines={"deepseek": crowded})
    assert not _doubts(
        tensorfold_service_engines={"deepseek": crowded}, model_server_wanted="hikari"
    )
    assert asked.wanted(ROLES, hostvars(tensorfold_service_clients="x"), {}, ["x"]).doubts == ()


def test_a_doubt_warns_and_a_problem_stops() -> None:
    pair = {"head": "spark-a", "worker": "spark-b"}
    seen = {role: judge.Seen(absence="away") for role in pair}

    def variables(**wanted: Any) -> Finding:
        found = judge.findings(pair, seen, judge.Wanted(**wanted))  # type: ignore[arg-type]
        return next(one for one in found if one.id == "variables")

    doubtful = variables(doubts=["too many"])
    assert (doubtful.grade, doubtful.hint) == (Grade.WARN, "too many")
    assert set(doubtful.measured.values()) == {"doubtful"}
    both = variables(problems=["wrong"], doubts=["too many"])
    assert (both.grade, both.hint) == (Grade.FAIL, "wrong")


def test_a_long_cell_goes_on_below_and_keeps_its_items_whole() -> None:
    found = Finding(
        id="rails_rdma",
        grade=Grade.OK,
        measured={"a": "rocep1s0f0 GID 3, roceP2p1s0f0 GID 5", "b": "x" * 200},
    )
    lines = findings_table.table(
        "rails", {"head": "a", "worker": "b"}, [found], titles={}
    ).splitlines()
    assert lines[2].split()[:4] == ["rails_rdma", "rocep1s0f0", "GID", "3,"]
    assert lines[2].endswith("ok")
    assert lines[3].split()[:3] == ["roceP2p1s0f0", "GID", "5"]
    assert lines[4].endswith("…") and len(lines) == 5
