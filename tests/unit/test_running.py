"""A server as its running generation serves it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_pair import NEW, OLD, describe

from spark_pair import jsonfile
from spark_pair.description import Server
from spark_pair.running import as_running, form, generation_of


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """DeepSeek, wanted in a new generation while its link leads to an old one."""

    def change(data: dict[str, Any]) -> None:
        data["servers"]["deepseek"]["generation"] = {
            "hash": NEW,
            "path": str(tmp_path / "generations" / NEW),
            "current": str(tmp_path / "current"),
        }

    for name in (OLD, NEW):
        (tmp_path / "generations" / name).mkdir(parents=True)
    (tmp_path / "current").symlink_to(tmp_path / "generations" / OLD)
    return describe(change).server("deepseek")


def manifest(server: Server, **serves: Any) -> None:
    found = generation_of(server)
    assert found
    jsonfile.write(Path(found.path) / "generation.json", {"schema": 1, "serves": serves})


def test_the_old_values_hold_while_the_old_generation_runs(server: Server) -> None:
    manifest(server, port=9999, model="Old", context=1024)
    old = as_running(server)
    assert (old.api.port, old.api.model) == (9999, "Old")
    assert old.context and old.context.expect == 1024
    assert old.ports_on("head") == [9999]
    assert old.generation and old.generation.hash == OLD


def test_the_wanted_generation_is_the_description(server: Server) -> None:
    assert form(server, server.generation) is server


@pytest.mark.parametrize(
    "serves", [{}, {"port": "9999", "model": "Old", "context": 1}, {"port": 9999}]
)
def test_a_manifest_that_says_nothing_changes_nothing(
    server: Server, serves: dict[str, Any]
) -> None:
    manifest(server, **serves)
    assert as_running(server).api == server.api


@pytest.mark.parametrize("key", ["/home/ann/state/api-key", None])
def test_the_key_is_asked_for_as_it_runs_whatever_is_wanted(
    server: Server, key: str | None
) -> None:
    was = None if key else "/etc/spark-pair/secrets/deepseek.key"
    server = replace(server, api=replace(server.api, key_file=was))
    manifest(server, port=9999, model="Old", context=1024, key=key)
    expected = "/etc/spark-pair/secrets/deepseek.key" if key else None
    assert as_running(server).api.key_file == expected


def test_a_generation_that_does_not_speak_of_a_key_is_asked_as_before(server: Server) -> None:
    server = replace(server, api=replace(server.api, key_file="/a/key"))
    manifest(server, port=9999, model="Old", context=1024)
    assert as_running(server).api.key_file == "/a/key"


def test_without_a_link_nothing_runs(server: Server) -> None:
    assert server.generation
    Path(server.generation.current).unlink()
    assert generation_of(server) is None
    assert as_running(server) is server
