"""CUDA graphs: a warmed call is captured and replays right; a cold one is refused without harm to the capture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilery
from tests.gpu.compare import Epilogue, check
from tests.gpu.memory import random
from tilery import image
from tilery.errors import UnsupportedProblem

pytestmark = pytest.mark.gpu


def refill(*tensors: Any) -> None:
    for tensor in tensors:
        tensor.copy_(random(tuple(tensor.shape), tensor.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_a_warmed_call_replays(dtype: Any) -> None:
    a, b = random((130, 96), dtype), random((96, 72), dtype)
    warm = tilery.gemm(a, b, activation="relu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = tilery.gemm(a, b, activation="relu")
        tilery.gemm(a, b, activation="relu", out=warm)
    for _ in range(3):
        refill(a, b)
        made.zero_()
        warm.zero_()
        graph.replay()
        for got in (made, warm):
            check(got, a, b, Epilogue(activation="relu"))


def test_a_chain_of_layers_replays() -> None:
    x, first, second = (random(s, torch.float32) for s in ((3, 40, 64), (128, 64), (32, 128)))
    tilery.linear(tilery.linear(x, first, activation="silu"), second)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hidden = tilery.linear(x, first, activation="silu")
        got = tilery.linear(hidden, second)
    refill(x, first, second)
    graph.replay()
    check(hidden, x, first.t(), Epilogue(activation="silu"))
    check(got, hidden, second.t())


def test_a_cold_call_is_refused_and_the_capture_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = random((130, 96), torch.float16), random((96, 72), torch.float16)
    cold_a, cold_b = random((131, 97), torch.float16), random((97, 71), torch.float16)
    out = tilery.gemm(a, b)
    untouched = torch.full((131, 71), float("nan"), dtype=torch.float16, device="cuda")
    # As in a process that has not loaded any kernel yet; the plan of the warmed call stays.
    monkeypatch.setattr(image, "_kernels", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tilery.gemm(a, b, out=out)
        with pytest.raises(UnsupportedProblem, match="captured"):
            tilery.gemm(cold_a, cold_b, out=untouched)
        tilery.gemm(a, b, out=out)
    refill(a, b)
    out.zero_()
    graph.replay()
    check(out, a, b)
    assert bool(untouched.isnan().all())
    # What was refused during the capture is served after it.
    check(tilery.gemm(cold_a, cold_b), cold_a, cold_b)
