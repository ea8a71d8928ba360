"""A GEMM in Triton, as its tutorial has it, with one configuration: what its users write."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def kernel(a, b, c, m, n, k, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    steps = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, tl.cdiv(k, BK)):
        left = k - start * BK
        x = tl.load(a + rows[:, None] * am + (start * BK + steps[None, :]) * ak,
                    mask=(rows[:, None] < m) & (steps[None, :] < left), other=0.0)  # fmt: skip
        y = tl.load(b + (start * BK + steps[:, None]) * bk + columns[None, :] * bn,
                    mask=(steps[:, None] < left) & (columns[None, :] < n), other=0.0)  # fmt: skip
        total = tl.dot(x, y, total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * cm + columns[None, :] * cn, total.to(c.dtype.element_ty), mask=inside)


def gemm(a: Any, b: Any, c: Any) -> None:
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 128))
    sizes = (m, n, k, *a.stride(), *b.stride(), *c.stride())
    kernel[grid](a, b, c, *sizes, BM=128, BN=128, BK=32, num_warps=4, num_stages=3)
