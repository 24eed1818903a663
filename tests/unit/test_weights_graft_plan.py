"""Where tensors lie, by headers alone, and which bytes an overlay replaces."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated_pair.standins.hub.hub_standin import weights
from simulated_pair.standins.hub.hub_standin.content import WIDTHS, Tensor, write_safetensors
from spark_pair.weights.graft_plan import GraftError, plan
from spark_pair.weights.safetensors_header import Header, HeaderError, read_header

tensors = st.builds(
    Tensor,
    st.text("abc.", min_size=1, max_size=6),
    st.sampled_from(sorted(WIDTHS)),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
)


def written(folder: Path, name: str, held: Iterable[Tensor]) -> Path:
    path = folder / name
    write_safetensors(path, held)
    return path


def raw(path: Path, header: Any, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


class TestHeader:
    @settings(deadline=None, max_examples=40)
    @given(st.lists(tensors, max_size=6, unique_by=lambda one: one.name))
    def test_every_tensor_is_where_its_header_says(self, held: list[Tensor]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = written(Path(folder), "x.safetensors", held)
            header = read_header(path)
            data = path.read_bytes()
        assert header.size == len(data)
        assert set(header.tensors) == {one.name for one in held}
        for one in held:
            found = header.tensors[one.name]
            assert (found.dtype, found.shape) == (one.dtype, one.shape)
            assert found.size == math.prod(one.shape) * WIDTHS[one.dtype]
            assert 8 <= found.start <= found.start + found.size <= len(data)

    @settings(deadline=None, max_examples=40)
    @given(st.binary(max_size=64))
    def test_anything_else_is_refused_in_words(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "x")
            path.write_bytes(data)
            try:
                assert not read_header(path).tensors
            except HeaderError as error:
                assert str(error).startswith("x ")

    @pytest.mark.parametrize("cut", [-1, 1])
    def test_a_file_that_is_shorter_or_longer_is_not_whole(self, tmp_path: Path, cut: int) -> None:
        path = written(tmp_path, "x", [Tensor("a", "I16", (10,))])
        data = path.read_bytes()
        path.write_bytes(data[:cut] if cut < 0 else data + b"x")
        with pytest.raises(HeaderError, match="instead of"):
            read_header(path)

    @pytest.mark.parametrize(
        ("entry", "words"),
        [
            ({"dtype": "I16", "shape": [2], "data_offsets": [0, 2]}, "has 2 bytes, which I16"),
            ({"dtype": "I16", "shape": [1], "data_offsets": [2, 4]}, "begins at byte"),
            ({"dtype": "I16", "shape": [-1], "data_offsets": [0, 2]}, "places or a shape"),
            ({"dtype": "I16", "shape": [1]}, "cannot be read"),
            ([1], "cannot be read"),
        ],
    )
    def test_what_cannot_be_is_said(self, tmp_path: Path, entry: Any, words: str) -> None:
        with pytest.raises(HeaderError, match=words):
            read_header(raw(tmp_path / "x", {"a": entry}, b"0000"))

    def test_a_type_that_nobody_knows_is_believed(self, tmp_path: Path) -> None:
        entry = {"dtype": "I3", "shape": [8], "data_offsets": [0, 3]}
        assert read_header(raw(tmp_path / "x", {"a": entry}, b"123")).tensors["a"].size == 3


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Header]:
    folder = tmp_path_factory.mktemp("stock")
    shards = weights.checkpoint_shards(1 << 20)
    return {name: read_header(written(folder, name, held)) for name, held in shards.items()}


class TestPlan:
    def overlay(self, folder: Path, *, stock_dtypes: bool = True) -> Header:
        held = [
            one
            for layer in weights.OVERLAY_LAYERS
            for one in weights.wo_b(layer, "overlay", stock_dtypes=stock_dtypes)
        ]
        return read_header(written(folder, "overlay", held))

    def test_the_accounts_overlay_is_in_24_shards(
        self, stock: dict[str, Header], tmp_path: Path
    ) -> None:
        overlay = self.overlay(tmp_path)
        found = plan(stock, overlay, 104)
        assert (found.tensors, len(found.shards)) == (104, 24)
        assert found.size == sum(one.size for one in overlay.tensors.values())
        for path, changes in found.shards.items():
            for change, after in itertools.pairwise(changes):
                assert change.end <= after.start
            for change in changes:
                old = stock[path].tensors[change.key]
                new = overlay.tensors[change.key]
                assert (change.start, change.size, change.source) == (
                    old.start, old.size, new.start,
                )  # fmt: skip

    def test_other_types_are_counted_and_named(
        self, stock: dict[str, Header], tmp_path: Path
    ) -> None:
        overlay = self.overlay(tmp_path, stock_dtypes=False)
        with pytest.raises(
            GraftError,
            match=r"^52 of the overlay's 104 .* layers\.10\.attn\.wo_b\.suh is F32 \[128\] "
            r"instead of F16 \[128\].* and 49 more\. Set ablit_graft_method: recipe",
        ):
            plan(stock, overlay, 104)

    def test_a_tensor_in_two_shards_is_refused(self, tmp_path: Path) -> None:
        held = [Tensor("a", "I16", (4,))]
        twice = {name: read_header(written(tmp_path, name, held)) for name in ("x", "y")}
        with pytest.raises(GraftError, match="a is in x and in y"):
            plan(twice, twice["x"], 1)
