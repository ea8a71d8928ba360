"""The comparison: who is timed, how often, and what noise and a budget change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import pytest

from tilery.errors import DriverError
from tilery.tune import measure
from tilery.tune.measure import (
    FINAL,
    MOST_FINALISTS,
    MOST_ROUNDS,
    ROUNDS,
    Found,
    OverBudget,
    compare,
    finalists,
    launches_of,
)


class Script:
    """Candidates whose times a test says: name and number of the measurement → microseconds."""

    sets = 4

    def __init__(self, us: Callable[[str, int], float], errors: Mapping[str, float] | None = None) -> None:
        self.us, self.errors = us, errors or {}
        self.checked: list[str] = []
        self.replays: list[tuple[str, ...]] = []
        self.rounds: list[int] = []
        self.launches = 0
        self.prepared: list[str] = []
        self._count = itertools.count()

    def check(self, name: str) -> tuple[float, float]:
        self.checked.append(name)
        return self.errors.get(name, 0.5), self.us(name, next(self._count))

    def prepare(self, names: Sequence[str], launches: int) -> None:
        self.prepared, self.launches = list(names), launches

    def replay(self, names: Sequence[str], rounds: int) -> Mapping[str, Sequence[float]]:
        assert set(names) <= set(self.prepared)
        self.replays.append(tuple(names))
        self.rounds.append(rounds)
        return {name: [self.us(name, next(self._count)) for _ in range(rounds)] for name in names}


def steady(**us: float) -> Script:
    return Script(lambda name, number: us[name])


def run(script: Script, names: Sequence[str], keep: str = "", budget_us: float = math.inf) -> Found:
    return compare(script, names, keep, budget_us)


def test_the_best_are_measured_again() -> None:
    script = steady(a=100.0, b=110.0, c=200.0)
    found = run(script, "abc")
    assert script.replays == [("a", "b", "c"), ("a", "b")]
    assert script.rounds == [2, ROUNDS]
    assert {name: one.us for name, one in found.times.items()} == {"a": 100.0, "b": 110.0, "c": 200.0}
    assert not found.noisy


def test_the_hopeless_are_dropped_with_the_time_that_dropped_them() -> None:
    script = steady(a=100.0, b=400.0, c=2000.0)
    found = run(script, "abc")
    assert script.prepared == ["a"]
    assert found.times["c"].us == 2000.0
    assert found.times["b"].us == 400.0


def test_a_slow_first_launch_drops_nobody() -> None:
    """The driver may do more at a kernel's first launch in a process."""
    script = Script(lambda name, number: 5000.0 if name == "a" and number == 0 else {"a": 50.0, "b": 60.0}[name])
    found = run(script, "ab")
    assert found.times["a"].us == 50.0
    assert "a" in script.replays[-1]


def test_a_wrong_candidate_is_never_timed() -> None:
    script = Script(lambda name, number: {"a": 100.0, "b": 1.0}[name], {"b": 1.01})
    found = run(script, "ab")
    assert set(found.times) == {"a"}
    assert "1.01 times" in found.wrong["b"]
    assert script.prepared == ["a"]


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_an_error_that_is_no_number_is_wrong(error: float) -> None:
    found = run(Script(lambda name, number: 1.0, {"a": error}), "a")
    assert found.times == {}
    assert "a" in found.wrong


def test_a_fault_says_whose_it_is() -> None:
    class Faulty(Script):
        def check(self, name: str) -> tuple[float, float]:
            raise DriverError("cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")

    with pytest.raises(DriverError, match="in or after a"):
        run(Faulty(lambda name, number: 1.0), "a")


def test_finalists_are_few_and_the_default_is_one_where_it_is_close() -> None:
    coarse = {f"v{i}": 100.0 + i for i in range(10)}
    assert finalists(coarse, "") == [f"v{i}" for i in range(MOST_FINALISTS)]
    assert finalists(coarse, "v8") == [*(f"v{i}" for i in range(MOST_FINALISTS - 1)), "v8"]
    assert finalists(coarse | {"slow": 100.0 * FINAL + 1}, "slow") == finalists(coarse, "")


def test_rounds_go_on_until_they_agree() -> None:
    calm = Script(lambda name, number: 100.0)
    run(calm, "a")
    assert sum(calm.rounds[1:]) == ROUNDS
    shaky = Script(lambda name, number: 100.0 + 6 * (number % 2))
    found = run(shaky, "a")
    assert sum(shaky.rounds[1:]) == MOST_ROUNDS
    assert not found.noisy
    assert found.times["a"].spread == pytest.approx(0.06, abs=0.01)


def test_times_that_spread_are_measured_once_more_and_then_noisy() -> None:
    found = run(Script(lambda name, number: 100.0 + 40 * (number % 2)), "a")
    assert found.noisy
    first = Script(lambda name, number: 100.0 + 40 * (number % 2) * (number < 24))
    assert not run(first, "a").noisy


def test_long_rounds_are_few() -> None:
    script = steady(a=200_000.0)
    run(script, "a")
    assert script.launches == 1
    assert script.rounds[1:] == [measure.FEW_ROUNDS]


@pytest.mark.parametrize(("us", "sets"), [(1.0, 128), (5.0, 128), (40.0, 3), (300.0, 3), (1e5, 3)])
def test_graphs_are_long_enough_and_not_too_long(us: float, sets: int) -> None:
    launches = launches_of(us, sets)
    assert 1 <= launches <= measure.MAX_LAUNCHES
    assert launches >= sets or us * sets > measure.LONG_GRAPH_US
    assert launches * us >= 0.5 * measure.GRAPH_US or launches == measure.MAX_LAUNCHES


@pytest.mark.parametrize("budget_us", [3000.0, 10_000.0, 50_000.0, 200_000.0])
@pytest.mark.parametrize("us", [2.0, 30.0, 300.0])
@pytest.mark.parametrize("count", [1, 4, 20])
def test_a_budget_is_kept(budget_us: float, us: float, count: int) -> None:
    script = Script(lambda name, number: us)
    names = [f"v{i}" for i in range(count)]
    try:
        found = run(script, names, names[0], budget_us)
    except OverBudget:
        assert 2 * (count + 10) * us > budget_us * 0.02
        return
    assert found.gpu_us <= budget_us
    assert found.times[names[0]].us == us


def test_a_budget_that_is_used_up_leaves_candidates_out() -> None:
    script = Script(lambda name, number: 1000.0)
    found = run(script, [f"v{i}" for i in range(50)], "v0", 60_000.0)
    assert set(found.times) | set(found.unmeasured) == {f"v{i}" for i in range(50)}
    assert found.unmeasured
    assert "v0" in found.times


def test_a_budget_for_nothing() -> None:
    with pytest.raises(OverBudget):
        run(steady(a=1000.0, b=1000.0), "ab", "a", 1000.0)
