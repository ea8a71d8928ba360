"""Kernels with sizes and strides as constants: who gets one, and that nobody gets one of other sizes or strides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.simulated import problem
from tests.runtime.world import STREAM, World
from tilery import background, jit, policy, specialise
from tilery.errors import CompileError
from tilery.generator import render
from tilery.generator.expand import find
from tilery.generator.load import load
from tilery.launch import GemmParams
from tilery.plan import Plan, plan_for
from tilery.policy import Policy
from tilery.specialise import NAMES, constants_of, form_of
from tilery.stats import stats

INTEGERS = [name for name, kind in GemmParams._fields_ if name not in ("alpha", "beta", "pad")]
RUNTIME = ("a", "b", "c", "d", "bias", "alpha", "beta")


def params(m: int = 512, **changes: int) -> GemmParams:
    values = {"m": m, "n": 512, "k": 512, "batch": 1, "a_row": 512, "a_col": 1, "b_row": 1, "b_col": 512}
    return GemmParams(**values | {"d_row": 512, "d_col": 1, "out_dtype": 2} | changes)


@pytest.fixture
def seen_thrice(world: World) -> Plan:
    policy.use(Policy(specialise_after=3))
    made = plan_for(problem(), 0)
    for _ in range(3):
        made.launch(params(), STREAM)
    assert background.workers.wait(60)
    return made


def last_kernel(world: World) -> str:
    return str(world.launches[-1][0])


def test_off_by_default(world: World) -> None:
    made = plan_for(problem(), 0)
    assert made.forms is None
    for _ in range(20):
        made.launch(params(), STREAM)
    assert world.compiles == []


def test_the_call_after_the_nth_gets_its_own_kernel(world: World, seen_thrice: Plan) -> None:
    assert len({args[0] for args in world.launches}) == 1
    seen_thrice.launch(params(), STREAM)
    general, own = str(world.launches[0][0]), last_kernel(world)
    assert own.startswith(f"{general}_m512_n512_k512_batch1_a_row512_a_col1_b_row1_b_col512_d_row512_d_col1")
    assert world.launches[-1][1:8] == world.launches[0][1:8]  # the same grid, block and shared memory
    assert stats()["specialised"] == {"kernels": 1}
    assert seen_thrice.calls == 4


@pytest.mark.parametrize("name", [name for name in INTEGERS if name not in RUNTIME])
def test_another_size_or_stride_gets_the_general_kernel(world: World, seen_thrice: Plan, name: str) -> None:
    seen_thrice.launch(params(**{name: getattr(params(), name) + 1}), STREAM)
    assert last_kernel(world) == world.launches[0][0]
    seen_thrice.launch(params(), STREAM)
    assert last_kernel(world) != world.launches[0][0]


@pytest.mark.parametrize("name", RUNTIME)
def test_pointers_and_factors_are_not_constants(world: World, seen_thrice: Plan, name: str) -> None:
    seen_thrice.launch(params(**{name: 2}), STREAM)
    assert last_kernel(world) != world.launches[0][0]


values = st.fixed_dictionaries({name: st.integers(0, 3) for name in INTEGERS if name not in RUNTIME})


@settings(max_examples=200, deadline=None)
@given(values, values)
def test_equal_forms_have_equal_constants(first: dict[str, int], second: dict[str, int]) -> None:
    one, other = GemmParams(**first, a=1, alpha=2), GemmParams(**second, a=3, alpha=4)
    assert (form_of(one) == form_of(other)) == (first == second)
    if first == second:
        assert constants_of(one) == constants_of(other)
    assert constants_of(one) == tuple((name, first[name]) for name in NAMES)


def test_a_negative_stride_has_no_kernel_of_its_own(world: World) -> None:
    policy.use(Policy(specialise_after=1))
    made = plan_for(problem(), 0)
    for _ in range(3):
        made.launch(params(a_row=-512), STREAM)
    assert background.workers.wait(60)
    assert world.compiles == []


def test_a_failure_is_not_tried_again(world: World) -> None:
    policy.use(Policy(specialise_after=1))
    world.fault = lambda source, arch, v: CompileError("NVRTC failed") if v.constants else None
    made = plan_for(problem(), 0)
    for _ in range(5):
        made.launch(params(), STREAM)
        assert background.workers.wait(60)
    assert len(world.compiles) == 1
    assert len({args[0] for args in world.launches}) == 1
    assert stats()["specialised"] == {"failures": 1}
    assert stats()["rejected"] == {"NVRTC failed": 1}


def test_not_during_a_capture(world: World) -> None:
    policy.use(Policy(specialise_after=1))
    made = plan_for(problem(), 0)
    world.capturing = True
    made.launch(params(), STREAM)
    assert background.workers.wait(60)
    assert world.compiles == []
    world.capturing = False
    made.launch(params(), STREAM)
    assert background.workers.wait(60)
    assert len(world.compiles) == 1


def test_few_forms_of_a_problem_get_one(world: World) -> None:
    policy.use(Policy(specialise_after=1))
    made = plan_for(problem(), 0)
    for row in range(200):
        made.launch(params(a_row=512 + row), STREAM)
    assert background.workers.wait(60)
    assert len(world.compiles) == specialise.MAX_SPECIALISED


@pytest.mark.parametrize(("mode", "forms"), [("auto", True), ("background", True), ("off", False), ("require", False)])
def test_modes(world: World, mode: str, forms: bool) -> None:
    policy.use(Policy(mode, specialise_after=1))
    assert (plan_for(problem(), 0).forms is not None) is forms


def test_the_second_gpu_has_forms_of_its_own(world: World, seen_thrice: Plan) -> None:
    other = plan_for(problem(), 1)
    other.launch(params(), STREAM)
    assert last_kernel(world) == world.launches[0][0]


@pytest.fixture(scope="module")
def compiled() -> Iterator[tuple[str, str]]:
    """PTX of a small variant without and with constants."""
    variant = find(load(), "gemm_naive_f32_any_16x16x1").variant
    constants = constants_of(params(a_row=12345, k=777))
    assert constants is not None
    texts = []
    for one in (variant, replace(variant, constants=constants)):
        headers = render.headers(one.family)
        code = jit.compile_source(render.render(one), one.name, headers, jit.options("compute_80")).code
        assert f".entry {one.name}(".encode() in code
        texts.append(code.decode())
    yield texts[0], texts[1]


def test_constants_reach_the_code(compiled: tuple[str, str]) -> None:
    general, special = compiled
    pitch = rf"\b{12345 * 4}\b|\b12345\b"
    assert not re.search(pitch, general)
    assert re.search(pitch, special)
    reads = [len(re.findall(r"ld\.param", text)) for text in (general, special)]
    assert reads[1] <= reads[0] - 10
