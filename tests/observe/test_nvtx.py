"""NVTX: a range around each launch of the Plans that were made for it, and a clear word if the package is missing."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime.simulated import problem
from tests.runtime.world import STREAM, Params, World
from tilery import background, nvtx, policy
from tilery.errors import DriverError, InvalidInput
from tilery.launch import GemmParams
from tilery.plan import plan_for
from tilery.policy import Policy


class Domain:
    """What the package nvtx gives, with what happened."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.happened: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        return message

    def push_range(self, attributes: str) -> None:
        self.happened.append(f"push {attributes}")

    def pop_range(self) -> None:
        self.happened.append("pop")


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Domain:
    made = Domain("tilery")
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain={"tilery": made}.__getitem__))
    return made


def test_each_launch_is_in_a_range_with_the_variants_name(
    world: World, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = world.launch

    def launched(*args: Any) -> tuple[int]:
        domain.happened.append("launch")
        return launch(*args)

    monkeypatch.setattr(world, "launch", launched)
    policy.use(Policy(nvtx=True))
    made = plan_for(problem(), 0)
    made.launch(Params(7), STREAM)
    made.launch(Params(8), STREAM)
    assert domain.happened == [f"push {made.decision.variant.name}", "launch", "pop"] * 2
    assert (world.params, made.calls) == ([7, 8], 2)


def test_only_plans_that_were_made_for_it(world: World, domain: Domain) -> None:
    plain = plan_for(problem(), 0)
    with policy.scope(nvtx=True):
        assert plan_for(problem(), 0) is not plain
    plain.launch(Params(), STREAM)
    assert domain.happened == []
    assert type(plain._launch) is partial


def test_specialised_kernels_have_their_own_name(world: World, domain: Domain) -> None:
    policy.use(Policy(nvtx=True, specialise_after=1))
    made = plan_for(problem(), 0)
    made.launch(GemmParams(m=512), STREAM)
    assert background.workers.wait(60)
    made.launch(GemmParams(m=512), STREAM)
    assert domain.happened[-2].startswith(f"push {made.decision.variant.name}_m512_")
    assert domain.happened[-1] == "pop"


def test_a_range_ends_where_the_launch_fails(world: World, domain: Domain) -> None:
    policy.use(Policy(nvtx=True))
    made = plan_for(problem(), 0)
    world.status = 1
    with pytest.raises(DriverError):
        made.launch(Params(), STREAM)
    assert domain.happened[-1] == "pop"

    def fail(*args: Any) -> tuple[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nvtx.ranged(fail, "name")()
    assert domain.happened[-2:] == ["push name", "pop"]


def test_without_the_package(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    policy.use(Policy(nvtx=True))
    with pytest.raises(InvalidInput, match=r"pip install 'tilery\[nvtx\]'"):
        plan_for(problem(), 0)
    with policy.scope(nvtx=False):
        plan_for(problem(), 0).launch(Params(), STREAM)
    assert len(world.launches) == 1


def test_the_package_itself(world: World) -> None:
    pytest.importorskip("nvtx")
    policy.use(Policy(nvtx=True))
    made = plan_for(problem(), 0)
    made.launch(Params(7), STREAM)
    assert (made.calls, world.params) == (1, [7])
