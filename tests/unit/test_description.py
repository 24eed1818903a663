"""The pair description: what is accepted, and the sentence for what is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_pair import NEW, describe, description_data
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.description import (
    Command,
    Files,
    Generation,
    Host,
    Keeper,
    PairDescription,
    Policy,
    Unit,
    Weights,
    load,
    other,
    parse,
)
from spark_pair.errors import DescriptionError, Exit

Change = Callable[[dict[str, Any]], None]


def as_data(parsed: PairDescription) -> dict[str, Any]:
    """Turn a parsed description back into what would be written to a host."""
    data = json.loads(json.dumps({"schema": 1, **asdict(parsed)}))
    for server in data["servers"].values():
        del server["name"]  # it is the key
    return dict(data)


class TestValid:
    def test_what_is_read(self) -> None:
        parsed = describe()
        assert parsed.me == "head"
        assert parsed.hosts["worker"] == Host("b", "two", "/srv/two", ("192.0.2.2",), 22)
        hikari = parsed.server("hikari")
        assert hikari.units == (
            Unit("head", "hikari-worker.service"),
            Unit("worker", "hikari-head.service"),
        )
        assert hikari.keepers[2] == Keeper("worker", "watchdog.service", "never")
        assert hikari.metrics is not None
        assert hikari.metrics.path == "/metrics"
        assert hikari.probe.accept == ("content",)
        deepseek = parsed.server("deepseek")
        assert deepseek.commands.stop == Command("head", ("{generation}/launch", "stop.sh"), 180)
        assert deepseek.generation == Generation(
            NEW, f"/var/lib/spark-pair/generations/{NEW}", "/var/lib/spark-pair/current/deepseek"
        )
        files = (Files("*-00047-of-*", 1),)
        assert deepseek.weights == Weights("45ee5d0f", None, "1bae0e10", files)
        assert hikari.weights is None

    def test_everything_but_api_probe_and_units_is_optional(self) -> None:
        def bare(data: dict[str, Any]) -> None:
            kept = ("api", "probe", "units")
            data["servers"]["hikari"] = {key: data["servers"]["hikari"][key] for key in kept}
            data["policy"] = {}

        parsed = describe(bare)
        server = parsed.server("hikari")
        assert server.metrics is None
        assert server.ranks == ()
        assert server.commands.dry_run is None
        assert server.memory_gate_gib is None
        assert parsed.policy == Policy()

    def test_null_is_absent(self) -> None:
        def nulls(data: dict[str, Any]) -> None:
            data["servers"]["deepseek"] |= {
                "context": None,
                "memory_gate_gib": None,
                "generation": None,
                "commands": {"dry_run": None, "stop": None},
                "metrics": None,
                "weights": None,
            }
            data["servers"]["deepseek"]["api"]["key_file"] = None

        server = describe(nulls).server("deepseek")
        assert server.context is None
        assert server.generation is None
        assert server.weights is None
        assert server.api.key_file is None

    def test_round_trip(self) -> None:
        parsed = describe(put("hosts", "head", "rails", value=["enp1s0f0np0"]))
        assert parsed.hosts["head"].rails == ("enp1s0f0np0",)
        assert parse(as_data(parsed)) == parsed

    def test_what_a_host_has_of_a_server(self) -> None:
        deepseek = describe().server("deepseek")
        assert deepseek.units_on("head") == ["deepseek.service"]
        assert deepseek.units_on("worker") == []
        assert deepseek.ranks_on("worker") == ["ds"]
        assert deepseek.ports_on("head") == [8888]
        assert deepseek.ports_on("worker") == []

    def test_all_units_are_those_the_tool_may_touch(self) -> None:
        assert describe().all_units() == {
            "hikari-worker.service",
            "hikari-head.service",
            "watchdog.timer",
            "metrics.timer",
            "watchdog.service",
            "deepseek.service",
        }

    def test_an_unknown_server_is_answered_with_the_known_ones(self) -> None:
        with pytest.raises(DescriptionError, match=r"'hikary'.*knows hikari, deepseek, none"):
            describe().server("hikary")

    def test_other(self) -> None:
        assert (other("head"), other("worker")) == ("worker", "head")


def put(*path: str | int, value: Any) -> Change:
    """A change of one value, by its path."""

    def change(data: dict[str, Any]) -> None:
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


DEEPSEEK = ("servers", "deepseek")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("schema", value=2), "schema 2, this tool reads schema 1"),
        (put("schema", value=True), "schema must be a whole number, not True"),
        (put("fallbak", value="none"), "unknown key 'fallbak'; did you mean 'fallback'"),
        (put("wanted", value="qwen"), "wanted is 'qwen', but must be one of hikari, deepseek"),
        (put("wanted", value=["hikari"]), r"wanted is \['hikari'\]"),
        (put("me", value="both"), "me is 'both', but must be one of head, worker"),
        (put("hosts", "third", value={}), "hosts has an unknown key 'third'"),
        (put("hosts", "head", "name", value="b"), "head and worker are both named 'b'"),
        (put("hosts", "head", "user", value="a b"), "hosts.head.user cannot be 'a b'"),
        (put("hosts", "head", "home", value="~one"), "hosts.head.home must be an absolute path"),
        (put("hosts", "head", "home", value="/a/../b"), "hosts.head.home must be an absolute"),
        (put("hosts", "head", "addresses", value=[]), "hosts.head has no addresses"),
        (put("hosts", "head", "addresses", value="192.0.2.1"), "addresses must be a list"),
        (
            put("hosts", "head", "addresses", value=["-oProxyCommand=x"]),
            r"hosts.head.addresses\[0\] cannot be '-oProxyCommand=x'",
        ),
        (put("hosts", "head", "port", value=70000), "hosts.head.port is 70000, but must be 1 to"),
        (put("policy", "quiet_period", value=0), "policy.quiet_period is 0, but must be more"),
        (put("policy", "quiet_period", value="60"), "policy.quiet_period must be a number"),
        (put("policy", "quiet_period", value=float("nan")), "policy.quiet_period is nan"),
        (put("policy", "quiet_period", value=float("inf")), "policy.quiet_period is inf"),
        (put("policy", "restart_limit", value=1.5), "policy.restart_limit must be a whole number"),
        (put("policy", "quite_period", value=1), "did you mean 'quiet_period'"),
        (put("servers", value={}), "names no model server"),
        (put("servers", "none", value=description_data()["servers"]["hikari"]), "'none' cannot"),
        (put("servers", "Big", value=description_data()["servers"]["hikari"]), "'Big' cannot be"),
        (put(*DEEPSEEK, "units", value=[]), "servers.deepseek has no units"),
        (put(*DEEPSEEK, "units", 0, "unit", value="x"), r"deepseek.units\[0\].unit cannot be 'x'"),
        (put(*DEEPSEEK, "units", 0, "hots", value="head"), r"units\[0\] has an unknown key 'hots'"),
        (put(*DEEPSEEK, "ranks", 1, "container", value="--rm"), r"ranks\[1\].container cannot be"),
        (put(*DEEPSEEK, "api", "scheme", value="ftp"), "api.scheme is 'ftp'"),
        (put(*DEEPSEEK, "api", "key_file", value="key"), "api.key_file must be an absolute path"),
        (put(*DEEPSEEK, "api", "model", value="a\nb"), "api.model must be one line of text"),
        (put(*DEEPSEEK, "metrics", "path", value="metrics"), "metrics.path must start with '/'"),
        (put(*DEEPSEEK, "probe", "body", value={}), "probe.body.messages must be a list"),
        (put(*DEEPSEEK, "probe", "timeout", value=-1), "probe.timeout is -1"),
        (put(*DEEPSEEK, "context", "source", value="guess"), "context.source is 'guess'"),
        (put(*DEEPSEEK, "generation", "hash", value="abc"), "generation.hash cannot be 'abc'"),
        (put(*DEEPSEEK, "weights", "overlay", value="main"), "weights.overlay cannot be 'main'"),
        (put(*DEEPSEEK, "weights", value={}), "deepseek.weights lacks 'checkpoint'"),
        (
            put(*DEEPSEEK, "weights", "engram_files", value=[{"pattern": "*", "count": 0}]),
            r"engram_files\[0\].count is 0, but must be 1 or more",
        ),
        (put(*DEEPSEEK, "accept_dry_run", value="yes"), "deepseek.accept_dry_run cannot be 'yes'"),
        (put(*DEEPSEEK, "expect_drafts", value=1), "expect_drafts must be true or false, not 1"),
        (put(*DEEPSEEK, "weights", "rank", value=1), "weights has an unknown key 'rank'"),
        (
            put(*DEEPSEEK, "commands", "stop", "host", value="worker"),
            "commands.stop.host must be head",
        ),
        (put(*DEEPSEEK, "commands", "stop", "argv", value=[]), "stop.argv must name a program"),
        (
            put("servers", "hikari", "keepers", 0, "restore", value="always"),
            r"hikari.keepers\[0\].restore is 'always', but must be one of as_found, never",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(change: Change, words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        describe(change)


@pytest.mark.parametrize("data", [None, 3, "text", [], [1], b"x"])
def test_something_else_than_a_mapping(data: object) -> None:
    with pytest.raises(DescriptionError, match="the pair description"):
        parse(data)


class TestLoad:
    def test_reads_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "pair.json"
        path.write_text(json.dumps(description_data()))
        assert load(path) == describe()

    def test_a_host_that_is_not_set_up(self, tmp_path: Path) -> None:
        path = tmp_path / "pair.json"
        with pytest.raises(DescriptionError, match=r"not set up yet. Run the playbook") as raised:
            load(path)
        assert str(path) in str(raised.value)
        assert raised.value.exit is Exit.BAD_INPUT

    @pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"\x00" * 40])
    def test_a_broken_file_is_named(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "pair.json"
        path.write_bytes(content)
        with pytest.raises(DescriptionError, match="cannot be read") as raised:
            load(path)
        assert str(path) in str(raised.value)


Place = tuple[str | int, ...]


def places(data: Any, path: Place = ()) -> Iterator[Place]:
    """Every key and index of a nested value."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*path, key)
            yield from places(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield (*path, index)
            yield from places(value, (*path, index))


PLACES = list(places(description_data()))
KEYS = [path for path in PLACES if isinstance(path[-1], str)]

garbage = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=5),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=5)), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), st.integers(), max_size=3),
    st.just(object()),
)


def changed(path: Place, act: Callable[[Any, Any], None]) -> dict[str, Any]:
    data = copy.deepcopy(description_data())
    parent: Any = data
    for key in path[:-1]:
        parent = parent[key]
    act(parent, path[-1])
    return data


def nearest_key(path: Place) -> str:
    return next(str(key) for key in reversed(path) if isinstance(key, str))


def parses_or_names(data: object, *names: str) -> None:
    """Nothing but a DescriptionError may come out, and it must say where to look."""
    try:
        parse(data)
    except DescriptionError as error:
        assert any(name in str(error) for name in names), str(error)


@pytest.mark.parametrize("path", KEYS, ids=str)
def test_any_missing_key_is_optional_or_named(path: Place) -> None:
    parses_or_names(changed(path, lambda parent, key: parent.pop(key)), nearest_key(path))


@pytest.mark.parametrize("path", KEYS, ids=str)
def test_any_typo_is_named(path: Place) -> None:
    def misspell(parent: Any, key: Any) -> None:
        parent[f"{key}x"] = parent.pop(key)

    # A model server may have any name, and the body of a probe belongs to the engine.
    data = changed(path, misspell)
    if "body" in path[:-1] or path[:-1] == ("servers",):
        parses_or_names(data, nearest_key(path))
    else:
        with pytest.raises(DescriptionError, match=nearest_key(path)):
            parse(data)


@given(path=st.sampled_from(PLACES), value=garbage)
def test_any_garbage_parses_or_is_named(path: Place, value: object) -> None:
    def overwrite(parent: Any, key: Any) -> None:
        parent[key] = value

    parses_or_names(changed(path, overwrite), nearest_key(path))
