"""Index arithmetic where an operand has more than 2**31 elements, in every family and alignment of bf16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tilery
from tests.gpu.compare import Epilogue, expected, fault
from tests.gpu.memory import random
from tests.gpu.pack_variants import every_variant
from tilery.reference import UNIT_TENSOR_CORE

pytestmark = pytest.mark.gpu

LIMIT = 2**31
BYTES_NEEDED = 12 * 2**30


def one_per_family() -> list[str]:
    """For each family and alignment, one variant of bf16 for B as (n, k)."""
    fitting = [v for v in every_variant() if v.dtype == "bf16" and v.layout in ("nt", "any")]
    return sorted({(v.family, v.align): v.name for v in fitting}.values())


@pytest.fixture(scope="module")
def much() -> Iterator[Any]:
    """More than 2**31 random bf16 numbers."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < BYTES_NEEDED:
        pytest.skip(f"needs {BYTES_NEEDED >> 30} GiB of free GPU memory, there are {free >> 30}")
    block = random((2**24,), torch.bfloat16)
    memory = torch.empty(LIMIT + 2**24, dtype=torch.bfloat16, device="cuda")
    # Neighbouring blocks differ, so that an index that wraps by any power of two is seen.
    for i, part in enumerate(memory.split(2**24)):
        torch.mul(block[: len(part)].roll(i), 1 + i / 256, out=part)
    yield memory
    del memory
    torch.cuda.empty_cache()


def some(size: int, *near: int) -> Any:
    """Indices at both ends, around the given ones, and between."""
    around = [i + step for i in (0, size - 1, *near) for step in (-1, 0, 1)]
    spread = torch.randint(size, (40,)).tolist()
    return torch.tensor(sorted({i for i in (*around, *spread) if 0 <= i < size}), device="cuda")


def check_part(got: Any, a: Any, b: Any) -> None:
    problem = fault(got, *expected(a, b, got.dtype, Epilogue(), unit=UNIT_TENSOR_CORE))
    assert not problem, problem


@pytest.mark.parametrize("name", one_per_family())
def test_large_a(much: Any, compiled: None, force: Callable[[str], None], name: str) -> None:
    m, n, k = 1048705, 40, 2056
    assert m * k > LIMIT
    a, b = much[: m * k].view(m, k), random((n, k), torch.bfloat16).t()
    force(name)
    got = tilery.gemm(a, b)
    rows = some(m, LIMIT // k, LIMIT // k // 2)
    check_part(got[rows], a[rows], b)


@pytest.mark.parametrize("name", one_per_family())
def test_large_b(much: Any, compiled: None, force: Callable[[str], None], name: str) -> None:
    m, n, k = 24, 1048712, 2056
    a, b = random((m, k), torch.bfloat16), much[: n * k].view(n, k).t()
    force(name)
    got = tilery.gemm(a, b)
    columns = some(n, LIMIT // k, LIMIT // k // 2)
    check_part(got[:, columns], a, b[:, columns])


@pytest.mark.parametrize("name", one_per_family())
def test_large_result(much: Any, compiled: None, force: Callable[[str], None], name: str) -> None:
    m, n, k = 65601, 32800, 64
    assert m * n > LIMIT
    a, b = much[: m * k].view(m, k), much[-n * k :].view(n, k).t()
    force(name)
    got = tilery.gemm(a, b)
    rows, columns = some(m, LIMIT // n, LIMIT // n // 2), some(n)
    check_part(got[rows][:, columns], a[rows], b[:, columns])


@pytest.mark.parametrize("name", one_per_family())
def test_large_strides(much: Any, compiled: None, force: Callable[[str], None], name: str) -> None:
    """Few elements, far apart: rows in one call, batches in another."""
    n, k = 48, 136
    b = random((n, k), torch.bfloat16).t()
    force(name)
    rows = much.as_strided((3, k), (LIMIT // 2, 1), 8)
    check_part(tilery.gemm(rows, b), rows, b)
    batches = much.as_strided((2, 70, k), (LIMIT + 1024, k, 1))
    check_part(tilery.gemm(batches, b.expand(2, k, n)), batches, b)
