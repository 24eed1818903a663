"""The simulated pair's Hub: what is made outside for the service on the head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulated_pair import hub
from simulated_pair.outer import PairError


def test_what_it_serves_is_made_outside_and_found_again(tmp_path: Path) -> None:
    wanted = hub.Wanted(size=1 << 20, xet=True)
    hub.make_content(tmp_path / "content", wanted)
    assert list((tmp_path / "content" / "cas").rglob("default.*"))
    known = json.loads((tmp_path / "content" / "xet.json").read_text())
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert times
    hub.make_content(tmp_path / "content", wanted)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert json.loads((tmp_path / "content" / "xet.json").read_text()) == known


def test_an_overlay_of_other_types_is_another_content(tmp_path: Path) -> None:
    usual, other = hub.Wanted(size=1 << 20), hub.Wanted(size=1 << 20, overlay_dtypes_differ=True)
    assert usual.content != other.content
    sizes = []
    for wanted in (usual, other):
        hub.make_content(tmp_path / wanted.content, wanted)
        (file,) = (tmp_path / wanted.content).rglob("exl3_wo_b_*.safetensors")
        sizes.append(file.stat().st_size)
    assert sizes[0] < sizes[1]


def test_what_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "content").write_text("in the way")
    with pytest.raises(PairError, match="could not be made"):
        hub.make_content(tmp_path / "content", hub.Wanted())


@pytest.mark.parametrize("text", ["", "[]", "no json"])
def test_accounts_that_make_no_sense_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "accounts.json"
    path.write_text(text)
    with pytest.raises(PairError, match=r"accounts\.json"):
        hub.read_accounts(path)
    with pytest.raises(PairError, match="nothing"):
        hub.read_accounts(tmp_path / "nothing")
