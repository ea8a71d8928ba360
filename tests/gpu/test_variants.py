"""Every variant, forced by name: sizes around each tile edge, offsets, padding, batches, epilogues, every output dtype.

A variant without an image is compiled by NVRTC, so that none is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from tests.gpu.compare import DTYPES, SHORT, Epilogue, expected, fault
from tests.gpu.memory import Placed, operand, random, result
from tests.gpu.pack_variants import every_variant
from tilery import image
from tilery.device import DeviceInfo
from tilery.errors import TileryError
from tilery.generator.variant import Variant
from tilery.launch import Pointers, Strides, fill, template
from tilery.operands import BIAS_DTYPES
from tilery.pack import Pack, builtin
from tilery.plan import plan_for
from tilery.problem import ITEM_BYTES, LAYOUTS, OUT_DTYPES, Problem
from tilery.reference import UNIT_F32, UNIT_TENSOR_CORE
from tilery.requirements import features, features_present, shared_fits

pytestmark = pytest.mark.gpu

Size = tuple[int, int]
# (tiles, smallest steps) of m, n and k: the size is tiles * tile + steps * step.
SIZES: tuple[tuple[Size, Size, Size], ...] = (
    ((1, 0), (1, 0), (1, 0)),
    ((1, -1), (1, -1), (1, -1)),
    ((1, 1), (1, 1), (1, 1)),
    ((0, 1), (0, 1), (0, 1)),
    ((1, 1), (1, -1), (0, 0)),
    ((3, 5), (2, 7), (5, 3)),
    ((0, 1), (2, 3), (3, 0)),
    ((2, 1), (0, 1), (7, -1)),
    ((1, -1), (1, 1), (4, 1)),
    ((9, 1), (1, 1), (1, -1)),  # more rows of tiles than one group of the raster order
    ((2, -1), (3, -1), (2, 1)),
)
# alpha, beta, bias, activation
FLOAT_EPILOGUES = (
    (1.0, 0.0, False, "none"),
    (1.5, 0.5, True, "relu"),
    (-0.75, 0.0, True, "gelu"),
    (1.0, -1.0, False, "silu"),
    (2.0, 3.0, True, "none"),
)
INTEGER_EPILOGUES = (
    (1, 0, False, "none"),
    (2, -3, True, "relu"),
    (-3, 0, True, "none"),
    (1, 1, False, "relu"),
    (2**24, 2**24 - 1, True, "none"),  # wraps
)
SHOWN_FAULTS = 2


class Call(NamedTuple):
    """One launch: operands as the kernel is to see them."""

    layout: str
    a: Any
    b: Any
    d: Placed
    epilogue: Epilogue


def pick(values: Any, i: int) -> Any:
    return values[i % len(values)]


def dtype_of(variant: Variant) -> str:
    return "f32" if variant.dtype == "tf32" else variant.dtype


def sizes(variant: Variant, layout: str, i: int) -> tuple[int, int, int]:
    """m, n and k; an axis along memory counts in whole chunks where the variant needs them."""
    chunk = max(1, variant.align // ITEM_BYTES[dtype_of(variant)])
    along = {"k" if layout[0] == "n" else "m", "n" if layout[1] == "n" else "k"}
    steps = [chunk if axis in along else 1 for axis in "mnk"]
    parts = zip(SIZES[i], variant["tile"], steps, strict=True)
    m, n, k = (max(0, tiles * tile + extra * step) for (tiles, extra), tile, step in parts)
    return m, n, k


def epilogue(out: str, dtype: str, d: Placed, i: int) -> Epilogue:
    """Every other accumulating call overwrites its own c."""
    alpha, beta, biased, activation = pick(INTEGER_EPILOGUES if out == "s32" else FLOAT_EPILOGUES, i)
    batch, _, n = shape = tuple(d.view.shape)
    kinds = BIAS_DTYPES.get((dtype, out), (out, dtype, "f32"))
    bias = random((batch, n) if i % 2 else (n,), DTYPES[pick(kinds, i)]) if biased else None
    c = random(shape, DTYPES[out]) if beta else None
    if c is not None and i % 2:
        c = d.view.copy_(c)
    return Epilogue(alpha, beta, c, bias, activation)


def calls(variant: Variant) -> Iterator[Call]:
    dtype = dtype_of(variant)
    chunk = max(1, variant.align // ITEM_BYTES[dtype])
    for i in range(len(SIZES)):
        layout = pick(LAYOUTS[:4], i) if variant.layout == "any" else variant.layout
        m, n, k = sizes(variant, layout, i)
        batch = 3 if i % 4 == 1 else 1
        out = pick(OUT_DTYPES[dtype], i)
        step = 3 if variant.layout == "any" and i % 3 == 2 else 1
        at_a = {"letter": layout[0], "step": step, "pad": chunk * (i % 3), "offset": chunk * (i % 4)}
        at_b = {"letter": layout[1], "step": step, "pad": chunk * (i % 2), "offset": chunk * (i % 3)}
        at_d = {"letter": "t" if i % 6 == 5 else "n", "pad": i % 4, "offset": i % 2}
        a = operand((batch, m, k), DTYPES[dtype], **at_a)
        b = operand((batch, k, n), DTYPES[dtype], **at_b)
        d = result((batch, m, n), DTYPES[out], **at_d)
        yield Call(layout, a, b, d, epilogue(out, dtype, d, i))


def special(variant: Variant) -> Call:
    """NaN and Inf in single elements: they belong in one row or column of the result, and nowhere else."""
    layout = "nt" if variant.layout == "any" else variant.layout
    (m, n, k), dtype = sizes(variant, layout, 2), DTYPES[dtype_of(variant)]
    a, b = operand((1, m, k), dtype, letter=layout[0]), operand((1, k, n), dtype, letter=layout[1])
    a[0, m - 1, k - 1], a[0, 1, 0] = float("nan"), float("inf")
    b[0, 0, n - 1] = float("-inf")
    return Call(layout, a, b, result((1, m, n), torch.float32), Epilogue())


def strides(matrix: Any) -> Strides:
    return Strides(matrix.stride(1), matrix.stride(2), matrix.stride(0))


def launch(variant: Variant, call: Call) -> None:
    _, a, b, d, done = call
    (batch, m, k), n = a.shape, b.shape[2]
    precision = "tf32" if variant.dtype == "tf32" else "ieee"
    out = SHORT[d.view.dtype]
    extras = (precision, done.bias is not None, done.activation, done.c is not None)
    problem = Problem("gemm", m, n, k, batch, SHORT[a.dtype], out, variant.layout, variant.align, *extras)
    plan = plan_for(problem, a.get_device())
    assert (plan.tier, plan.decision.variant.name) == ("forced", variant.name)
    bias = Strides()
    if done.bias is not None:
        bias = Strides(0, done.bias.stride(-1), done.bias.stride(0) if done.bias.ndim > 1 else 0)
    c = Strides() if done.c is None else strides(done.c)
    bias_dtype = out if done.bias is None else SHORT[done.bias.dtype]
    form = template(problem, strides(a), strides(b), c, strides(d.view), bias, bias_dtype)
    pointers = Pointers(*(0 if x is None else x.data_ptr() for x in (a, b, done.c, d.view, done.bias)))
    plan.launch(fill(form, pointers, done.alpha, done.beta), torch.cuda.current_stream().cuda_stream)


def faults(variant: Variant, call: Call) -> Iterator[str]:
    """What is wrong after one launch, told with all that is needed to repeat it."""
    layout, a, b, d, done = call
    unit = UNIT_TENSOR_CORE if variant.family == "gemm_mma" else UNIT_F32
    want, allowed = expected(a, b, d.view.dtype, done, unit=unit, tf32=variant.dtype == "tf32")
    launch(variant, call)
    asked = (
        f"{layout} m={a.shape[1]} n={b.shape[2]} k={a.shape[2]} batch={a.shape[0]} a{a.stride()} b{b.stride()} "
        f"d{d.view.stride()} -> {SHORT[d.view.dtype]} alpha={done.alpha} beta={done.beta} "
        f"bias={None if done.bias is None else SHORT[done.bias.dtype]} {done.activation}"
    )
    if found := fault(d.view, want, allowed):
        yield f"{asked}: {found}"
    if not d.untouched_around():
        yield f"{asked}: wrote outside of the result"


def why_not_here(variant: Variant, gpu: DeviceInfo, pack: Pack) -> str | None:
    """Why a variant cannot run on this GPU."""
    present = features(pack, image.order(pack.archs, gpu.cc))
    problem = Problem("gemm", 1, 1, 1, 1, "f32", "f32", "nn", 1)
    return shared_fits(variant, problem, gpu, present) or features_present(variant, problem, gpu, present)


@pytest.mark.parametrize("variant", every_variant(), ids=lambda variant: variant.name)
def test_variant(variant: Variant, gpu: DeviceInfo, compiled: None, force: Callable[[str], None]) -> None:
    if reason := why_not_here(variant, gpu, builtin()):
        pytest.skip(reason)
    force(variant.name)
    found: list[str] = []
    tested = list(calls(variant)) + ([special(variant)] if variant.dtype != "s8" else [])
    try:
        for call in tested:
            found += faults(variant, call)
    except TileryError as error:
        pytest.fail(str(error)[:1200], pytrace=False)
    if found:
        head = f"{len(found)} faults in {len(tested)} launches"
        pytest.fail("\n".join([head, *found[:SHOWN_FAULTS]]), pytrace=False)


def test_there_are_variants_to_test() -> None:
    assert every_variant(), "the pack is not built: pip install . builds it"
