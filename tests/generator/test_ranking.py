from __future__ import annotations

import doctest
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator import ranking
from generator.ranking import best, buckets, exact, merge, regret
from generator.records import Gpu, Key, Record, Time

NEW = Gpu("New", (9, 0), 132, 60, 4800)
OLD = Gpu("Old", (8, 0), 108, 40, 2039)
KEY = Key("gemm", "bf16", "nt", 16, 8, 64, 64, 1, "bf16", "")
HASHES = {name: f"{name * 12}{'0' * 52}" for name in "abcdef"}


def record(times: dict[str, float], gpu: Gpu = NEW, hash_of: str = "", **changes: Any) -> Record:
    timed = {name: Time(us, 0.0, (hash_of or name[0]) * 12, 2) for name, us in times.items()}
    return Record("here", gpu, "13.0", "580", 0, KEY._replace(**changes), timed)


def first(key: Key, names: Any) -> str:
    """A model that likes the first name."""
    return min(names)


def test_merge_keeps_the_later_time_and_silicons_apart() -> None:
    taken = [record({"a": 2.0, "b": 3.0}), record({"a": 4.0}, NEW._replace(name="New too")), record({"a": 1.0}, OLD)]
    merged = merge(taken, lambda gpu: {"a", "b"}, HASHES)
    assert merged.times == {NEW: {KEY: {"a": 4.0, "b": 3.0}}, OLD: {KEY: {"a": 1.0}}}
    assert not merged.dropped


def test_merge_drops_time_by_time_and_counts() -> None:
    taken = [
        record({"a": 1.0, "b": 2.0, "gone": 1.0}),
        record({"c": 1.0}, hash_of="d"),
        record({"c": 1.0, "a": 2.0}, m=9),
    ]
    merged = merge(taken, lambda gpu: {"a", "c"} if gpu == NEW else set(), HASHES)
    assert merged.times == {NEW: {KEY: {"a": 1.0}, KEY._replace(m=9): {"c": 1.0, "a": 2.0}}}
    assert merged.dropped == {
        "of variants that nothing declares": 1,
        "of variants that have changed since": 1,
        "of variants that this build does not have": 1,
    }


def test_the_fallback_counts_alone_only_where_it_beat_all_that_was_measured() -> None:
    """Else it would stand alone, and answer, wherever the faster ones are not in the build."""
    taken = [
        record({"a": 2.0, "f": 90.0}),
        record({"a": 2.0, "f": 1.0}, m=1),
        record({"a": 2.0, "b": 9.0, "f": 3.0}, m=2),
    ]
    merged = merge(taken, lambda gpu: {"b", "f"}, HASHES, {"f"})
    assert merged.times == {NEW: {KEY._replace(m=1): {"f": 1.0}, KEY._replace(m=2): {"b": 9.0, "f": 3.0}}}
    assert sum(merged.dropped.values()) == 4
    merged = merge(taken[:1], lambda gpu: {"a", "f"}, HASHES, {"f"})
    assert merged.times == {NEW: {KEY: {"a": 2.0, "f": 90.0}}}


def test_inside_the_noise_the_models_choice_wins() -> None:
    assert best(KEY, {"b": 1.0, "a": 1.005, "c": 2.0}, first) == ("a", "b", "c")
    assert best(KEY, {"b": 1.0, "a": 1.05, "c": 2.0}, first) == ("b", "a", "c")
    assert exact({KEY: {"b": 1.0, "a": 1.05}}, first) == {KEY: (("b", 1.0), ("a", 1.05))}


def group(*measured: dict[str, float]) -> dict[Key, dict[str, float]]:
    return {KEY._replace(m=5 + i): times for i, times in enumerate(measured)}


def test_a_bucket_serves_where_it_is_better_than_the_model() -> None:
    times = group({"a": 1.5, "b": 1.0}, {"a": 1.4, "b": 1.0}, {"a": 1.0, "b": 1.04})
    rows, transfer = buckets(NEW, times, first)
    assert rows == [("gemm", "bf16", "nt", 16, 8, 64, 64, str(NEW), ("b", "a"))]
    assert transfer == (3, pytest.approx(math.prod([1, 1, 1.04]) ** (1 / 3), abs=1e-4), 1.04, 1.04)


@pytest.mark.parametrize(
    "measured",
    [
        [{"a": 1.5, "b": 1.0}] * 2,  # too few
        [{"a": 1.0, "b": 1.5}] * 3,  # the model is as good
        [{"a": 1.009, "b": 1.0}] * 3,  # within the noise
        [{"a": 1.5, "b": 1.0}, {"a": 1.5, "b": 1.0}, {"a": 1.0, "b": 1.1}],  # bad for one of its own
        [
            {"a": 1.5, "b": 1.0},
            {"a": 1.5, "c": 1.0},
            {"a": 1.5, "d": 1.0},
        ],  # nothing but the model's was measured on all
    ],
)
def test_other_buckets_are_left_to_the_model(measured: list[dict[str, float]]) -> None:
    assert buckets(NEW, group(*measured), first) == ([], None)


def test_buckets_keep_dtype_layout_and_align_apart() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"dtype": "f16"},
        {"layout": "nn"},
        {"align": 1},
        {"n": 65},
        {"k": 65},
        {"m": 1000},
    ]
    times = {
        KEY._replace(**{"m": 5 + i} | change) if "m" not in change else KEY._replace(m=1000 + i): {"a": 2.0, "b": 1.0}
        for change in changes
        for i in range(3)
    }
    rows, _ = buckets(NEW, times, first)
    assert len(rows) == len({row[:7] for row in rows}) == len(changes)


_times = st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 1e4), min_size=1)
_problems = st.dictionaries(st.tuples(st.integers(1, 20), st.integers(1, 3)), _times, min_size=1, max_size=12)


@given(_problems, st.randoms())
def test_rows_do_not_depend_on_order(problems: dict[tuple[int, int], dict[str, float]], random: Any) -> None:
    listed = [(KEY._replace(m=m, batch=batch), us) for (m, batch), us in problems.items()]
    shuffled = dict(random.sample(listed, len(listed)))
    assert buckets(NEW, dict(listed), first) == buckets(NEW, shuffled, first)


@given(st.lists(st.floats(1, 100), min_size=1))
def test_regret_is_ordered(values: list[float]) -> None:
    found = regret(values)
    assert found.problems == len(values)
    assert 1 <= found.geomean <= found.max + 1e-3
    assert found.p90 <= found.max == round(max(values), 4)
    assert sum(value > found.p90 + 1e-4 for value in values) <= len(values) // 10


def test_examples() -> None:
    assert doctest.testmod(ranking).failed == 0
