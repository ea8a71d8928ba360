from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.select import select, sizes
from generator.variant import Variant


def variant(side: int, layout: str = "nt") -> Variant:
    return Variant("fast", "gemm", "bf16", layout, 16, (("tile", (side, side, 32)),))


A, B, C, OTHER = variant(16), variant(32), variant(64), variant(16, "nn")
VARIANTS = {v.name: v for v in (A, B, C, OTHER)}
SIZES = dict.fromkeys(VARIANTS, 100)


def times(a: float, b: float, c: float) -> dict[str, float]:
    return {A.name: a, B.name: b, C.name: c}


def test_it_drops_what_costs_least_and_says_so() -> None:
    found = select(VARIANTS, [times(1, 1.01, 2), times(3, 2, 2.5)], SIZES, 1.02)
    assert [drop.name for drop in found.drops] == [C.name, A.name]
    assert [drop.regret.max for drop in found.drops] == [1.0, 1.01]
    assert set(found.kept) == {B.name, OTHER.name}
    assert (found.unmeasured, found.bytes) == ((OTHER.name,), 200)


def test_a_bound_of_one_keeps_every_winner() -> None:
    found = select(VARIANTS, [times(1, 1.01, 2), times(3, 2, 2.1)], SIZES, 1.0)
    assert [drop.name for drop in found.drops] == [C.name]


def test_the_size_wins_over_the_regret() -> None:
    found = select(VARIANTS, [times(1, 5, 9), times(9, 1, 5), times(5, 9, 1)], SIZES, 1.02, most_bytes=300)
    assert (len(found.drops), found.bytes) == (1, 300)
    assert found.regret is not None
    assert found.regret.max == 5


def test_what_was_covered_stays_covered() -> None:
    found = select(VARIANTS, [times(1, 1, 1) | {OTHER.name: 5.0}], SIZES, 9.0)
    assert len(found.kept) == 2
    assert OTHER.name in found.kept
    assert select(VARIANTS, [times(1, 1, 1)], SIZES, 9.0, needed=[A.name]).kept.count(A.name) == 1


_us = st.floats(1, 10)


@given(st.lists(st.builds(times, _us, _us, _us), min_size=1, max_size=5), st.floats(1, 3))
def test_the_bound_holds(problems: list[dict[str, float]], bound: float) -> None:
    found = select(VARIANTS, problems, SIZES, bound)
    assert found.regret is not None
    assert found.regret.geomean <= bound + 1e-4
    assert set(found.kept) | {drop.name for drop in found.drops} == set(VARIANTS)


def test_sizes_are_shares_of_the_image(tmp_path: Path) -> None:
    for arch, count in (("sm_90a", 300), ("sm_80", 60)):
        (tmp_path / arch).mkdir()
        (tmp_path / arch / "fast_bf16_nt.fatbin").write_bytes(bytes(count))
    assert sizes(VARIANTS.values(), tmp_path) == {A.name: 120, B.name: 120, C.name: 120, OTHER.name: 0}
    assert set(sizes(VARIANTS.values(), None).values()) == {0}


@pytest.mark.parametrize("problems", [[], [{"gone": 1.0}]])
def test_nothing_is_dropped_where_nothing_was_measured(problems: Any) -> None:
    found = select(VARIANTS, problems, SIZES, 1.02)
    assert (found.drops, found.regret, set(found.unmeasured)) == ((), None, set(VARIANTS))
