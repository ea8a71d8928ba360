"""Everything that gemm refuses, on the CPU and on a fake GPU: nothing is launched, allocated or written."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilery
from tests.runtime.fake_cuda import Array, FakeGpu, f32, run_on
from tilery.errors import InvalidInput, TileryError, UnknownName

# ---- memory that arrays share --------------------------------------------------------------------------------------


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


# ---- everything else that is refused -------------------------------------------------------------------------------

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
    ({"a": A.astype(np.float64)}, InvalidInput, "a has dtype float64.* to one of float32, float16, bfloat16, int8$"),
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
    (
        {"out": np.zeros((3, 5))},
        InvalidInput,
        "out has dtype float64.* to one of float32, float16, bfloat16, int32, int8$",
    ),
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
