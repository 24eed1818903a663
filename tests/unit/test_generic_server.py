"""Servers that nobody wrote code for: a third one, one in a container, none to go back to."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from fake_pair import FakePair, describe, switch
from pair_hostvars import hostvars

from spark_pair.description import PairDescription, parse
from spark_pair.errors import Exit
from spark_pair.inventory import default_variables
from spark_pair.pair_variables import description_of
from spark_pair.probe import ProbeResult

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "roles/model_server/templates"


def documented() -> dict[str, Any]:
    """The variables that docs/operations.md shows for a wrapped container."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    found = re.search(
        r"<!-- wrapped container -->\n```yaml\n(.*?)```\n<!-- end of wrapped container -->",
        text,
        re.DOTALL,
    )
    assert found
    data = yaml.safe_load(found[1])
    assert isinstance(data, dict)
    return data


def described(**changes: Any) -> PairDescription:
    """What the documented variables make of a pair; short patience, and no weights asked about."""
    variables = documented() | {"weights_sources": {}} | changes
    made = description_of("spark-a", hostvars(**variables))
    made["policy"] |= {"quiet_period": 5, "dead_after": 5, "resume_wait": 10}
    return parse(made)


@pytest.fixture
def pair() -> FakePair:
    description = described()
    made = FakePair(description)
    deepseek = description.servers["deepseek"]
    assert deepseek.context
    made.servers["deepseek"].context = deepseek.context.expect
    made.dry_run_out = "docker run -d --name dsv41-tensorfold image"
    made.start("qwen")
    return made


class TestAThirdServer:
    def test_is_switched_from_and_back_to(self, pair: FakePair) -> None:
        for target in ("deepseek", "qwen", "hikari", "qwen"):
            code, job = switch(pair, target)
            assert code is Exit.DONE, job.message
            assert pair.generates() == [target]
        assert pair.overlaps == []

    def test_is_brought_back_when_the_new_one_fails(self, pair: FakePair) -> None:
        pair.servers["deepseek"].starts = False
        code, _ = switch(pair)
        assert code is Exit.RECOVERED
        assert pair.generates() == ["qwen"]

    def test_is_gone_back_from_when_it_fails(self, pair: FakePair) -> None:
        switch(pair)
        pair.servers["qwen"].probe = lambda _: ProbeResult("bad", "no text")
        code, _ = switch(pair, "qwen")
        assert code is Exit.RECOVERED
        assert pair.generates() == ["deepseek"]


class TestNoFallback:
    @pytest.fixture
    def pair(self) -> FakePair:
        def alone(data: dict[str, Any]) -> None:
            data["fallback"] = "none"
            del data["servers"]["hikari"]

        return FakePair(describe(alone))

    def test_the_only_server_is_started_and_stopped(self, pair: FakePair) -> None:
        assert switch(pair)[0] is Exit.DONE
        assert pair.generates() == ["deepseek"]
        assert switch(pair, "none")[0] is Exit.DONE
        assert pair.answers() == []

    def test_one_that_does_not_start_is_tried_once_more_and_then_named(
        self, pair: FakePair
    ) -> None:
        pair.servers["deepseek"].starts = False
        code, job = switch(pair)
        assert code is Exit.NOBODY
        assert pair.actions.count("start deepseek.service") == 2
        assert job.message.startswith("NO MODEL SERVER ANSWERS")
        assert "run 'spark-pair resume' on a" in job.message
        assert pair.containers == {"head": set(), "worker": set()}

    def test_whoever_served_is_still_gone_back_to(self) -> None:
        def without(data: dict[str, Any]) -> None:
            data["fallback"] = "none"

        pair = FakePair(describe(without))
        pair.start("hikari")
        pair.servers["deepseek"].starts = False
        assert switch(pair)[0] is Exit.RECOVERED
        assert pair.generates() == ["hikari"]


class TestTheUnitOfAContainer:
    @pytest.fixture
    def unit(self) -> configparser.RawConfigParser:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            undefined=jinja2.StrictUndefined,
            autoescape=False,  # noqa: S701 - a unit is no page
            trim_blocks=True,
        )
        entry = dict(documented()["model_server_containers"][0])
        template = environment.get_template("container.service.j2")
        text = template.render(__model_server_container=entry)
        assert text.startswith("# Written by spark-pair")
        made = configparser.RawConfigParser(strict=True)
        made.optionxform = str  # type: ignore[assignment,method-assign]
        made.read_string(text)
        return made

    def test_attaches_to_the_container_and_makes_none(
        self, unit: configparser.RawConfigParser
    ) -> None:
        assert unit["Service"]["ExecStart"] == "/usr/bin/docker start --attach vllm-qwen"
        assert "run" not in unit["Service"]["ExecStart"].split()

    def test_takes_the_restart_policy_away(self, unit: configparser.RawConfigParser) -> None:
        assert unit["Service"]["ExecStartPre"] == "/usr/bin/docker update --restart=no vllm-qwen"

    def test_stops_it_and_waits_longer_than_it_may_take(
        self, unit: configparser.RawConfigParser
    ) -> None:
        service = unit["Service"]
        assert service["ExecStop"] == "/usr/bin/docker stop --time 60 vllm-qwen"
        server = described().server("qwen")
        assert 60 < int(service["TimeoutStopSec"]) < server.unit_stop_timeout

    def test_is_the_unit_that_the_server_is_described_with(self) -> None:
        (entry,) = documented()["model_server_containers"]
        server = described().server("qwen")
        assert server.units_on(entry["host"]) == [entry["unit"]]

    def test_can_be_enabled(self, unit: configparser.RawConfigParser) -> None:
        assert unit["Install"]["WantedBy"] == "multi-user.target"
        assert "docker.service" in unit["Unit"]["After"]

    def test_none_is_written_unless_asked_for(self) -> None:
        assert default_variables()["model_server_containers"] == []
