"""gemm and linear: results through the whole call, on the CPU and on a fake GPU, and everything that they refuse."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import tilery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tilery import operands, ops
from tilery.errors import InvalidInput, TileryError, UnknownName

from tests.runtime.conftest import FakeGpu

Array = np.ndarray[Any, Any]


def f32(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


# ---- any shapes, strides and flags, against numpy's @ ---------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> Array:
    """An array of small integers of this shape, as a view: steps, flips, permuted axes, offsets, broadcast axes."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -3])) for _ in shape]
    spread = [draw(st.sampled_from([False, False, False, True])) for _ in shape]
    sizes = [1 if spread[axis] else shape[axis] * abs(steps[axis]) for axis in order]
    pad = draw(st.integers(0, 4))
    count = math.prod(sizes)
    values = np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 5, count + pad).astype(np.float32)
    array = values[pad:].reshape(sizes).transpose(np.argsort(order))
    array = array[tuple(slice(None) if spread[axis] else slice(None, None, steps[axis]) for axis in range(len(shape)))]
    return np.broadcast_to(array, shape)


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


@given(calls())
def test_cpu_calls_equal_numpy(call: dict[str, Any]) -> None:
    found = tilery.gemm(**call)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected(call))


def run_on(gpu: FakeGpu, call: dict[str, Any]) -> Array:
    on_gpu = {name: gpu.array(value) if isinstance(value, np.ndarray) else value for name, value in call.items()}
    found: Array = tilery.gemm(**on_gpu).data
    return found


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


# ---- which Problem a call becomes ------------------------------------------------------------------------------------------


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


# ---- dtypes ----------------------------------------------------------------------------------------------------------------


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


# ---- linear ----------------------------------------------------------------------------------------------------------------


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


# ---- memory that arrays share ------------------------------------------------------------------------------------------------


def test_c_may_be_out_itself(gpu: FakeGpu) -> None:
    for flip in (False, True):
        out = f32(4, 4, seed=3).T if flip else f32(4, 4, seed=3)
        wanted = f32(4, 4) @ f32(4, 4) + 2 * out
        array = gpu.array(out)
        assert tilery.gemm(gpu.array(f32(4, 4)), gpu.array(f32(4, 4)), out=array, c=array, beta=2) is array
        np.testing.assert_array_equal(out, wanted)


def shared(name: str) -> dict[str, Any]:
    base = f32(12, 4)
    call: dict[str, Any] = {"a": f32(4, 4), "b": f32(4, 4), "out": base[4:8], "c": f32(4, 4), "beta": 1, "bias": f32(4)}
    part = {"a": base[5:9], "b": base[1:5], "c": base[4:8].T, "bias": base[7]}
    return call | {name: part[name]}


@pytest.mark.parametrize("name", ["a", "b", "c", "bias"])
def test_any_other_overlap_with_out_is_refused_and_nothing_written(gpu: FakeGpu, name: str) -> None:
    call = shared(name)
    before = call["out"].base.copy()
    with pytest.raises(InvalidInput, match=f"out shares memory with {name}.*copy of {name}"):
        tilery.gemm(**call)
    with pytest.raises(InvalidInput, match=f"out shares memory with {name}"):
        run_on(gpu, call)
    assert np.array_equal(call["out"].base, before)
    assert gpu.launches == 0


def test_interleaved_views_that_share_nothing_are_taken() -> None:
    base = f32(4, 8)
    wanted = base[:, ::2] @ base[:, ::2]
    tilery.gemm(base[:, ::2], base[:, ::2].copy(), out=base[:, 1::2])
    np.testing.assert_array_equal(base[:, 1::2], wanted)


@pytest.mark.parametrize(
    "out",
    [
        np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (2, 2), (0, 4)),
        np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (2, 2), (4, 4)),
    ],
)
def test_out_that_overlaps_itself_is_refused(out: Array) -> None:
    with pytest.raises(InvalidInput, match="indices may share an element"):
        tilery.gemm(f32(2, 2), f32(2, 2), out=out)


# ---- everything else that is refused -----------------------------------------------------------------------------------------

A, B = f32(3, 4), f32(4, 5)
S8 = np.ones((4, 4), np.int8)
READ_ONLY = np.zeros((3, 5), np.float32)
READ_ONLY.flags.writeable = False
HUGE = np.broadcast_to(np.float32(1), (2**31, 1))

BAD: list[tuple[dict[str, Any], type[TileryError], str]] = [
    ({"b": f32(5, 4)}, InvalidInput, r"a of shape \(3, 4\) has k = 4, b of shape \(5, 4\) has k = 5"),
    ({"trans_a": True}, InvalidInput, r"a of shape \(3, 4\) \(transposed\) has k = 3"),
    ({"a": f32(4)}, InvalidInput, r"a has shape \(4,\).*a\[None, :\].*a\[:, None\]"),
    ({"b": f32(4)}, InvalidInput, r"b has shape \(4,\).*b\[None, :\]"),
    ({"a": np.array(1, np.float32)}, InvalidInput, "a is a single number"),
    ({"a": f32(2, 3, 4), "b": f32(3, 4, 5)}, InvalidInput, "leading axes"),
    ({"a": A.tolist()}, InvalidInput, "a is a list"),
    ({"b": None}, InvalidInput, "b is a NoneType"),
    ({"a": A.astype(np.float64)}, InvalidInput, "a has dtype float64"),
    ({"a": A.astype(np.float16)}, InvalidInput, "a is f16 and b is f32"),
    ({"a": S8.astype(np.int32), "b": S8.astype(np.int32)}, InvalidInput, "a and b are s32"),
    ({"a": HUGE, "b": np.ones((1, 2), np.float32)}, InvalidInput, r"m = 2147483648 is out of range"),
    ({"a": np.ones((2, 1), np.float32), "b": HUGE.T}, InvalidInput, r"n = 2147483648 is out of range"),
    ({"a": HUGE, "b": HUGE, "trans_a": True}, InvalidInput, r"k = 2147483648 is out of range"),
    ({"c": f32(3, 5)}, InvalidInput, "c is given and beta is 0"),
    ({"beta": 1}, InvalidInput, "there is no c"),
    ({"c": f32(5), "beta": 1}, InvalidInput, r"c has shape \(5,\).*not broadcast"),
    ({"c": f32(3, 5).astype(np.float16), "beta": 1}, InvalidInput, "c is f16 and the result f32"),
    ({"bias": f32(3)}, InvalidInput, r"bias has shape \(3,\), and must have \(5,\)"),
    ({"bias": f32(1, 5)}, InvalidInput, r"bias has shape \(1, 5\)"),
    ({"bias": np.ones(5, np.float16)}, InvalidInput, "bias is f16"),
    ({"out": f32(5, 3)}, InvalidInput, r"out has shape \(5, 3\)"),
    ({"out": np.zeros((3, 5), np.int32)}, InvalidInput, "f32 inputs cannot write s32"),
    ({"out": f32(3, 5), "out_dtype": "f16"}, InvalidInput, "out is f32 and out_dtype asks for f16"),
    ({"out": READ_ONLY}, InvalidInput, "out is read-only"),
    ({"out": np.zeros((3, 5))}, InvalidInput, "out has dtype float64"),
    ({"activation": "rleu"}, UnknownName, "did you mean 'relu'"),
    ({"activation": ["relu"]}, UnknownName, "unknown activation"),
    ({"activation": 1}, UnknownName, "unknown activation"),
    ({"precision": "tf23"}, UnknownName, "did you mean 'tf32'"),
    ({"out_dtype": "flaot32"}, UnknownName, "did you mean 'float32'"),
    ({"out_dtype": "int8"}, InvalidInput, "f32 inputs cannot write s8"),
    ({"alpha": "2"}, InvalidInput, "alpha must be a real number, got a str"),
    ({"alpha": 1j}, InvalidInput, "alpha must be a real number, got a complex"),
    ({"alpha": None}, InvalidInput, "alpha must be a real number"),
    ({"alpha": A}, InvalidInput, "alpha must be a real number, got a ndarray"),
    ({"alpha": 1e39}, InvalidInput, "beyond float32"),
    ({"c": f32(3, 5), "beta": 10**400}, InvalidInput, "beyond float32"),
    ({"trans_a": "no"}, InvalidInput, "trans_a must be True or False"),
    ({"a": S8, "b": S8, "alpha": 0.5}, InvalidInput, "alpha = 0.5 with an int32 result"),
    ({"a": S8, "b": S8, "alpha": 2**24 + 1}, InvalidInput, "at most 2"),
    ({"a": S8, "b": S8, "alpha": math.nan}, InvalidInput, "alpha = nan"),
    ({"a": S8, "b": S8, "c": np.ones((4, 4), np.int32), "beta": math.inf}, InvalidInput, "beta = inf"),
    ({"a": S8, "b": S8, "activation": "gelu"}, InvalidInput, "out_dtype='f32'"),
    ({"a": S8, "b": S8, "bias": np.ones(4, np.float32)}, InvalidInput, "bias is f32.*cast it to s32"),
    ({"a": S8, "b": S8, "out_dtype": "float16"}, InvalidInput, "s8 inputs cannot write f16"),
    ({"a": S8, "b": S8, "precision": "tf32"}, InvalidInput, "tf32"),
]


@pytest.mark.parametrize(("change", "kind", "message"), BAD)
def test_bad_input_is_refused_before_anything_happens(
    gpu: FakeGpu, change: dict[str, Any], kind: type[TileryError], message: str
) -> None:
    call: dict[str, Any] = {"a": A, "b": B} | change
    before = call["out"].copy() if "out" in call else None
    with pytest.raises(kind, match=message):
        tilery.gemm(**call)
    on_gpu = all(isinstance(call[name], np.ndarray) for name in ("a", "b")) and not isinstance(
        call.get("alpha"), np.ndarray
    )
    if on_gpu:
        with pytest.raises(kind, match=message):
            run_on(gpu, call)
    assert gpu.launches == 0
    assert not gpu.adapter.allocated
    assert before is None or np.array_equal(call["out"], before)


def test_devices_must_be_one(gpu: FakeGpu) -> None:
    with pytest.raises(InvalidInput, match=r"a on cuda:0, b on cuda:1, bias on cuda:0"):
        tilery.gemm(gpu.array(A), gpu.array(B, 1), bias=gpu.array(f32(5)))
    with pytest.raises(InvalidInput, match=r"a of fake, b of numpy"):
        tilery.gemm(gpu.array(A), B)


def test_addresses_inside_an_element_are_refused_on_a_gpu_and_taken_on_the_cpu(gpu: FakeGpu) -> None:
    odd = np.zeros(200, np.uint8)[1:49].view(np.float32).reshape(3, 4)
    if odd.__array_interface__["data"][0] % 4 == 0:
        pytest.skip("numpy's buffer begins at an odd address")
    assert tilery.gemm(odd, B).shape == (3, 5)
    with pytest.raises(InvalidInput, match="a begins at"):
        run_on(gpu, {"a": odd, "b": B})


@pytest.mark.parametrize("alpha", [math.inf, math.nan, np.float32(2), np.int64(3), True])
def test_any_real_alpha_is_taken(alpha: Any) -> None:
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(tilery.gemm(A, B, alpha=alpha), np.float32(float(alpha) * (A @ B).astype(float)))


def test_zero_alpha_and_numpy_zero_beta_are_zero() -> None:
    assert not tilery.gemm(A, B, alpha=0, beta=np.float32(0)).any()


def test_c_is_not_read_into_nan_when_absent_and_nan_propagates(gpu: FakeGpu) -> None:
    c = np.full((3, 5), np.nan, np.float32)
    assert np.isnan(run_on(gpu, {"a": A, "b": B, "c": c, "beta": 1})).all()


# ---- explain -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"op": "gem"}, UnknownName, "did you mean 'gemm'"),
        ({"dtype": "bf61"}, UnknownName, "bf16"),
        ({"dtype": "int32"}, UnknownName, "dtype of inputs"),
        ({"dtype": "tf32"}, UnknownName, "precision='tf32'"),
        ({"layout": "nx"}, UnknownName, "layout"),
        ({"m": -1}, InvalidInput, "m = -1"),
        ({"align": 3}, InvalidInput, "align"),
        ({"out_dtype": "s32"}, InvalidInput, "cannot write s32"),
    ],
)
def test_explain_refuses_what_has_no_meaning(change: dict[str, Any], kind: type[TileryError], message: str) -> None:
    question: dict[str, Any] = {"op": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "f32", "arch": "sm_90a"}
    with pytest.raises(kind, match=message):
        tilery.explain(**question | change)


@pytest.fixture
def pack(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runtime import simulated
    from tilery import jit
    from tilery import pack as packs

    made = simulated.pack()
    monkeypatch.setattr(packs, "builtin", lambda: made)
    monkeypatch.setattr(jit, "toolchain", lambda: simulated.NVRTC)


@pytest.mark.usefixtures("pack")
def test_explain_decides_for_a_named_arch() -> None:
    decision = tilery.explain(
        "gemm", m=512, n=512, k=512, dtype="bfloat16", layout="nt", arch="sm_90a", activation="relu"
    )
    assert decision.problem == tilery.Problem("gemm", 512, 512, 512, 1, "bf16", "bf16", "nt", 16, activation="relu")
    assert decision.device.cc == (9, 0)
    assert decision.variant.name in str(decision)
    with pytest.raises(UnknownName, match="sm_90a"):
        tilery.explain("gemm", m=8, n=8, k=8, dtype="f32", arch="sm_90")


@pytest.mark.usefixtures("pack")
def test_explain_without_a_gpu_and_arch_lists_the_archs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilery import device

    monkeypatch.setattr(device, "devices", lambda: ())
    with pytest.raises(InvalidInput, match=r"arch=.*sm_90a"):
        tilery.explain("gemm", m=8, n=8, k=8, dtype="f32")


def test_callables_have_the_documented_signature() -> None:
    keys = ["out", "bias", "activation", "alpha", "beta", "c", "trans_a", "trans_b", "out_dtype", "precision"]
    assert list(inspect.signature(tilery.gemm).parameters) == ["a", "b", *keys]
    assert list(inspect.signature(tilery.linear).parameters) == ["x", "weight", "bias", "activation"]
