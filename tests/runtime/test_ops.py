"""gemm and linear: results through the whole call, on the CPU and on a fake GPU, and everything that they refuse."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilery
from tests.runtime.fake_cuda import Array, FakeGpu, f32, run_on
from tilery import operands, ops
from tilery.errors import InvalidInput

# ---- any shapes, strides and flags, against numpy's @ --------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> Array:
    """An array of small integers of this shape, as a view: steps, flips, permuted and broadcast axes."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -3])) for _ in shape]
    spread = [draw(st.sampled_from([False, False, False, True])) for _ in shape]
    sizes = [1 if spread[axis] else shape[axis] * abs(steps[axis]) for axis in order]
    pad = draw(st.integers(0, 4))
    count = math.prod(sizes)
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 5, count + pad).astype(np.float32)
    array = values[pad:].reshape(sizes).transpose(np.argsort(order))
    array = array[tuple(slice(None) if spread[axis] else slice(None, None, steps[axis]) for axis in range(len(shape)))]
    array = np.broadcast_to(array, shape)
    # The stride of an axis of size 1 means nothing and may be anything.
    lone = draw(st.sampled_from([0, 4, 12, 20, -64]))
    odd = [lone if size == 1 else stride for size, stride in zip(shape, array.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(array, shape, odd, writeable=False)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    size = st.sampled_from([0, 1, 1, 2, 3, 4, 5])
    m, n, k = draw(size), draw(size), draw(size)
    lead = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3)))
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())

    def cut(last: tuple[int, int]) -> tuple[int, ...]:
        keep = draw(st.integers(0, len(lead)))
        own = lead[len(lead) - keep :]
        return (*(1 if draw(st.integers(0, 4)) == 0 else s for s in own), *last)

    call: dict[str, Any] = {
        "a": draw(views(cut((k, m) if trans_a else (m, k)))),
        "b": draw(views(cut((n, k) if trans_b else (k, n)))),
        "trans_a": trans_a,
        "trans_b": trans_b,
    }
    batch = np.broadcast_shapes(call["a"].shape[:-2], call["b"].shape[:-2])
    if draw(st.booleans()):
        call |= {"c": draw(views((*batch, m, n))), "beta": draw(st.sampled_from([1, -2, 0.5]))}
    if draw(st.booleans()):
        call["bias"] = draw(views((*batch, n) if draw(st.booleans()) else (n,)))
    call["alpha"] = draw(st.sampled_from([1, 2, -0.5, 0]))
    call["activation"] = draw(st.sampled_from([None, "relu"]))
    return call


def expected(call: dict[str, Any]) -> Array:
    """The result in float64; exact, as all values are small integers or halves."""
    a, b = (x.astype(np.float64) for x in (call["a"], call["b"]))
    a = a.swapaxes(-1, -2) if call["trans_a"] else a
    b = b.swapaxes(-1, -2) if call["trans_b"] else b
    out = call["alpha"] * (a @ b)
    if "c" in call:
        out = out + call["beta"] * call["c"]
    if "bias" in call:
        out = out + (call["bias"] if call["bias"].ndim == 1 else call["bias"][..., None, :])
    return np.maximum(out, 0) if call["activation"] == "relu" else out


@settings(deadline=None)  # a layout that no image covers is compiled at its first call
@given(calls())
def test_cpu_calls_equal_numpy(call: dict[str, Any]) -> None:
    found = tilery.gemm(**call)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected(call))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls())
def test_kernel_parameters_give_what_numpy_gives(gpu: FakeGpu, call: dict[str, Any]) -> None:
    np.testing.assert_array_equal(run_on(gpu, call), expected(call))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(call=calls(), flip=st.booleans(), pad=st.integers(0, 2))
def test_kernels_write_into_any_out_and_nowhere_else(gpu: FakeGpu, call: dict[str, Any], flip: bool, pad: int) -> None:
    result = expected(call)
    shape = (*result.shape[:-2], *(size + pad for size in result.shape[-2:]))
    whole = np.full((*shape[:-2], shape[-1], shape[-2]) if flip else shape, 7777, np.float32)
    out = whole.swapaxes(-1, -2) if flip else whole
    out = out[..., : result.shape[-2], : result.shape[-1]]
    found = run_on(gpu, call | {"out": out})
    assert found is out
    np.testing.assert_array_equal(out, result)
    assert np.count_nonzero(whole == 7777) == whole.size - out.size
    assert not gpu.adapter.allocated


def test_repeated_calls_take_the_memo_and_new_pointers(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    count = []
    prepare = operands.prepare
    monkeypatch.setattr(ops, "prepare", lambda *args: count.append(1) or prepare(*args))
    for seed in range(4):
        a, b = f32(16, 8, seed=seed), f32(8, 4, seed=seed)
        np.testing.assert_array_equal(run_on(gpu, {"a": a, "b": b, "alpha": seed}), seed * (a @ b))
    assert len(count) <= 2  # numpy's addresses may differ in alignment


def test_memo_is_bounded(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MEMO_ENTRIES", 3)
    for m in range(1, 10):
        assert run_on(gpu, {"a": f32(m, 2), "b": f32(2, 2)}).shape == (m, 2)
        assert len(ops._memo) <= 3


# ---- which Problem a call becomes ----------------------------------------------------------------------------------


def problem(gpu: FakeGpu, **call: Any) -> Any:
    run_on(gpu, call)
    (plan,) = gpu.plans
    assert len(plan.launches) >= 1
    return plan.problem


ALIGNED = np.zeros(2**16, np.float32)
START = -(ALIGNED.__array_interface__["data"][0] // 4) % 4


def aligned(*shape: int, offset: int = 0) -> Array:
    """Float32 zeros that begin at a multiple of 16 bytes, plus ``offset`` elements."""
    return ALIGNED[START + offset :][: math.prod(shape)].reshape(shape)


@pytest.mark.parametrize(
    ("a", "b", "flags", "layout", "align"),
    [
        (aligned(8, 4), aligned(4, 8), (False, False), "nn", 16),
        (aligned(8, 4), aligned(8, 4), (False, True), "nt", 16),
        (aligned(4, 8), aligned(4, 8), (True, False), "tn", 16),
        (aligned(4, 8), aligned(8, 4), (True, True), "tt", 16),
        (aligned(8, 4), aligned(8, 4).T, (False, False), "nt", 16),
        (aligned(8, 4, offset=1), aligned(4, 8), (False, False), "nn", 4),
        (aligned(8, 6)[:, 2:], aligned(4, 8), (False, False), "nn", 8),
        (aligned(8, 5)[:, :4], aligned(4, 8), (False, False), "nn", 4),
        (aligned(8, 8)[:, ::2], aligned(4, 8), (False, False), "any", 4),
        (aligned(1, 5)[:, :4], aligned(4, 8), (False, False), "nn", 16),
        (aligned(8, 4), aligned(4, 1), (False, False), "nt", 16),
    ],
)
def test_layout_and_alignment(
    gpu: FakeGpu, a: Array, b: Array, flags: tuple[bool, bool], layout: str, align: int
) -> None:
    found = problem(gpu, a=a, b=b, trans_a=flags[0], trans_b=flags[1])
    assert (found.layout, found.align) == (layout, align)


def test_odd_batch_stride_lowers_the_alignment(gpu: FakeGpu) -> None:
    a = np.lib.stride_tricks.as_strided(aligned(200), (3, 8, 4), (4 * 34, 16, 4))
    found = problem(gpu, a=a, b=np.stack([aligned(4, 8)] * 3))
    assert (found.batch, found.align <= 8) == (3, True)


@pytest.mark.parametrize(
    ("a", "b", "sizes", "launches"),
    [
        ((6, 5, 4), (4, 3), (30, 3, 4, 1), 1),  # one B for all: more rows
        ((6, 1, 4), (4, 3), (6, 3, 4, 1), 1),
        ((2, 3, 5, 4), (2, 3, 4, 3), (5, 3, 4, 6), 1),
        ((5, 4), (7, 4, 3), (5, 3, 4, 7), 1),
        ((2, 1, 5, 4), (1, 9, 4, 3), (5, 3, 4, 9), 2),  # no single stride: a loop over the shorter axis
        ((2, 7, 5, 4), (7, 4, 3), (5, 3, 4, 7), 2),
    ],
)
def test_batches_collapse(
    gpu: FakeGpu, a: tuple[int, ...], b: tuple[int, ...], sizes: tuple[int, ...], launches: int
) -> None:
    found = problem(gpu, a=f32(*a), b=f32(*b))
    assert (found.m, found.n, found.k, found.batch) == sizes
    assert gpu.launches == launches


def test_epilogue_is_in_the_problem_and_null_pointers_where_absent(gpu: FakeGpu) -> None:
    x = f32(4, 4)
    full = problem(gpu, a=x, b=x, c=x, beta=2, bias=x[0], activation="silu", precision="tf32")
    assert (full.accumulate, full.bias, full.activation, full.precision) == (True, True, "silu", "tf32")
    gpu.plans.clear()
    plain = problem(gpu, a=x, b=x)
    assert (plain.accumulate, plain.bias, plain.activation, plain.precision) == (False, False, "none", "ieee")
    params = gpu.plans[0].launches[0]
    assert (params.c, params.bias) == (None, None)


@pytest.mark.parametrize(("m", "n", "batch"), [(0, 3, 2), (3, 0, 2), (3, 3, 0)])
def test_an_empty_result_launches_nothing(gpu: FakeGpu, m: int, n: int, batch: int) -> None:
    assert run_on(gpu, {"a": f32(batch, m, 4), "b": f32(batch, 4, n)}).shape == (batch, m, n)
    assert gpu.launches == 0


def test_an_empty_sum_is_launched(gpu: FakeGpu) -> None:
    found = run_on(gpu, {"a": f32(3, 0), "b": f32(0, 2), "bias": np.float32([1, -1]), "activation": "relu"})
    assert found.tolist() == [[1, 0]] * 3
    assert gpu.launches == 1


def test_sizes_up_to_the_limit_have_64_bit_offsets(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.broadcast_to(np.float32(1), (2**31 - 1, 1))
    views = operands.Views(
        gpu.adapter.view(gpu.array(a), "a"), gpu.adapter.view(gpu.array(np.ones((1, 2), "f4")), "b"), None, None, None
    )
    call = operands.prepare(views, operands.Options(False, False, None, None, "ieee", False))
    assert call.problem is not None
    assert call.problem.m == 2**31 - 1
    stacked = views.a._replace(shape=(3, 2**31 - 1, 2**31 - 1), strides=((2**31 - 1) ** 2, 2**31 - 1, 1))
    b = views.b._replace(shape=(3, 2**31 - 1, 2), strides=(2 * (2**31 - 1), 2, 1))
    call = operands.prepare(views._replace(a=stacked, b=b), operands.Options(False, False, None, None, "ieee", False))
    params = ops.fill(call.form, ops.Pointers(1, 1, 1, 1, 1), 1, 0)
    assert (params.a_batch, params.a_row) == ((2**31 - 1) ** 2, 2**31 - 1)


# ---- dtypes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_dtype", "out_dtype", "found"),
    [
        ("float32", None, "float32"),
        ("float32", "bf16", "bfloat16"),
        ("float32", np.float16, "float16"),
        ("float16", None, "float16"),
        ("bfloat16", None, "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("int8", None, "int32"),
        ("int8", "float32", "float32"),
    ],
)
def test_output_dtypes(gpu: FakeGpu, given_dtype: str, out_dtype: Any, found: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = f32(4, 4).astype(getattr(ml_dtypes, given_dtype, given_dtype))
    for result in (tilery.gemm(x, x, out_dtype=out_dtype), run_on(gpu, {"a": x, "b": x, "out_dtype": out_dtype})):
        assert result.dtype.name == found
        np.testing.assert_array_equal(result.astype(float), (f32(4, 4) @ f32(4, 4)).astype(result.dtype).astype(float))


def test_out_decides_the_dtype() -> None:
    out = np.empty((2, 2), np.float16)
    assert tilery.gemm(f32(2, 2), f32(2, 2), out=out) is out


@pytest.mark.parametrize("bias", [np.float32([1, 2]), np.float16([1, 2])])
def test_bias_of_the_input_dtype_or_f32(gpu: FakeGpu, bias: Array) -> None:
    x = f32(2, 2).astype(np.float16)
    np.testing.assert_array_equal(run_on(gpu, {"a": x, "b": x, "bias": bias}), (f32(2, 2) @ f32(2, 2) + bias))


# ---- linear --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (2, 3, 4), (0,), (2, 0, 3)])
def test_linear_keeps_leading_axes(gpu: FakeGpu, lead: tuple[int, ...]) -> None:
    x, weight, bias = f32(*lead, 5), f32(3, 5, seed=1), f32(3, seed=2)
    wanted = np.maximum(x @ weight.T + bias, 0)
    np.testing.assert_array_equal(tilery.linear(x, weight, bias, "relu"), wanted)
    found = tilery.linear(*(gpu.array(v) for v in (x, weight, bias)), "relu").data  # type: ignore[call-arg]
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)
    assert gpu.launches == (0 if 0 in lead else 1)
    if math.prod(lead):
        assert gpu.plans[0].problem.m == math.prod(lead)


def test_linear_of_rows_that_no_single_stride_reaches(gpu: FakeGpu) -> None:
    x, weight = f32(4, 7, 5)[:, ::2], f32(3, 5)
    found = tilery.linear(gpu.array(x), gpu.array(weight)).data
    np.testing.assert_array_equal(found, x @ weight.T)
    assert (gpu.plans[0].problem.m, gpu.plans[0].problem.batch, gpu.launches) == (4, 4, 1)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        (
            f32(4, 5),
            f32(3, 6),
            None,
            r"x of shape \(4, 5\) has k = 5, weight of shape \(3, 6\) \(transposed\) has k = 6",
        ),
        (f32(4, 5), f32(5), None, r"weight has shape \(5,\)"),
        (f32(4, 5), f32(2, 3, 5), None, r"weight has shape \(2, 3, 5\)"),
        (f32(4, 5), f32(3, 5), f32(4), r"bias has shape \(4,\)"),
        (np.array(3, np.float32), f32(3, 5), None, "x is a single number"),
    ],
)
def test_linear_errors_use_its_argument_names(x: Array, weight: Array, bias: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        tilery.linear(x, weight, bias)


def test_callables_have_the_documented_signature() -> None:
    keys = ["out", "bias", "activation", "alpha", "beta", "c", "trans_a", "trans_b", "out_dtype", "precision"]
    assert list(inspect.signature(tilery.gemm).parameters) == ["a", "b", *keys]
    assert list(inspect.signature(tilery.linear).parameters) == ["x", "weight", "bias", "activation"]
