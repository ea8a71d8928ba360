"""Judging a variant on a GPU made of host memory: what is right passes, each kind of wrong result has its words."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from tests.runtime.fake_cuda import run_kernel
from tests.runtime.simulated import VARIANTS
from tilery import device, examine
from tilery.examine import Outcome, cases, judge
from tilery.launch import GemmParams
from tilery.trial import Case

Mistake = Callable[[GemmParams], None]
MMA = next(name for name in VARIANTS if "mma_bf16_nt_64x64" in name and name.endswith("a16"))
SEED = 11


class Memory:
    """The driver's memory functions."""

    def __init__(self) -> None:
        self.buffers: dict[int, Any] = {}
        self.synchronized = 0

    def call(self, function: str, *args: Any) -> Any:
        return getattr(self, function)(*args)

    def cuMemAlloc(self, size: int) -> int:
        buffer = (ctypes.c_char * (size + 256))()
        address = ctypes.addressof(buffer) + -ctypes.addressof(buffer) % 256
        self.buffers[address] = buffer
        return address

    def cuMemFree(self, address: int) -> None:
        del self.buffers[address]

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuCtxSynchronize(self) -> None:
        self.synchronized += 1


class Kernel:
    """A Plan of the reference, followed by a mistake."""

    def __init__(self, case: Case, mistake: Mistake) -> None:
        self.case, self.mistake = case, mistake

    def launch(self, params: GemmParams) -> None:
        run_kernel(self.case.problem, params)
        self.mistake(params)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    made = Memory()
    monkeypatch.setattr(device, "call", made.call)
    monkeypatch.setattr(device, "current", lambda ordinal: nullcontext())
    yield made
    assert made.buffers == {}, "all memory is freed"
    assert made.synchronized == len(examine.SIZES)


def judged(name: str, mistake: Mistake) -> Outcome:
    return judge([(case, Kernel(case, mistake)) for case in cases(VARIANTS[name], SEED)], 0)


def write(address: int, bits: int) -> None:
    ctypes.c_uint16.from_address(address).value = bits


NAMES = (MMA, "gemm_naive_bf16_any_16x16x1", "gemm_naive_s8_any_16x16x1", "gemm_naive_f16_any_16x16x1")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_right_passes(memory: Memory, name: str) -> None:
    outcome = judged(name, lambda params: None)
    assert (outcome.status, outcome.cases, outcome.fault, outcome.case) == ("ok", len(examine.SIZES), "", "")
    assert outcome.error <= 1


MISTAKES: dict[str, tuple[Mistake, str]] = {
    "value": (lambda p: write(p.d, 0x4780), "times the bound"),
    "unwritten": (lambda p: write(p.d, 0xFFFF), "elements wrong, the first is nan"),
    "before the result": (lambda p: write(p.d - 2, 0), "2 bytes written outside of the result"),
}


@pytest.mark.parametrize(("mistake", "told"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_has_its_words(memory: Memory, mistake: Mistake, told: str) -> None:
    def only_in_bf16(params: GemmParams) -> None:
        if params.out_dtype == 2 and params.d_row > params.n:  # rows are padded, so that there is room before them
            mistake(params)

    outcome = judged(MMA, only_in_bf16)
    assert outcome.status == "wrong"
    assert told in outcome.fault
    assert "-> bf16" in outcome.case
    assert outcome.cases == len(examine.SIZES), "the other cases ran too"


class Idle:
    def launch(self, params: GemmParams) -> None:
        pass


def test_a_kernel_that_writes_nothing_is_wrong(memory: Memory) -> None:
    for name in (MMA, "gemm_naive_s8_any_16x16x1"):
        memory.synchronized = 0
        outcome = judge([(case, Idle()) for case in cases(VARIANTS[name], SEED)], 0)
        assert (outcome.status, outcome.error) == ("wrong", float("inf"))


def test_the_seed_is_that_of_the_data() -> None:
    first, again, other = (next(cases(VARIANTS[MMA], seed)) for seed in (1, 1, 2))
    assert np.array_equal(first.placed["a"].flat, again.placed["a"].flat)
    assert not np.array_equal(first.placed["a"].flat, other.placed["a"].flat)
