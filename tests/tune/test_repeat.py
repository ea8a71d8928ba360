"""on_repeat: what is called often is measured once, in the background, and then served by the winner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.simulated import H200, NVRTC, problem
from tests.runtime.world import STREAM, Params, World, world  # noqa: F401
from tests.tune.conftest import pack
from tilery import background, device, dispatch, local, plan, policy
from tilery.errors import DriverError
from tilery.generator.records import HASH_DIGITS, Record, Time
from tilery.lookup import record_key
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.problem import Problem
from tilery.stats import stats
from tilery.tune import online, repeat

AFTER = 5


class Measurer:
    """Measures nothing: the slowest by prediction wins."""

    def __init__(self) -> None:
        self.calls: list[tuple[Problem, int]] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None
        self.nothing = False
        self.lock = threading.Lock()

    def __call__(self, problem: Problem, ordinal: int, found: Any, settings: Policy) -> Record | None:
        with self.lock:
            self.calls.append((problem, ordinal))
            self.threads.add(threading.get_ident())
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.nothing:
            return None
        return record_of(problem)


def record_of(asked: Problem) -> Record:
    names = [one.name for one in dispatch.choose(asked, H200, pack(), Policy(), toolchain=lambda: NVRTC).ranked]
    times = {name: Time(10.0 + i, 0.0, pack().hashes[name][:HASH_DIGITS], 2) for i, name in enumerate(reversed(names))}
    return Record("here", H200.gpu, "13.0", "580", 0, record_key(asked), times)


@pytest.fixture
def measurer(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Measurer]:  # noqa: F811
    made = Measurer()
    found = pack()
    monkeypatch.setattr(plan, "builtin", lambda: found)
    monkeypatch.setattr(repeat, "builtin", lambda: found)
    monkeypatch.setattr(online, "measure", made)
    use(tmp_path)
    yield made
    assert background.workers.wait(60)


def use(folder: Path, **changes: Any) -> None:
    policy.use(Policy(**{"tune": "on_repeat", "tune_after": AFTER, "store": folder / "store"} | changes))


def call(times: int, asked: Problem | None = None) -> None:
    for _ in range(times):
        plan_for(asked or problem(), 0, STREAM).launch(Params(1), STREAM)


def tuned() -> dict[str, float]:
    assert background.workers.wait(60)
    found: dict[str, float] = stats()["tune"]
    return found


def test_the_winner_serves_after_some_calls(measurer: Measurer) -> None:
    before = plan_for(problem(), 0).decision
    call(AFTER - 1)
    assert tuned() == {}
    call(1)
    assert tuned() == {"queued": 1, "swaps": 1}
    assert measurer.calls == [(problem(), 0)]
    assert threading.get_ident() not in measurer.threads
    after = plan_for(problem(), 0).decision
    assert after.tier == "exact"
    assert after.variant.name == before.ranked[-1].name != before.variant.name
    call(10 * AFTER)
    assert tuned() == {"queued": 1, "swaps": 1}
    assert len(measurer.calls) == 1


def test_the_choice_is_that_of_the_new_record(measurer: Measurer) -> None:
    call(AFTER)
    tuned()
    us = local.times(local.store_of(policy.current()), problem(), H200.gpu, pack())
    assert us == {name: time.us for name, time in record_of(problem()).times.items()}
    expected = dispatch.choose(problem(), H200, pack(), Policy(), local=us)
    assert plan_for(problem(), 0).decision.variant == expected.variant
    plan.clear()
    assert plan_for(problem(), 0).decision.variant == expected.variant
    call(2 * AFTER)
    assert len(measurer.calls) == 1


def test_many_threads_ask_once_for_each_problem(measurer: Measurer) -> None:
    problems = [problem(m=64 * (i + 1)) for i in range(6)]
    barrier = threading.Barrier(12)

    def work() -> None:
        barrier.wait()
        for _ in range(4 * AFTER):
            for asked in problems:
                call(1, asked)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tuned() == {"queued": len(problems), "swaps": len(problems)}
    assert sorted(asked.m for asked, _ in measurer.calls) == [asked.m for asked in problems]
    assert all(plan_for(asked, 0).tier == "exact" for asked in problems)


def test_two_policies_measure_a_problem_once(measurer: Measurer, tmp_path: Path) -> None:
    plan_for(problem(), 0)
    use(tmp_path, specialise_after=100)
    plan_for(problem(), 0)
    call(AFTER)
    use(tmp_path)
    call(AFTER)
    assert tuned()["swaps"] == 2
    assert len(measurer.calls) == 1
    assert plan_for(problem(), 0).tier == "exact"


@pytest.mark.parametrize("changes", [{"tune": "off"}, {"tune": "read_only"}], ids=str)
def test_other_policies_never_measure(measurer: Measurer, tmp_path: Path, changes: dict[str, Any]) -> None:
    use(tmp_path, **changes)
    call(10 * AFTER)
    assert tuned() == {}
    assert measurer.calls == []
    assert not isinstance(plan_for(problem(), 0)._launch, repeat.Repeats)


@pytest.mark.parametrize("numerics", ["deterministic", "batch_invariant"])
def test_under_a_contract_no_other_variant_comes_in(measurer: Measurer, tmp_path: Path, numerics: str) -> None:
    use(tmp_path, numerics=numerics)
    before = plan_for(problem(), 0)
    call(10 * AFTER)
    assert tuned() == {}
    assert measurer.calls == []
    assert plan_for(problem(), 0) is before
    assert not isinstance(before._launch, repeat.Repeats)


def test_a_forced_variant_is_not_measured(measurer: Measurer, tmp_path: Path) -> None:
    use(tmp_path, force_variant="gemm_mma_bf16_nt_128x256x64_s4_a16")
    call(10 * AFTER)
    assert tuned() == {}
    assert measurer.calls == []


def test_what_was_measured_before_is_not_measured_again(measurer: Measurer) -> None:
    local.put(local.store_of(policy.current()), record_of(problem()), pack())
    call(10 * AFTER)
    assert measurer.calls == []
    assert plan_for(problem(), 0).tier == "exact"


def test_nothing_begins_in_a_capture(measurer: Measurer, world: World) -> None:  # noqa: F811
    call(1)
    world.capturing = True
    call(10 * AFTER)
    assert tuned() == {}
    assert measurer.calls == []
    world.capturing = False
    call(1)
    assert tuned() == {"queued": 1, "swaps": 1}


def test_busy_is_put_off_until_it_was_called_often_again(measurer: Measurer) -> None:
    measurer.error = online.Busy("a CUDA graph is being captured")
    call(AFTER)
    assert tuned() == {"queued": 1, "put off, a CUDA graph is being captured": 1}
    call(AFTER - 1)
    assert len(measurer.calls) == 1
    call(1)
    assert tuned()["swaps"] == 1
    assert len(measurer.calls) == 2


@pytest.mark.parametrize("error", [DriverError("cuMemAlloc", "CUDA_ERROR_UNKNOWN"), RuntimeError("anything")])
def test_a_failure_changes_nothing(measurer: Measurer, error: Exception) -> None:
    before = plan_for(problem(), 0)
    measurer.error = error
    call(10 * AFTER)
    assert tuned() == {"queued": 1, "failures": 1}
    assert plan_for(problem(), 0) is before
    assert len(measurer.calls) == 1


def test_no_record_changes_nothing(measurer: Measurer) -> None:
    before = plan_for(problem(), 0)
    measurer.nothing = True
    call(10 * AFTER)
    assert tuned() == {"queued": 1}
    assert plan_for(problem(), 0) is before


def test_counting_ends_with_the_question(measurer: Measurer) -> None:
    """The Plan that was asked for has its own launch again, also where nothing comes of it."""
    measurer.nothing = True
    made = plan_for(problem(), 0)
    assert isinstance(made._launch, repeat.Repeats)
    call(AFTER)
    tuned()
    assert not isinstance(made._launch, repeat.Repeats)
    assert made.calls == AFTER


def test_a_record_serves_all_gpus_of_its_silicon(measurer: Measurer) -> None:
    call(AFTER)
    tuned()
    assert plan_for(problem(), 1).tier == "exact"
    assert len(measurer.calls) == 1


def test_a_thread_that_still_has_the_counting_launch_asks_no_more(
    measurer: Measurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a measurement nor, at each launch, whether its stream is being captured."""
    asked: list[bool] = []
    looked: list[int] = []
    monkeypatch.setattr(device, "capturing", lambda stream, ordinal: bool(looked.append(stream)))
    counting = repeat.Repeats(lambda *args: (0,), 2, 0, lambda: asked.append(True))
    for _ in range(5):
        assert counting(STREAM, 0, 0) == (0,)
    assert asked == [True]
    assert looked == [STREAM]
