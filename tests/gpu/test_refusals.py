"""Calls that must be refused on a GPU: a typed error, nothing launched, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilery
from tests.gpu.compare import check
from tests.gpu.memory import operand, random, result
from tilery import policy
from tilery.errors import InvalidInput, TileryError, UnknownName

pytestmark = pytest.mark.gpu

M, N, K = 48, 32, 64


def good() -> dict[str, Any]:
    f16 = torch.float16
    return {"a": random((M, K), f16), "b": random((K, N), f16), "out": result((M, N), f16, pad=2).view}


def ones(*shape: int, dtype: Any = torch.float16, device: str = "cuda") -> Any:
    return torch.ones(shape, dtype=dtype, device=device)


def shifted(view: Any) -> Any:
    """The view, one element later in memory."""
    return view.as_strided(view.shape, view.stride(), view.storage_offset() + 1)


Change = Callable[[dict[str, Any]], dict[str, Any]]
BAD: dict[str, tuple[Change, type[TileryError]]] = {
    "k differs": (lambda g: {"b": ones(K + 1, N)}, InvalidInput),
    "b transposed": (lambda g: {"trans_b": True}, InvalidInput),
    "dtypes differ": (lambda g: {"b": ones(K, N, dtype=torch.bfloat16)}, InvalidInput),
    "float64": (lambda g: {"a": ones(M, K, dtype=torch.float64)}, InvalidInput),
    "devices differ": (lambda g: {"b": ones(K, N, device="cpu")}, InvalidInput),
    "libraries differ": (lambda g: {"b": ones(K, N, device="cpu").numpy()}, InvalidInput),
    "a vector": (lambda g: {"a": ones(K)}, InvalidInput),
    "batches differ": (lambda g: {"a": ones(2, M, K), "b": ones(3, K, N)}, InvalidInput),
    "out is too small": (lambda g: {"out": g["out"][:-1]}, InvalidInput),
    "out overlaps itself": (lambda g: {"out": g["out"][:1].expand(M, N)}, InvalidInput),
    "out of another dtype": (lambda g: {"out_dtype": "float32"}, InvalidInput),
    "c of another shape": (lambda g: {"c": ones(1, N), "beta": 1}, InvalidInput),
    "c shares memory with out": (lambda g: {"c": shifted(g["out"]), "beta": 1}, InvalidInput),
    "beta without c": (lambda g: {"beta": 1}, InvalidInput),
    "c without beta": (lambda g: {"c": ones(M, N)}, InvalidInput),
    "bias of another length": (lambda g: {"bias": ones(M)}, InvalidInput),
    "bias of another dtype": (lambda g: {"bias": ones(N, dtype=torch.int32)}, InvalidInput),
    "alpha is no number": (lambda g: {"alpha": "1"}, InvalidInput),
    "alpha beyond float32": (lambda g: {"alpha": 1e39}, InvalidInput),
    "requires grad": (lambda g: {"a": ones(M, K).requires_grad_()}, InvalidInput),
    "tf32 of float16": (lambda g: {"precision": "tf32"}, InvalidInput),
    "activation": (lambda g: {"activation": "rleu"}, UnknownName),
    "precision": (lambda g: {"precision": "fast"}, UnknownName),
    "out_dtype": (lambda g: {"out": None, "out_dtype": "float8"}, UnknownName),
}


def launches() -> int:
    return sum(tilery.stats()["calls"].values())


@pytest.mark.parametrize("name", BAD)
def test_nothing_is_launched_or_written(name: str) -> None:
    change, error = BAD[name]
    call = good()
    poisoned = call["out"]
    call |= change(call)
    before = launches()
    with pytest.raises(error):
        tilery.gemm(**call)
    torch.cuda.synchronize()
    assert launches() == before
    assert bool(poisoned.isnan().all())


def test_out_that_overlaps_an_input() -> None:
    memory = torch.zeros(M * K + 10, dtype=torch.float32, device="cuda")
    a, b = memory[: M * K].view(M, K), random((K, K), torch.float32)
    before = launches()
    with pytest.raises(InvalidInput, match="out shares memory with a"):
        tilery.gemm(a, b, out=memory[10:].view(M, K))
    assert launches() == before
    assert not bool(memory.any())


def test_integer_scales() -> None:
    a, b = random((M, K), torch.int8), random((K, N), torch.int8)
    out = result((M, N), torch.int32)
    for scale in (0.5, 2**24 + 2):
        with pytest.raises(InvalidInput, match="alpha"):
            tilery.gemm(a, b, alpha=scale, out=out.view)
    with pytest.raises(InvalidInput, match="gelu"):
        tilery.gemm(a, b, activation="gelu", out=out.view)
    torch.cuda.synchronize()
    assert int(out.view.max()) < -1000


def test_a_forced_variant_that_does_not_fit() -> None:
    call = good()
    for name in ("gemm_mma_bf16_nt_nonsense", "gemm_naive_f32_any_16x16x1"):
        policy.use(replace(policy.current(), force_variant=name))
        with pytest.raises(UnknownName):
            tilery.gemm(**call)
    torch.cuda.synchronize()
    assert bool(call["out"].isnan().all())


def test_the_next_good_call_is_served() -> None:
    call = good()
    with pytest.raises(InvalidInput):
        tilery.gemm(**(call | {"beta": 2}))
    check(tilery.gemm(**call), call["a"], call["b"])
    padded = operand((M, K), torch.float16, pad=8)
    check(tilery.gemm(padded, call["b"]), padded, call["b"])
