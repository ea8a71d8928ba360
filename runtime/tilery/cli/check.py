"""A result against a float64 product of NumPy's, within the componentwise bound; large ones on a sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .. import reference
from .problems import Array, DemoProblem, Operands

# Up to so many elements of A and B the whole result is compared; beyond, where sampled rows and columns meet, as
# float64 copies of the whole would take seconds.
WHOLE_ELEMENTS = 1 << 22
SAMPLED_ROWS, SAMPLED_COLUMNS = 64, 256


class Comparison(NamedTuple):
    """How far a result is from the right one."""

    ratio: float
    """The largest error as a part of what is allowed; inf for a NaN or Inf that is none in truth."""
    elements: int
    """How many were compared."""

    @property
    def ok(self) -> bool:
        """Whether every element is within the bound."""
        return self.ratio <= 1.0


def _sample(rng: np.random.Generator, size: int, count: int) -> Array:
    """Indices in order; the first and the last are always there."""
    if size <= count:
        return np.arange(size)
    inner = rng.choice(np.arange(1, size - 1), count - 2, replace=False)
    return np.sort(np.concatenate([[0, size - 1], inner]))


def compare(case: DemoProblem, data: Operands, got: Array, rng: np.random.Generator) -> Comparison:
    """Compare a result with NumPy's float64, which shares no code with the reference behind `tilery.gemm`."""
    rows, columns = np.arange(case.m), np.arange(case.n)
    if data.a.size + data.b.size > WHOLE_ELEMENTS:
        rows, columns = _sample(rng, case.m, SAMPLED_ROWS), _sample(rng, case.n, SAMPLED_COLUMNS)
    a = (data.a.T if case.layout[0] == "t" else data.a)[rows]
    b = (data.b.T if case.layout[1] == "t" else data.b)[:, columns]
    bias = None if data.bias is None else data.bias[columns]
    exact = reference.decode(a) @ reference.decode(b)
    if bias is not None:
        exact += reference.decode(bias)
    activation = case.activation or "none"
    exact = reference.activate(exact, activation)
    allowed = reference.bound(
        a,
        b,
        dtype=case.dtype,
        out_dtype=case.out_dtype,
        precision=case.precision,
        bias=bias,
        activation=activation,
    )
    part = got[np.ix_(rows, columns)]
    return Comparison(reference.worst(part, exact, allowed, case.out_dtype), part.size)
