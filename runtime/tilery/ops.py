"""The operators: validate, find or make the form of the call, launch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .arrays import INTERCHANGE, Adapter, adapter_for
from .asked import request
from .errors import InvalidInput
from .generator.archs import HOST
from .launch import GemmParams, Pointers, fill, synchronize
from .operands import LINEAR, Call, Options, Views, check_overlap, prepare
from .problem import Problem
from .stats import count

if TYPE_CHECKING:
    from .decision import Decision
    from .device import DeviceInfo

# Forms of calls that were checked before. Emptied when full: the check is then paid for again.
MEMO_ENTRIES = 4096
_memo: dict[Any, Call] = {}

INTEGER_SCALE_LIMIT = 2**24
"""Up to here every integer is a float32, as the kernels get alpha and beta."""
FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127


def gemm(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    bias: Any = None,
    activation: str | None = None,
    alpha: float = 1,
    beta: float = 0,
    c: Any = None,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: Any = None,
    precision: str = "ieee",
) -> Any:
    """activation(alpha * A @ B + beta * C + bias), on the caller's device and current stream.

    Arrays are of PyTorch, CuPy, JAX or NumPy, all of one library and on one device, with any strides; with ``out``,
    inputs may also be any object with ``__cuda_array_interface__`` or ``__dlpack__`` (such a call waits for its
    result). On the CPU the same kernels run on its cores, compiled as C++; JAX and torch arrays of the CPU too.

    Args:
        a: (..., m, k) float32, float16, bfloat16 or int8. Leading axes are batch axes: equal in a and b, 1 or absent.
        b: (..., k, n), the dtype of ``a``.
        out: (..., m, n) to write to; may be ``c`` itself, and may share no memory with any other argument.
        bias: (n,), or (..., n) with the result's batch axes; dtype of the result or of the inputs, or float32.
        activation: None, ``relu``, ``gelu`` (with erf) or ``silu``.
        alpha: factor of the product; an integer of at most 2**24 where the result is int32.
        beta: factor of ``c``, as alpha; 0 exactly where there is no ``c``.
        c: (..., m, n), the dtype of the result.
        trans_a: ``a`` is (..., k, m).
        trans_b: ``b`` is (..., n, k).
        out_dtype: float32, float16 or bfloat16 (for int8 inputs: int32 or float32), by name or as a library's dtype.
            Default: that of ``out``, else that of the inputs, int32 for int8.
        precision: ``ieee``, or ``tf32`` to let float32 inputs be rounded to 11 bits.

    Returns:
        ``out``, or a new row-major array of the library of the inputs. Sums are float32 (exact int32 for int8), rounded
        once. int32 results wrap modulo 2**32.

    Raises:
        InvalidInput: arguments do not fit each other or a limit. Nothing was launched, allocated or written.
        UnknownName: an unknown dtype, activation or precision; the message has the nearest ones.
        UnsupportedProblem: no variant can serve this problem here; the message says why each was rejected.

    >>> import numpy as np
    >>> gemm(np.float32([[1, 2], [3, 4]]), np.float32([[1, 0], [0, -1]]), bias=np.float32([10, 0]), activation="relu")
    array([[11.,  0.],
           [13.,  0.]], dtype=float32)
    """
    options = Options(trans_a, trans_b, activation, out_dtype, precision, c is not None)
    return _run(Arrays(a, b, c, bias, out), _number("alpha", alpha), _number("beta", beta), options)


def linear(x: Any, weight: Any, bias: Any = None, activation: str | None = None) -> Any:
    """activation(x @ weight.T + bias), as `gemm` computes it.

    Args:
        x: (..., k) float32, float16, bfloat16 or int8.
        weight: (n, k), the dtype of ``x``.
        bias: (n,); dtype of the result or float32.
        activation: None, ``relu``, ``gelu`` (with erf) or ``silu``.

    Returns:
        (..., n) of the dtype of ``x``; int32 for int8.

    Raises:
        InvalidInput, UnknownName, UnsupportedProblem: as `gemm`.

    >>> import numpy as np
    >>> linear(np.float32([1, 2, 3]), np.float32([[1, 1, 1], [0, 0, -1]]), bias=np.float32([0, 1]))
    array([ 6., -2.], dtype=float32)
    """
    options = Options(False, True, activation, None, "ieee", False, LINEAR)
    return _run(Arrays(x, weight, None, bias, None), 1, 0, options)


def explain(
    op: str,
    *,
    m: int,
    n: int,
    k: int,
    dtype: Any,
    layout: str = "nn",
    arch: str | None = None,
    batch: int = 1,
    align: int | None = None,
    out_dtype: Any = None,
    precision: str = "ieee",
    bias: bool = False,
    activation: str | None = None,
    accumulate: bool = False,
) -> Decision:
    """The Decision for a problem, without data and without a launch; ``print`` it to read it.

    Args:
        op: ``gemm``.
        m, n, k, batch: sizes.
        dtype: of the inputs: float32, float16, bfloat16 or int8, by name or as a library's dtype.
        layout: nn, nt, tn, tt or any; first letter A (n: (m, k) row-major, t: (k, m)), second B (n: (k, n), t: (n, k)).
        arch: ask for the GPU that stands for this arch, e.g. ``sm_90a``; ``host`` is this machine's CPU. Default: the
            first GPU of this machine, else ``host``.
        align: bytes to which pointers and rows of A and B are aligned: 1, 2, 4, 8 or 16. Default: as in packed arrays.
        out_dtype, precision, activation: as in `gemm`.
        bias, accumulate: whether there is a bias, and a ``c``.

    Returns:
        The Decision: variant, tier that answered, rejected candidates with reasons, and what would change it.

    Raises:
        InvalidInput: a size or combination that has no meaning, or no ``arch`` where there is no GPU.
        UnknownName: an unknown op, dtype, layout or arch; the message has the nearest ones.
        UnsupportedProblem: nothing can serve the problem.
    """
    from .advice import explained

    problem = request(
        op,
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        layout=layout,
        batch=batch,
        align=align,
        out_dtype=out_dtype,
        precision=precision,
        bias=bias,
        activation=activation,
        accumulate=accumulate,
    )
    return explained(problem, _device(arch))


def _device(arch: str | None) -> DeviceInfo:
    from .device import devices, representative, why_none
    from .pack import builtin

    if arch is not None:
        return representative(arch)
    found = devices()
    if not found and HOST in builtin().archs:
        return representative(HOST)
    if not found:
        raise InvalidInput(f"no GPU to decide for: {why_none()}. Pass arch=, one of {', '.join(builtin().archs)}")
    return found[0]


class Arrays(NamedTuple):
    """The arrays of a call as the user passed them; None where there is none."""

    a: Any
    b: Any
    c: Any
    bias: Any
    out: Any


class Operands(NamedTuple):
    """The arrays of a call as tilery sees them."""

    owner: Adapter
    views: Views
    mixed: bool
    """Whether arrays of no known library are among them, on whose producer's stream nothing of ours is ordered."""


def _number(name: str, value: Any) -> float:
    if value.__class__ is int or value.__class__ is float:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise InvalidInput(f"{name} must be a real number, got a {type(value).__name__}: pass {name}=float(...)")


def _check_scale(name: str, value: float, out_dtype: str) -> None:
    if out_dtype == "s32":
        if not (abs(value) <= INTEGER_SCALE_LIMIT and value == int(value)):
            advice = "must be an integer of at most 2**24; pass out_dtype='float32' for any other"
            raise InvalidInput(f"{name} = {value} with an int32 result: it {advice}")
    elif FLOAT32_MAX < abs(value) < math.inf:
        raise InvalidInput(f"{name} = {value} is beyond float32, in which the kernels scale")


def _check_beta(beta: float, c: Any) -> None:
    if c is None:
        raise InvalidInput(f"beta = {beta} scales c, and there is no c: pass c=, or leave beta out")
    raise InvalidInput("c is given and beta is 0, so that c would not be used: pass beta=1 to add it, or leave c out")


def _run(arrays: Arrays, alpha: float, beta: float, options: Options) -> Any:
    if (arrays.c is None) != (beta == 0):
        _check_beta(beta, arrays.c)
    owner, views, mixed = _look(arrays, options.names)
    vector = len(views.a.shape) == 1 and options.names is LINEAR
    if vector:
        views = views._replace(a=views.a._replace(shape=(1, *views.a.shape), strides=(0, *views.a.strides)))
    call = _form(views, options)
    _check_scale("alpha", alpha, call.out_dtype)
    _check_scale("beta", beta, call.out_dtype)
    check_overlap(views, call, options.names)
    target = arrays.out
    if target is None:
        target = owner.empty(arrays.a, (*call.shape[:-2], call.shape[-1]) if vector else call.shape, call.out_dtype)
    if call.problem is None:
        pass
    elif views.a.kind == "cpu":
        _compute(call, call.problem, views, arrays._replace(out=target), options, alpha, beta)
    else:
        pointer = (views.out or owner.view(target, "result")).ptr
        stream = owner.stream(views.a.ordinal)
        _launch(call, call.problem, views, pointer, alpha, beta, stream)
        if mixed or owner.synchronous:
            synchronize(views.a.ordinal, stream)
    return owner.result(target, arrays.a) if arrays.out is None else adapter_for(target, "out").written(target)


def _look(arrays: Arrays, names: tuple[str, str]) -> Operands:
    a, b, c, bias, out = arrays
    owner = adapter_for(a, names[0])
    same = adapter_for(b, names[1]) is owner is not INTERCHANGE
    for name, array in (("c", c), ("bias", bias), ("out", out)):
        same = same and (array is None or adapter_for(array, name) is owner)
    if not same:
        return _look_mixed(list(zip((*names, "c", "bias", "out"), arrays, strict=True)))
    if out is not None and not owner.can_write:
        raise InvalidInput("out cannot be a JAX array, as JAX arrays never change: leave out= out and use the result")
    views = Views(
        owner.view(a, names[0]),
        owner.view(b, names[1]),
        None if c is None else owner.view(c, "c"),
        None if bias is None else owner.view(bias, "bias"),
        None if out is None else owner.view(out, "out"),
    )
    return Operands(owner, views, False)


def _look_mixed(named: list[tuple[str, Any]]) -> Operands:
    adapters = {name: adapter_for(array, name) for name, array in named if array is not None}
    libraries = {adapter.name: adapter for adapter in adapters.values() if adapter is not INTERCHANGE}
    if len(libraries) > 1:
        found = ", ".join(f"{name} of {adapter.name}" for name, adapter in adapters.items())
        raise InvalidInput(f"arrays must be of one library, and here are {found}: convert with from_dlpack or asarray")
    foreign = next(array for name, array in named if adapters.get(name) is INTERCHANGE)
    if named[-1][1] is None:
        INTERCHANGE.empty(foreign, (), "f32")
    owner = next(iter(libraries.values()), INTERCHANGE)
    if not owner.can_write and adapters["out"] is owner:
        raise InvalidInput("out cannot be a JAX array, as JAX arrays never change: convert the inputs, leave out= out")
    views = {name: owner.view(array, name) for name, array in named if adapters.get(name) is owner is not INTERCHANGE}
    ordinal = next((view.ordinal for view in views.values() if view.kind == "cuda"), None)
    stream = owner.stream(ordinal) if ordinal is not None else 0
    for name, array in named:
        if name not in views and array is not None:
            views[name] = INTERCHANGE.ordered_view(array, name, stream)
    return Operands(owner, Views(*(views.get(name) for name, _ in named)), True)  # type: ignore[arg-type]


def _form(views: Views, options: Options) -> Call:
    """The checked form of a call, from the memo where one like it was checked before."""
    key = (options, *(None if view is None else (view[1:], view.ptr & 15) for view in views))
    try:
        call = _memo.get(key)
    except TypeError:  # an unhashable activation, say: the check tells
        return prepare(views, options)
    if call is None:
        call = prepare(views, options)
        if len(_memo) >= MEMO_ENTRIES:
            _memo.clear()
        _memo[key] = call
    return call


def _launch(call: Call, problem: Problem, views: Views, out: int, alpha: float, beta: float, stream: int) -> None:
    from .plan import plan_for

    plan = plan_for(problem, views.a.ordinal, stream)
    for params in _params(call, views, out, alpha, beta):
        plan.launch(params, stream)


def _params(call: Call, views: Views, out: int, alpha: float, beta: float) -> Iterator[GemmParams]:
    """The parameters of each launch of a call."""
    a, b = views.a, views.b
    c = views.c.ptr if views.c is not None else 0
    bias = views.bias.ptr if views.bias is not None else 0
    for to_a, to_b, to_c, to_out, to_bias in call.loops:
        pointers = Pointers(a.ptr + to_a, b.ptr + to_b, c and c + to_c, out + to_out, bias and bias + to_bias)
        yield fill(call.form, pointers, alpha, beta)


def _compute(
    call: Call, problem: Problem, views: Views, arrays: Arrays, options: Options, alpha: float, beta: float
) -> None:
    """On the CPU, by the kernels; by the reference where their library cannot be loaded."""
    from .host.plan import plan_for

    plan = plan_for(problem)
    if plan is None:
        count("reference", "calls")
        _refer(call, arrays, options, alpha, beta)
        return
    out = views.out or adapter_for(arrays.out, "result").view(arrays.out, "result")
    for params in _params(call, views, out.ptr, alpha, beta):
        plan.launch(params)


def _refer(call: Call, arrays: Arrays, options: Options, alpha: float, beta: float) -> None:
    from .reference import gemm_into

    a, b, c, bias, out = (None if array is None else _host(array) for array in arrays)
    assert a is not None and b is not None and out is not None
    if len(call.shape) > out.ndim:
        a, out = a[None, :], out[None, :]
    a = a.swapaxes(-1, -2) if options.trans_a else a
    b = b.swapaxes(-1, -2) if options.trans_b else b
    gemm_into(
        out,
        np.broadcast_to(a, (*call.shape[:-2], *a.shape[-2:])),
        np.broadcast_to(b, (*call.shape[:-2], *b.shape[-2:])),
        out_dtype=call.out_dtype,
        alpha=alpha,
        beta=beta,
        c=c,
        bias=bias,
        activation=call.activation,
    )


def _host(array: Any) -> np.ndarray[Any, Any]:
    return adapter_for(array, "an array").host(array)
