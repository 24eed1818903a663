"""What the tool remembers: replaced as a whole, and never able to stop a switch."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair import jsonfile
from spark_pair.state import PairState, load, save


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var/state.json"


FULL = PairState(
    hold={"since": 1.0, "by": "rollback", "reason": "slow"},
    keepers={"hikari": {"switch": "s1", "units": [{"host": "worker", "unit": "watchdog.timer"}]}},
    serving={"server": "hikari", "generation": None, "since": 2.0},
    suspects={"deepseek": {"since": 3.0, "failures": 1}},
)


@pytest.mark.parametrize("state", [PairState(), FULL])
def test_there_and_back(path: Path, state: PairState) -> None:
    save(state, path)
    assert load(path) == state


def test_a_new_state_replaces_the_old_one(path: Path) -> None:
    save(FULL, path)
    save(PairState(), path)
    assert load(path) == PairState()
    assert [file.name for file in path.parent.iterdir()] == ["state.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_hold_says_who_and_why(path: Path) -> None:
    state = PairState()
    state.set_hold("recovery", "deepseek did not start")
    assert state.hold is not None
    assert state.hold["by"] == "recovery"
    assert state.hold["reason"] == "deepseek did not start"
    assert state.hold["since"] > 0


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\x00" * 50, b"[]", b"null", b'{"schema": 2, "hold": {"by": "x"}}']
)
def test_anything_unreadable_is_an_empty_state(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert load(path) == PairState()


def test_a_directory_in_its_place_is_an_empty_state(path: Path) -> None:
    path.mkdir(parents=True)
    assert load(path) == PairState()


def test_no_file_is_an_empty_state(path: Path) -> None:
    assert load(path) == PairState()


def test_parts_of_another_kind_are_left_out(path: Path) -> None:
    data = {
        "schema": 1,
        "hold": "yes",
        "keepers": {"hikari": {"units": [{"unit": "x"}, 3]}, "deepseek": None, "x": {"units": 1}},
        "serving": [],
        "suspects": {"deepseek": 5, "hikari": {"failures": 1}},
        "future": 1,
    }
    jsonfile.write(path, data)
    assert load(path) == PairState(
        keepers={"hikari": {"switch": None, "units": [{"unit": "x"}]}},
        suspects={"hikari": {"failures": 1}},
    )


def test_a_write_that_fails_leaves_the_old_file_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(FULL, path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(PairState(), path)
    assert load(path) == FULL
    assert [file.name for file in path.parent.iterdir()] == ["state.json"]


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(
    st.fixed_dictionaries(
        {"schema": st.just(1)},
        optional=dict.fromkeys(("hold", "keepers", "serving", "suspects"), anything),
    )
)
def test_no_content_makes_a_state_of_another_shape(data: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.json"
        path.write_text(json.dumps(data))
        state = load(path)
    assert state.hold is None or isinstance(state.hold, dict)
    assert state.serving is None or isinstance(state.serving, dict)
    assert all(isinstance(row, dict) for known in state.keepers.values() for row in known["units"])
    assert all(isinstance(row, dict) for row in state.suspects.values())
