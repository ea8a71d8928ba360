"""Running the problems of ``tilery demo`` through `tilery.gemm`, on a GPU or on the CPU, and checking each result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import ops
from ..errors import TileryError
from ..host.plan import plan_for as host_plan_for
from ..plan import plan_for
from ..problem import ITEM_BYTES
from .check import Comparison, compare
from .matrix import Gpu, Matrix
from .problems import Array, DemoProblem, Operands

REPETITIONS = 20
NOTHING = Comparison(math.inf, 0)


@dataclass(frozen=True, slots=True)
class Result:
    """What running one problem gave.

    Attributes:
        case: the problem.
        variant, tier, source: of the Decision that served it; the variant is ``reference`` where the CPU
            has none.
        us: microseconds of a call.
        comparison: with the right result.
        fault: why there is no result, or "".
    """

    case: DemoProblem
    variant: str = ""
    tier: str = ""
    source: str = ""
    us: float = 0.0
    comparison: Comparison = NOTHING
    fault: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a result, and a right one."""
        return not self.fault and self.comparison.ok

    @property
    def tflops(self) -> float:
        """10**12 operations per second, two for each multiply-add."""
        return 2 * self.case.macs / self.us / 1e6 if self.us else 0.0

    @property
    def tbs(self) -> float:
        """10**12 bytes per second, each operand and the result once."""
        case = self.case
        inputs = (case.m + case.n) * case.k * ITEM_BYTES[case.dtype]
        return (inputs + case.m * case.n * ITEM_BYTES[case.out_dtype]) / self.us / 1e6 if self.us else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; an infinite error is null."""
        ratio = self.comparison.ratio
        return self.case.to_dict() | {
            "variant": self.variant,
            "tier": self.tier,
            "source": self.source,
            "us": self.us,
            "tflops": self.tflops,
            "tbs": self.tbs,
            "error": ratio if math.isfinite(ratio) else None,
            "elements": self.comparison.elements,
            "ok": self.ok,
            "fault": self.fault,
        }


Runner = Callable[[DemoProblem, np.random.Generator], Result]


def guarded(run: Runner, case: DemoProblem, rng: np.random.Generator) -> Result:
    """The Result, also where the run fails, so that the others still run."""
    try:
        return run(case, rng)
    except TileryError as error:
        return Result(case, fault=str(error))


def on_cpu(case: DemoProblem, rng: np.random.Generator) -> Result:
    """On the CPU: by the kernels, or by the reference where they cannot be loaded."""
    data = case.data(rng)
    a, b, bias = _host_arrays(case, data)
    started = time.perf_counter()
    got = ops.gemm(a, b, bias=bias, **case.options)
    seconds = time.perf_counter() - started
    bits = np.asarray(got.bits if isinstance(got, Matrix) else got)
    plan = host_plan_for(case.request())
    comparison = compare(case, data, bits, rng)
    if plan is None:
        return Result(case, "reference", us=seconds * 1e6, comparison=comparison)
    chosen = plan.decision
    return Result(case, chosen.variant.name, chosen.tier, chosen.source, seconds * 1e6, comparison)


def _host_arrays(case: DemoProblem, data: Operands) -> list[Any]:
    """NumPy arrays, and Matrix where the dtype is one that NumPy lacks."""

    def wrap(bits: Array | None) -> Any:
        return Matrix(bits.shape, "bf16", bits) if bits is not None and case.dtype == "bf16" else bits

    return [wrap(bits) for bits in data]


def on_gpu(ordinal: int, case: DemoProblem, rng: np.random.Generator) -> Result:
    """On a GPU; the first call is checked, later ones are timed."""
    data = case.data(rng)
    with Gpu(ordinal) as gpu:
        a, b = gpu.upload(data.a, case.dtype), gpu.upload(data.b, case.dtype)
        bias = None if data.bias is None else gpu.upload(data.bias, case.out_dtype)
        out = gpu.poisoned((case.m, case.n), case.out_dtype)
        launch = partial(ops.gemm, a, b, out=out, bias=bias, **case.options)
        launch()
        bits = gpu.download(out)
        us = gpu.time_us(launch, REPETITIONS)
    decision = plan_for(case.request(), ordinal).decision
    served = decision.variant.name, decision.tier, decision.source
    return Result(case, *served, us, compare(case, data, bits, rng))
