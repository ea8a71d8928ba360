"""Who has which policy: the process, a thread, an asynchronous task, a block."""

from __future__ import annotations

import asyncio
import doctest
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tilery
from tilery import policy
from tilery.errors import InvalidInput, UnknownName
from tilery.policy import Policy


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TILERY_JIT", raising=False)
    policy.use(None)
    yield
    policy.use(None)


@pytest.mark.parametrize("mode", policy.JIT_MODES)
def test_each_mode_by_variable_process_and_block(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("TILERY_JIT", mode)
    assert policy.current().jit == mode
    policy.use(Policy(jit="off"))
    assert policy.current().jit == "off"
    with policy.scope(jit=mode):
        assert policy.current().jit == mode
    assert policy.current().jit == "off"


def test_blocks_nest_and_an_error_ends_them() -> None:
    with policy.scope(jit="off", compile_workers=5):
        with pytest.raises(RuntimeError), policy.scope(jit="require") as inner:
            assert policy.current() is inner
            assert (inner.jit, inner.compile_workers) == ("require", 5)
            raise RuntimeError
        assert policy.current().jit == "off"
    assert policy.current() == Policy()


def test_a_block_starts_from_a_policy_that_is_given() -> None:
    with policy.scope(Policy("require"), specialise_after=3):
        assert policy.current() == Policy("require", specialise_after=3)


def test_threads_are_separate() -> None:
    inside, done = threading.Event(), threading.Event()
    seen: list[str] = []

    def other() -> None:
        inside.wait(10)
        seen.append(policy.current().jit)
        with policy.scope(jit="require"):
            done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with policy.scope(jit="off"):
        inside.set()
        assert done.wait(10)
        assert policy.current().jit == "off"
    thread.join()
    assert seen == ["auto"]


def test_asynchronous_tasks_are_separate() -> None:
    async def task(mode: str, barrier: asyncio.Barrier) -> str:
        with policy.scope(jit=mode):
            await barrier.wait()
            return policy.current().jit

    async def main() -> list[str]:
        barrier = asyncio.Barrier(len(policy.JIT_MODES))
        return await asyncio.gather(*(task(mode, barrier) for mode in policy.JIT_MODES))

    assert tuple(asyncio.run(main())) == policy.JIT_MODES


@pytest.mark.parametrize(
    ("changes", "near"), [({"jti": "off"}, "'jit'"), ({"jit": "backgroud"}, "'background'"), ({"_hash": 1}, "Known")]
)
def test_misspelt_settings_are_refused(changes: dict[str, Any], near: str) -> None:
    with pytest.raises(UnknownName, match=near), policy.scope(**changes):
        pass


@pytest.mark.parametrize(("name", "least"), policy.LEAST.items())
def test_numbers_have_a_least_value(name: str, least: int) -> None:
    Policy(**{name: least})
    with pytest.raises(InvalidInput, match=name):
        Policy(**{name: least - 1})


def test_equal_policies_share_plans_and_different_ones_do_not() -> None:
    assert hash(Policy(seeds=(Path("/a"),))) == hash(Policy(seeds=("/a",)))  # type: ignore[arg-type]
    changes: list[dict[str, Any]] = [{"jit": "off"}, {"force_variant": "x"}, {"store": None}, {"seeds": (Path("/a"),)}]
    changes += [{"numerics": "deterministic"}, {"tune": "read_only"}, {"trace": Path("/t")}, {"nvtx": True}]
    changes += [{name: least + 7} for name, least in policy.LEAST.items()]
    assert set().union(*changes) == set(policy.names())
    made = {Policy(), *(Policy(**change) for change in changes)}
    assert len(made) == len({hash(one) for one in made}) == len(changes) + 1


def test_the_public_names() -> None:
    assert tilery.policy is policy
    assert tilery.Policy is Policy


@pytest.mark.parametrize("name", ["prepare", "request"])
def test_functions_stay_functions_whatever_is_imported_first(name: str) -> None:
    code = f"import tilery.warmup, tilery.asked, tilery.plan, tilery.ops, tilery; assert callable(tilery.{name})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("module", ["policy", "asked", "warmup", "specialise", "background", "device", "jit"])
def test_examples_in_docstrings(module: str) -> None:
    assert doctest.testmod(import_module(f"tilery.{module}")).failed == 0
