"""Asked: a Problem from what people say about one, without arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .dtypes import canonical_dtype
from .errors import InvalidInput, UnknownName
from .geometry import alignment
from .problem import ITEM_BYTES, OPS, OUT_DTYPES, Problem


def request(
    op: str = "gemm",
    *,
    m: int,
    n: int,
    k: int,
    dtype: Any,
    layout: str = "nn",
    batch: int = 1,
    align: int | None = None,
    out_dtype: Any = None,
    precision: str = "ieee",
    bias: bool = False,
    activation: str | None = None,
    accumulate: bool = False,
) -> Problem:
    """The Problem of a call; arguments as in `tilery.explain`.

    Raises:
        InvalidInput: a size or combination that has no meaning.
        UnknownName: an unknown op, dtype or layout; the message has the nearest ones.

    >>> request(m=64, n=64, k=20, dtype="float16", layout="nt").align
    8
    """
    if op not in OPS:
        raise UnknownName("op", op, OPS)
    short = canonical_dtype(dtype)
    if short not in OUT_DTYPES:
        raise UnknownName("dtype of inputs", short, OUT_DTYPES)
    out = canonical_dtype(out_dtype) if out_dtype is not None else OUT_DTYPES[short][0]
    problem = Problem(
        op, m, n, k, batch, short, out, layout, align or 1, precision, bias, activation or "none", accumulate
    )
    packed = alignment(*(size * ITEM_BYTES[short] for size in problem.row_lengths))
    if align is not None and align > packed:
        raise InvalidInput(
            f"align = {align} bytes, but rows of {' and '.join(map(str, problem.row_lengths))} {short} elements are "
            f"whole pieces of {packed} bytes only; leave align out to decide for packed arrays"
        )
    return problem if align is not None else replace(problem, align=packed)
