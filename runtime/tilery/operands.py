"""From the metadata of a call's arrays to a Call: all checks of shapes, dtypes, devices and overlap, purely."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .arrays import ArrayView, item_bytes
from .dtypes import canonical_dtype
from .errors import InvalidInput
from .geometry import (
    Axis,
    Collapsed,
    Ints,
    Oriented,
    collapse,
    contiguous_strides,
    extent,
    may_overlap_itself,
    orient,
    share_memory,
)
from .launch import Strides, template
from .problem import ITEM_BYTES, OUT_DTYPES, Problem

BIAS_DTYPES = {
    ("f32", "f32"): ("f32",),
    ("s8", "s32"): ("s32",),
    ("s8", "f32"): ("f32",),
}
"""By input and output dtype; where a pair is absent, the output dtype, the input dtype or f32."""


class Views(NamedTuple):
    """The metadata of every array of a call; None where there is none."""

    a: ArrayView
    b: ArrayView
    c: ArrayView | None
    bias: ArrayView | None
    out: ArrayView | None


LINEAR = ("x", "weight")
"""The names of A and B in a call of ``linear``."""


class Options(NamedTuple):
    """The arguments of a call that are no arrays and decide its form."""

    trans_a: bool
    trans_b: bool
    activation: Any
    out_dtype: Any
    precision: str
    accumulate: bool
    names: tuple[str, str] = ("a", "b")
    """What the user calls A and B."""


class Call(NamedTuple):
    """Every call of one form: all that does not depend on addresses and on the values of alpha and beta."""

    shape: Ints
    dtype: str
    out_dtype: str
    activation: str
    problem: Problem | None
    """None where the result has no element."""
    form: bytes
    loops: tuple[Ints, ...]
    """For each launch, the offset in bytes of a, b, c, out and bias."""
    extents: tuple[tuple[int, int], ...]
    """First and one past the last byte of a, b, c, bias and out, relative to their pointers."""


def transposed(view: ArrayView, flip: bool) -> ArrayView:
    """The view with its last two axes exchanged."""
    if not flip:
        return view
    (*lead, row, col), (*steps, row_step, col_step) = view.shape, view.strides
    return view._replace(shape=(*lead, col, row), strides=(*steps, col_step, row_step))


def prepare(views: Views, options: Options) -> Call:
    """Check a call and put it into the form in which it is repeated.

    Raises:
        InvalidInput, UnknownName: what is wrong, in terms of the user's arguments.
    """
    _check_flags(options)
    _check_devices(views, options)
    _check_ranks(views, options)
    a, b = transposed(views.a, options.trans_a), transposed(views.b, options.trans_b)
    shape = _result_shape(a, b, views, options)
    dtype, out_dtype = _dtypes(views, options)
    activation = "none" if options.activation is None else options.activation
    epilogue = (options.precision, views.bias is not None, activation, options.accumulate)
    sizes = Problem("gemm", shape[-2], shape[-1], a.shape[-1], 1, dtype, out_dtype, "nn", 1, *epilogue)
    _check_result(views, shape, out_dtype)
    _check_bias(views.bias, shape, dtype, out_dtype)
    extents = tuple(_extent(view) for view in (views.a, views.b, views.c, views.bias, views.out))
    call = Call(shape, dtype, out_dtype, activation, None, b"", (), extents)
    return call if prod(shape) == 0 else _placed(call, sizes, views._replace(a=a, b=b))


def _placed(call: Call, sizes: Problem, views: Views) -> Call:
    """The call with its Problem, its parameters and its launches."""
    a, b, c, bias, out = views
    steps = contiguous_strides(call.shape) if out is None else out.strides
    space = _collapse(call.shape, views, steps)
    at_a = _oriented(a, (space.rows.size, sizes.k), (space.rows.strides[0], a.strides[-1]), space, 0)
    at_b = _oriented(b, (sizes.k, sizes.n), b.strides[-2:], space, 1)
    full = bool(at_a.letter and at_b.letter)
    layout = at_a.letter + at_b.letter if full else "any"
    align = min(at_a.align, at_b.align) if full else item_bytes(a)
    problem = replace(sizes, m=space.rows.size, batch=space.batch.size, layout=layout, align=align)
    form = template(
        problem,
        Strides(at_a.row, at_a.col, space.batch.strides[0]),
        Strides(at_b.row, at_b.col, space.batch.strides[1]),
        _strides(space, 2, c.strides if c is not None else ()),
        _strides(space, 3, steps),
        _strides(space, 4, bias.strides if bias is not None else ()),
        call.out_dtype if bias is None else bias.dtype,
    )
    items = (item_bytes(a), item_bytes(b), *(ITEM_BYTES[call.out_dtype],) * 2, 0 if bias is None else item_bytes(bias))
    loops = tuple(tuple(offset * item for offset, item in zip(step, items, strict=True)) for step in space.loops)
    return call._replace(problem=problem, form=form, loops=loops)


def _collapse(shape: Ints, views: Views, steps: Ints) -> Collapsed:
    lead = shape[:-2]
    strides = [
        _lead_strides(views.a, lead),
        _lead_strides(views.b, lead),
        views.c.strides[:-2] if views.c is not None else (0,) * len(lead),
        steps[:-2],
        views.bias.strides[:-1] if views.bias is not None and len(views.bias.shape) > 1 else (0,) * len(lead),
    ]
    rows = (views.a.strides[-2], 0, views.c.strides[-2] if views.c is not None else 0, steps[-2], 0)
    axes = [Axis(size, tuple(s[i] for s in strides)) for i, size in enumerate(lead)]
    return collapse(axes, Axis(shape[-2], rows), row_operands=(0, 2, 3))


def _lead_strides(view: ArrayView, lead: Ints) -> Ints:
    """Strides along the result's leading axes: 0 where the operand is broadcast."""
    own = [stride if size > 1 else 0 for size, stride in zip(view.shape[:-2], view.strides[:-2], strict=True)]
    return (0,) * (len(lead) - len(own)) + tuple(own)


def _oriented(view: ArrayView, sizes: tuple[int, int], strides: Ints, space: Collapsed, operand: int) -> Oriented:
    steps = {space.batch.strides[operand], *(offsets[operand] for offsets in space.loops)}
    return orient(view.ptr, item_bytes(view), sizes, (strides[0], strides[1]), tuple(steps))


def _strides(space: Collapsed, operand: int, strides: Ints) -> Strides:
    return Strides(space.rows.strides[operand], strides[-1] if strides else 0, space.batch.strides[operand])


def _extent(view: ArrayView | None) -> tuple[int, int]:
    return (0, 0) if view is None else extent(view.shape, view.strides, item_bytes(view))


def _check_flags(options: Options) -> None:
    for name, flag in (("trans_a", options.trans_a), ("trans_b", options.trans_b)):
        if not isinstance(flag, bool):
            raise InvalidInput(f"{name} must be True or False, got {flag!r}")


def _named(views: Views, options: Options) -> list[tuple[str, ArrayView]]:
    names = (*options.names, "c", "bias", "out")
    return [(name, view) for name, view in zip(names, views, strict=True) if view is not None]


def _check_devices(views: Views, options: Options) -> None:
    found = {name: _place(view) for name, view in _named(views, options)}
    if len(set(found.values())) > 1:
        where = ", ".join(f"{name} on {place}" for name, place in found.items())
        raise InvalidInput(f"all arrays must be on one device, and here are {where}: move them to one")
    for name, view in _named(views, options):
        if view.kind == "cuda" and view.ptr % item_bytes(view):
            raise InvalidInput(
                f"{name} begins at {view.ptr:#x}, which is no address for {view.dtype}: pass a copy of it"
            )


def _place(view: ArrayView) -> str:
    return "cpu" if view.kind == "cpu" else f"{view.kind}:{view.ordinal}"


def _check_ranks(views: Views, options: Options) -> None:
    for name, view in zip(options.names, views, strict=False):
        rank = len(view.shape) if view is not None else 2
        if rank == 1:
            raise InvalidInput(
                f"{name} has shape {_text(view)}, and must be a matrix: "
                f"pass {name}[None, :] for a row or {name}[:, None] for a column"
            )
        if rank > 2 and name == LINEAR[1]:
            raise InvalidInput(f"{name} has shape {_text(view)}, and must be (n, k): call gemm for a stack of weights")
        if rank == 0:
            raise InvalidInput(f"{name} is a single number, and must be a matrix, or a stack of matrices")


def _text(view: ArrayView | None) -> str:
    return "()" if view is None else str(tuple(view.shape))


def _result_shape(a: ArrayView, b: ArrayView, views: Views, options: Options) -> Ints:
    first = _described(options.names[0], views.a, options.trans_a)
    second = _described(options.names[1], views.b, options.trans_b)
    if a.shape[-1] != b.shape[-2]:
        hint = "; with trans_a or trans_b the last two axes are exchanged" if options.names == ("a", "b") else ""
        raise InvalidInput(f"k differs: {first} has k = {a.shape[-1]}, {second} has k = {b.shape[-2]}{hint}")
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise InvalidInput(f"leading axes must be equal, 1 or absent: {first} and {second} do not fit") from None
    return (*lead, a.shape[-2], b.shape[-1])


def _described(name: str, view: ArrayView, flip: bool) -> str:
    return f"{name} of shape {_text(view)}" + (" (transposed)" if flip else "")


def _dtypes(views: Views, options: Options) -> tuple[str, str]:
    (name_a, name_b), dtype = options.names, views.a.dtype
    if views.b.dtype != dtype:
        raise InvalidInput(f"{name_a} is {dtype} and {name_b} is {views.b.dtype}: cast one, inputs must have one dtype")
    if dtype not in OUT_DTYPES:
        raise InvalidInput(f"{name_a} and {name_b} are {dtype}; inputs can be {', '.join(OUT_DTYPES)}")
    wanted = canonical_dtype(options.out_dtype) if options.out_dtype is not None else None
    if views.out is None:
        return dtype, wanted or OUT_DTYPES[dtype][0]
    if wanted not in (None, views.out.dtype):
        raise InvalidInput(f"out is {views.out.dtype} and out_dtype asks for {wanted}: change one of them")
    return dtype, views.out.dtype


def _check_result(views: Views, shape: Ints, out_dtype: str) -> None:
    for name, view in (("c", views.c), ("out", views.out)):
        if view is None:
            continue
        if tuple(view.shape) != shape:
            raise InvalidInput(
                f"{name} has shape {_text(view)}; it is not broadcast, and must have the result's shape {shape}"
            )
        if view.dtype != out_dtype:
            raise InvalidInput(f"{name} is {view.dtype} and the result {out_dtype}: cast {name}, or pass out_dtype")
    if views.out is not None and not views.out.writable:
        raise InvalidInput("out is read-only")
    if views.out is not None and may_overlap_itself(views.out.shape, views.out.strides):
        raise InvalidInput(
            f"out has strides {tuple(views.out.strides)} for shape {shape}, so that indices may share an element: "
            "pass an array without overlap in itself"
        )


def _check_bias(bias: ArrayView | None, shape: Ints, dtype: str, out_dtype: str) -> None:
    if bias is None:
        return
    *lead, _, n = shape
    if tuple(bias.shape) not in ((n,), (*lead, n)):
        batched = f" or {(*lead, n)}" if lead else ""
        raise InvalidInput(f"bias has shape {_text(bias)}, and must have {(n,)}{batched}: a number for each column")
    allowed = BIAS_DTYPES.get((dtype, out_dtype), (out_dtype, dtype, "f32"))
    if bias.dtype not in allowed:
        names = " or ".join(dict.fromkeys(allowed))
        raise InvalidInput(f"bias is {bias.dtype}; for {dtype} inputs and a {out_dtype} result cast it to {names}")


def check_overlap(views: Views, call: Call, names: tuple[str, str]) -> None:
    """Refuse an ``out`` that shares memory with an input; only ``c`` may be ``out`` itself."""
    out = views.out
    if out is None:
        return
    low, high = out.ptr + call.extents[4][0], out.ptr + call.extents[4][1]
    for index, view in enumerate(views[:4]):
        if view is None:
            continue
        first, last = call.extents[index]
        if view.ptr + first < high and low < view.ptr + last and not (index == 2 and view[:4] == out[:4]):
            _refuse_shared(view, out, (*names, "c", "bias")[index])


def _refuse_shared(view: ArrayView, out: ArrayView, name: str) -> None:
    first, second = ((v.ptr, tuple(v.shape), tuple(v.strides), item_bytes(v)) for v in (view, out))
    if share_memory(first, second):
        advice = f"pass a copy of {name}" + (", or out itself as c" if name == "c" else "")
        raise InvalidInput(f"out shares memory with {name}, which would be overwritten before it is read: {advice}")
