"""Examining variants: launches on fresh random data at their tile edges, compared with the float64 reference.

`work` is what the child processes of ``tilery verify`` run, so that a launch that kills its process loses one variant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from . import device, policy
from .errors import DriverError, HostError, first_line
from .generator.variant import Variant
from .pack import builtin
from .policy import Policy
from .problem import ITEM_BYTES, LAYOUTS, OUT_DTYPES, Problem
from .trial import Case, Epilogue, Odd, Shape, chunk, fit, input_dtype

Size = tuple[int, int]
# (tiles, steps) of m, n and k: the size is tiles * tile + steps * step; a step is the least that the variant takes.
SIZES: tuple[tuple[Size, Size, Size], ...] = (
    ((1, 0), (1, 0), (1, 0)),
    ((1, 1), (1, -1), (0, 1)),
    ((2, -1), (3, 1), (2, 1)),
    ((0, 1), (2, 3), (3, -1)),
    ((3, 5), (0, 1), (5, 3)),
    ((1, -1), (1, 1), (0, 0)),
)
BATCHED = 3  # the row of SIZES that is a batch
BATCH = 3
# alpha, beta, bias, activation
FLOAT_EPILOGUES = (
    (1.0, 0.0, False, "none"),
    (1.5, 0.5, True, "relu"),
    (-0.75, 0.0, True, "gelu"),
    (1.0, -1.0, False, "silu"),
    (2.0, 3.0, True, "none"),
    (1.0, 1.0, False, "none"),
)
INTEGER_EPILOGUES = (
    (1, 0, False, "none"),
    (2, -3, True, "relu"),
    (-3, 0, True, "none"),
    (1, 1, False, "relu"),
    (2**24, 2**24 - 1, True, "none"),  # wraps
    (1, 1, False, "none"),
)
# What these calls report is the kernel's doing, not that of its loading.
LAUNCHES = ("cuLaunchKernel", "cuCtxSynchronize", "cuMemcpyDtoH")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What examining one variant showed.

    Attributes:
        status: ``ok``; ``wrong``: a wrong result, or a launch that failed, never ended or killed its process; ``not
            run``: it could not be made ready, which says nothing about its results.
        cases: launches that were compared.
        error: the largest error as a part of the bound, over all cases; inf for a wrong NaN or Inf.
        fault: what is wrong, in one line, or "".
        case: the case that showed it.
    """

    status: str
    cases: int = 0
    error: float = 0.0
    fault: str = ""
    case: str = ""


class Job(NamedTuple):
    """What a child process is to do.

    Attributes:
        names: variants, in order.
        ordinal: the GPU, or None for the host device.
        seed: of the data.
        settings: the policy.
    """

    names: tuple[str, ...]
    ordinal: int | None
    seed: int
    settings: Policy


class Pipe(Protocol):
    """Where a child process tells what it does."""

    def send(self, obj: Any, /) -> None: ...


class Launched(Protocol):
    """A Plan, of a GPU or of the host device."""

    def launch(self, params: Any, /) -> None: ...


def cases(variant: Variant, seed: int) -> Iterator[Case]:
    """The launches that a variant is judged by: every kind of tile edge, stride, epilogue and result."""
    whole, steps = chunk(variant), fit(variant, Shape(1, 1, 1))
    dtype = input_dtype(variant)
    for i, row in enumerate(SIZES):
        parts = zip(row, variant["tile"], steps[:3], strict=True)
        m, n, k = (tiles * tile + extra * step for (tiles, extra), tile, step in parts)
        shape = Shape(max(m, steps.m), max(n, steps.n), max(k, 0), BATCH if i == BATCHED else 1)
        out = OUT_DTYPES[dtype][i % len(OUT_DTYPES[dtype])]
        epilogue = Epilogue(out, *(INTEGER_EPILOGUES if out == "s32" else FLOAT_EPILOGUES)[i])
        layout = LAYOUTS[i % 4] if variant.layout == "any" else ""
        step = 3 if variant.layout == "any" and i % 2 else 1
        yield Case(variant, shape, epilogue, Odd(whole * (i // 2), whole * (i % 4), step), seed, layout)


def told(case: Case) -> str:
    """A case in one line."""
    s, e, odd = case.shape, case.epilogue, case.odd
    made = f"m={s.m} n={s.n} k={s.k} batch={s.batch} -> {e.out_dtype}, alpha={e.alpha} beta={e.beta}"
    made += " + bias" if e.bias else ""
    made += f" {e.activation}" if e.activation != "none" else ""
    return f"{made}; pad {odd.pad}, shift {odd.shift}, step {odd.step}"


def work(pipe: Pipe, job: Job) -> None:
    """Examine variants one by one, and tell each step: ``("start", name)``, ``("run", name)``, ``("done", name,
    outcome)``. It ends early where a launch broke the GPU's context.
    """
    variants = builtin().variants
    for name in job.names:
        pipe.send(("start", name))
        outcome, usable = _guarded(pipe, variants[name], job)
        pipe.send(("done", name, outcome))
        if not usable:
            return


def _guarded(pipe: Pipe, variant: Variant, job: Job) -> tuple[Outcome, bool]:
    """The Outcome, and whether this process can go on."""
    try:
        settings = replace(job.settings, force_variant=variant.name, jit="auto", numerics="fast")
        with policy.scope(settings):
            planned = [(case, _plan(case.problem, job.ordinal)) for case in cases(variant, job.seed)]
        pipe.send(("run", variant.name))
        return judge(planned, job.ordinal), True
    except HostError as error:
        return Outcome("wrong", fault=first_line(error)), True
    except Exception as error:
        if (launch := _failed_launch(error)) is not None:
            return Outcome("wrong", fault=first_line(launch)), False
        return Outcome("not run", fault=first_line(error)), True


def _failed_launch(error: BaseException | None) -> DriverError | None:
    """The error of a launch. Freeing memory after it fails too, and hides it."""
    while error is not None and not (isinstance(error, DriverError) and error.call in LAUNCHES):
        error = error.__context__
    return error


def _plan(problem: Problem, ordinal: int | None) -> Launched:
    from . import plan
    from .host import plan as host

    # The data lie at whole elements, whatever less the variant would take.
    problem = replace(problem, align=max(problem.align, ITEM_BYTES[problem.dtype]))
    return host.unblocked(problem) if ordinal is None else plan.unblocked(problem, ordinal)


def judge(planned: list[tuple[Case, Launched]], ordinal: int | None) -> Outcome:
    """Launch each case, whose result begins as poison, and compare."""
    found = Outcome("ok")
    for case, plan in planned:
        if ordinal is None:
            plan.launch(case.params())
        else:
            _launch(case, plan, ordinal)
        error = case.error()
        found = replace(found, cases=found.cases + 1, error=max(found.error, error))
        if not error <= 1 and found.status == "ok":
            found = replace(found, status="wrong", fault=_fault(case, error), case=told(case))
    return found


def _launch(case: Case, plan: Launched, ordinal: int) -> None:
    """On a GPU, on copies of the same bytes; D comes back to where it is in the case."""
    with device.current(ordinal), ExitStack() as memory:
        copies = {}
        for name, placed in case.placed.items():
            copies[name] = int(device.call("cuMemAlloc", placed.flat.nbytes))
            memory.callback(device.call, "cuMemFree", copies[name])
            device.call("cuMemcpyHtoD", copies[name], placed.flat.ctypes.data, placed.flat.nbytes)
        plan.launch(case.params({name: copy + case.placed[name].offset for name, copy in copies.items()}))
        device.call("cuCtxSynchronize")
        flat = case.placed["d"].flat
        device.call("cuMemcpyDtoH", flat.ctypes.data, copies["d"], flat.nbytes)


def _fault(case: Case, error: float) -> str:
    if math.isfinite(error):
        return f"error {error:.3g} times the bound"
    d = case.placed["d"]
    if stray := d.stray(d.flat):
        return f"{stray} bytes written outside of the result"
    count, wrong = case.wrong()
    assert wrong is not None, "an infinite error is a wrong element"
    return f"{count} of {d.view.size} elements wrong, the first is {wrong.got:.6g} and should be {wrong.expected:.6g}"
