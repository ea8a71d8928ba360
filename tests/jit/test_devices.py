"""Several GPUs in one process: each is looked at by itself and gets code that runs on it."""

from __future__ import annotations

import pytest

from tests.runtime.simulated import DEVICES, problem
from tests.runtime.world import World
from tilery import device, image, plan, policy
from tilery.errors import PackError
from tilery.plan import plan_for
from tilery.policy import Policy

MACHINE = [(9, 0), (8, 0), (12, 1), (7, 5), (8, 9), (13, 0), (9, 0)]
IMAGES = ["sm_90a", "sm_80", "sm_120f", "compute_75", "sm_80", "compute_80", "sm_90a"]
TARGETS = ["sm_90a", "sm_80", "sm_120f", "sm_75", "sm_89", "compute_121", "sm_90a"]


@pytest.fixture(autouse=True)
def machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "info", lambda ordinal: DEVICES[MACHINE[ordinal]])


@pytest.mark.parametrize("reverse", [False, True])
def test_each_gpu_gets_the_image_that_serves_it(world: World, reverse: bool) -> None:
    ordinals = range(len(MACHINE))
    found = {}
    for ordinal in reversed(ordinals) if reverse else ordinals:
        chosen = plan_for(problem(dtype="f32"), ordinal).decision
        found[ordinal] = chosen.arch
        assert image.serves(chosen.arch, MACHINE[ordinal])
        assert chosen.variant.shared_bytes <= DEVICES[MACHINE[ordinal]].shared_bytes
    assert [found[ordinal] for ordinal in ordinals] == IMAGES


def test_each_gpu_gets_code_compiled_for_it(world: World) -> None:
    policy.use(Policy("require"))
    made = [plan_for(problem(dtype="f32", layout="tt"), ordinal).decision for ordinal in range(len(MACHINE))]
    assert [one.arch for one in made] == TARGETS
    assert {one.source for one in made} == {"jit"}
    assert {arch for arch, _ in world.compiles} == set(TARGETS)


def test_what_fails_on_one_gpu_still_serves_the_others(world: World) -> None:
    world.fault = lambda source, arch, v: PackError("truncated") if arch == "sm_90a" else None
    assert plan_for(problem(), 0).decision.arch == "compute_80"
    world.fault = lambda source, arch, v: None
    assert plan_for(problem(), 6).decision.arch == "sm_90a"
    assert plan_for(problem(513), 0).decision.arch == "compute_80"


def test_each_gpu_decides_by_its_own_numbers() -> None:
    names = [plan_for(problem(512, 512, 512), ordinal).decision.ranked for ordinal in (0, 2)]
    assert names[0] != names[1]
    assert plan.decide(problem(), DEVICES[9, 0], plan.builtin(), Policy()).device.cc == (9, 0)
