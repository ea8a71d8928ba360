"""The memo of Plans: bounded, and what is given up stays counted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.runtime import simulated
from tests.runtime.simulated import H200, NVRTC, problem
from tests.runtime.world import STREAM, Params, World, world  # noqa: F401
from tilery import background, memo, plan, policy, trace, trace_file
from tilery.dispatch import choose
from tilery.memo import Memo
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.stats import reset, stats


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    reset()
    monkeypatch.setattr(memo, "MOST", 3)


def call(times: int, m: int, layout: str = "nt") -> None:
    made = plan_for(problem(m=m, layout=layout), 0)
    for _ in range(times):
        made.launch(Params(), STREAM)


def kept() -> list[int]:
    return [key[0].m for key in plan._memory.plans]


def test_the_oldest_are_given_up_and_made_again(world: World) -> None:  # noqa: F811
    for m in (16, 32, 48, 64, 16):
        call(2, m)
    assert kept() == [48, 64, 16]
    assert len(world.launches) == 10
    report = stats()
    assert (report["calls"], report["plans"]) == ({"model": 10}, {"model": 5})
    assert report["memo"] == {"hits": 5, "misses": 5}


def test_uncovered_problems_stay_known(world: World) -> None:  # noqa: F811
    policy.use(Policy(jit="off"))
    for m in (16, 32, 48, 64, 80):
        call(m, m, layout="tt")
    assert kept() == [48, 64, 80]
    assert {row["problem"]["m"]: row["calls"] for row in stats()["uncovered"]} == {m: m for m in (16, 32, 48, 64, 80)}


def test_a_swap_reports_what_serves_now(world: World) -> None:  # noqa: F811
    policy.use(Policy(jit="background"))
    call(3, 16, layout="tt")
    assert background.workers.wait(60)
    call(2, 16, layout="tt")
    (row,) = stats()["uncovered"]
    assert row["calls"] == 5
    assert row["miss"] == plan_for(problem(m=16, layout="tt"), 0).decision.miss
    assert stats()["calls"] == {"fallback": 3, "jit": 2}


def test_a_trace_has_the_calls_of_what_was_given_up(world: World, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "trace.jsonl"
    policy.use(Policy(trace=file))
    for m in (16, 32, 48, 64, 80, 16):
        call(2, m)
    trace.flush()
    assert trace_file.read(file).problems == {problem(m=m): 4 if m == 16 else 2 for m in (16, 32, 48, 64, 80)}
    call(1, 16)
    trace.flush()
    assert trace_file.read(file).problems[problem(m=16)] == 5


def test_threads_that_ask_for_more_than_is_kept(world: World) -> None:  # noqa: F811
    def work(first: int) -> None:
        for i in range(40):
            call(1, 16 * (1 + (first + i) % 7))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept()) == 3
    assert len(world.launches) == 160


def test_the_reference_has_a_place_too() -> None:
    plans: Memo[int, plan.Plan] = Memo()
    for key in range(5):
        plans.keep(key, None)
    assert list(plans) == [2, 3, 4]


def test_decisions_alike_share_what_was_rejected() -> None:
    """25 KB of a Decision that was 31 KB large."""
    pack = simulated.pack()
    one, other = (choose(problem(m=m), H200, pack, Policy(), toolchain=lambda: NVRTC) for m in (16, 32))
    assert one.rejections is other.rejections
    assert one.rejections
