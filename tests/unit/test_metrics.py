"""Reading metrics: sums over label sets, and "missing" never taken for zero."""

from __future__ import annotations

import math
import string
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_pair.description import Metrics
from spark_pair.metrics import Load, load_from_dict, read_load, totals

VLLM = r"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen"} 2.0
vllm:num_requests_running{engine="1",model_name="a \"quoted\" {brace} \\ name"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="qwen"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:generation_tokens_total{engine="0",model_name="qwen"} 1.2345e+06
vllm:request_success_total{finished_reason="stop",model_name="qwen"} 3.0
vllm:request_success_total{finished_reason="length",model_name="qwen"} 1.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="qwen"} 4.0
"""
VLLM_NAMES = Metrics(
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    progress=("vllm:generation_tokens_total", "vllm:request_success_total"),
)

TENSORFOLD = """tensorfold:num_requests_running 1
tensorfold:num_requests_waiting 4
tensorfold:generation_tokens_total 991
"""
TENSORFOLD_NAMES = Metrics(
    "tensorfold:num_requests_running",
    "tensorfold:num_requests_waiting",
    progress=("tensorfold:generation_tokens_total",),
)


class TestBothFamilies:
    def test_labels_with_quotes_and_braces(self) -> None:
        assert read_load(VLLM, VLLM_NAMES) == Load(3.0, 0.0, (1234500.0, 4.0))

    def test_plain_integers_without_labels(self) -> None:
        assert read_load(TENSORFOLD, TENSORFOLD_NAMES) == Load(1.0, 4.0, (991.0,))

    def test_the_other_familys_names_are_unknown(self) -> None:
        assert read_load(TENSORFOLD, VLLM_NAMES) == Load()

    def test_a_longer_name_is_another_metric(self) -> None:
        text = "vllm:num_requests_waiting_by_reason 7\nvllm:num_requests_running 0\n"
        assert read_load(text, VLLM_NAMES).waiting is None

    @pytest.mark.parametrize(
        "line",
        [
            "gauge 3",
            "gauge 3.0",
            "gauge\t3",
            "gauge{} 3",
            'gauge{a="1"}   3',
            'gauge{a="1",} 3 1700000000000',
            "gauge 3 -1",
            "gauge 3 ",
            "gauge 3\r",
        ],
    )
    def test_ways_to_write_a_sample(self, line: str) -> None:
        assert totals(f"{line}\n") == {"gauge": 3.0}


class TestUnknownIsNeverZero:
    @pytest.mark.parametrize("text", ["", "\n", "<html>502</html>", "# TYPE gauge gauge\n", "x"])
    def test_nothing_readable(self, text: str) -> None:
        load = read_load(text, TENSORFOLD_NAMES)
        assert load == Load()
        assert not load.known
        assert not load.idle

    def test_one_gauge_missing(self) -> None:
        load = read_load("tensorfold:num_requests_running 0\n", TENSORFOLD_NAMES)
        assert load.running == 0
        assert load.waiting is None
        assert not load.known
        assert not load.idle

    @pytest.mark.parametrize("value", ["NaN", "nan", "-", "unknown", "0x0"])
    def test_one_unreadable_sample_makes_the_whole_sum_unknown(self, value: str) -> None:
        text = f'gauge{{engine="0"}} 0\ngauge{{engine="1"}} {value}\nother 1\n'
        assert totals(text) == {"other": 1.0}

    def test_a_sum_that_is_no_number_is_unknown(self) -> None:
        assert totals("gauge +Inf\ngauge -Inf\n") == {}

    def test_progress_needs_every_counter(self) -> None:
        text = "vllm:generation_tokens_total 5\n"
        assert read_load(text, VLLM_NAMES).progress is None

    def test_no_counters_configured_is_no_progress_known(self) -> None:
        names = Metrics("tensorfold:num_requests_running", "tensorfold:num_requests_waiting")
        assert read_load(TENSORFOLD, names) == Load(1, 4, None)


class TestLoad:
    @pytest.mark.parametrize(
        ("load", "idle"),
        [
            (Load(0, 0), True),
            (Load(0, 0, (3.0,)), True),
            (Load(1, 0), False),
            (Load(0, 1), False),
            (Load(None, 0), False),
            (Load(0, None), False),
            (Load(), False),
            (Load(math.nan, 0), False),
        ],
    )
    def test_idle_only_when_both_gauges_are_zero(self, load: Load, idle: bool) -> None:
        assert load.idle is idle

    def test_words(self) -> None:
        assert Load(2, 0).words() == "2 running, 0 waiting"
        assert Load(None, 3).words() == "running unknown, 3 waiting"

    @pytest.mark.parametrize("load", [Load(), Load(1, 2, (3.0, 4.0)), Load(0, 0, ())])
    def test_there_and_back(self, load: Load) -> None:
        assert load_from_dict(load.as_dict()) == load

    def test_nothing_read_is_unknown(self) -> None:
        assert load_from_dict(None) == Load()
        assert load_from_dict({}) == Load()
        assert load_from_dict({"running": "0", "waiting": [], "progress": "x"}) == Load()


labels = st.dictionaries(
    st.text(string.ascii_lowercase, min_size=1, max_size=4),
    st.text(string.printable.translate({ord(c): None for c in "\n\r\x0b\x0c"}), max_size=12),
    max_size=3,
)
samples = st.lists(
    st.tuples(
        st.sampled_from(["a:running", "a:waiting", "b_total"]),
        labels,
        st.integers(min_value=0, max_value=10**6),
    ),
    max_size=12,
)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"")


@given(samples)
def test_sums_over_any_label_sets(rows: list[tuple[str, dict[str, str], int]]) -> None:
    wanted: dict[str, float] = defaultdict(float)
    lines = []
    for name, label_set, value in rows:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in label_set.items())
        lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")
        wanted[name] += value
    assert totals("\n".join(lines)) == wanted


@given(st.one_of(st.text(), st.text('abc:_{}"\\= \n0123456789.eE+-NaInf#', max_size=200)))
def test_no_text_raises_and_no_total_is_nan(text: str) -> None:
    assert not any(math.isnan(value) for value in totals(text).values())
    read_load(text, VLLM_NAMES)
