"""While a CUDA graph is captured nothing is compiled or loaded, and the message has the call that helps."""

from __future__ import annotations

from typing import Any

import pytest

import tilery
from tests.runtime.simulated import problem
from tests.runtime.world import STREAM, Params, World
from tilery import plan, policy, warmup
from tilery.errors import UnsupportedProblem
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.problem import Problem
from tilery.stats import stats

CASES: list[dict[str, Any]] = [
    {},
    {"layout": "tt"},
    {"layout": "tt", "batch": 3, "bias": True, "activation": "gelu", "accumulate": True},
    {"dtype": "f32", "precision": "tf32", "out_dtype": "bf16", "align": 1},
]


@pytest.mark.parametrize("mode", policy.JIT_MODES)
@pytest.mark.parametrize("case", CASES)
def test_the_text_can_be_pasted(world: World, case: dict[str, Any], mode: str) -> None:
    policy.use(Policy(mode))
    wanted = problem(**case)
    world.capturing = True
    with pytest.raises(UnsupportedProblem) as raised:
        plan_for(wanted, 0, STREAM)
    assert world.loads == world.compiles == []
    text = str(raised.value).splitlines()[-1]
    assert str(raised.value).count("gemm_") == 1  # the kernel is named
    world.capturing = False
    report = eval(text, {"tilery": tilery})
    assert report.errors == ()
    loads = len(world.loads)
    world.capturing = True
    plan_for(wanted, 0, STREAM).launch(Params(), STREAM)
    assert len(world.loads) == loads
    assert len(stats()["captures"]) == 1


@pytest.mark.parametrize("ordinal", [0, 3])
def test_the_text_names_the_gpu_and_the_problem(ordinal: int) -> None:
    made: list[tuple[Problem, int]] = []

    class Recorder:
        Problem = Problem

        @staticmethod
        def prepare(problems: list[Problem], device: int = 0) -> None:
            made.append((problems[0], device))

    for case in CASES:
        text = plan.prepare_call(problem(**case), ordinal)
        eval(text, {"tilery": Recorder})
        assert made[-1] == (problem(**case), ordinal)


def test_a_prepared_problem_never_looks_at_the_stream(world: World) -> None:
    warmup.prepare([problem(layout="tt")])
    world.capturing = True
    plan_for(problem(layout="tt"), 0, STREAM).launch(Params(), STREAM)


def test_what_another_problem_loaded_serves_in_a_capture(world: World) -> None:
    plan_for(problem(layout="tt"), 0)
    world.capturing = True
    assert plan_for(problem(520, layout="tt"), 0, STREAM).tier == "jit"
