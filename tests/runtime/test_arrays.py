"""What each array library's adapter reads, refuses and allocates."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilery
from tilery import arrays
from tilery.arrays import adapter_for
from tilery.dtypes import canonical_dtype
from tilery.errors import InvalidInput, UnknownName


def view(array: Any) -> arrays.ArrayView:
    return adapter_for(array, "a").view(array, "a")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("bfloat16", "bf16"),
        ("BF16", "bf16"),
        ("torch.float16", "f16"),
        ("half", "f16"),
        ("int8", "s8"),
        (np.float32, "f32"),
        (np.dtype("int32"), "s32"),
        (np.dtype(ml_dtypes.bfloat16), "bf16"),
        (ml_dtypes.bfloat16, "bf16"),
    ],
)
def test_canonical_dtype(given: Any, expected: str) -> None:
    assert canonical_dtype(given) == expected


@pytest.mark.parametrize(
    ("given", "near"), [("bflaot16", "bfloat16"), (np.float64, "float32"), ("tf32", "precision='tf32'"), (3, "3")]
)
def test_unknown_dtypes_give_near_names(given: Any, near: str) -> None:
    with pytest.raises(UnknownName, match=near):
        canonical_dtype(given)


# ---- numpy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.int32])
def test_numpy_views_have_strides_in_elements(dtype: Any) -> None:
    array = np.zeros((6, 8), dtype)
    found = view(array[::-2, 1::3].T)
    assert found.ptr == array.__array_interface__["data"][0] + (5 * 8 + 1) * array.itemsize
    assert (found.shape, found.strides) == ((3, 3), (3, -16))
    assert (found.kind, found.ordinal, found.writable) == ("cpu", -1, True)
    assert found.dtype == canonical_dtype(dtype)
    assert not view(np.broadcast_to(array, (2, 6, 8))).writable
    assert view(np.broadcast_to(array, (2, 6, 8))).strides == (0, 8, 1)


def odd_strides() -> Any:
    return np.zeros((3, 2), dtype=[("x", "f4"), ("y", "i1")])["x"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.zeros((2, 2)), "dtype float64"),
        (lambda: np.zeros((2, 2), np.complex64), "dtype complex64"),
        (lambda: np.zeros((2, 2), np.uint8), "dtype uint8"),
        (lambda: np.zeros((2, 2), bool), "dtype bool"),
        (lambda: np.zeros((2, 2), object), "dtype object"),
        (lambda: np.zeros((2, 2), ">f4"), "foreign order"),
        (odd_strides, "whole elements"),
        (lambda: np.ma.masked_array(np.zeros((2, 2), "f4")), "mask"),
        (lambda: np.float32(3), "scalar"),
        (lambda: [[1.0]], r"a is a list, not an array.*numpy\.asarray"),
        (lambda: 3.5, "a is a float"),
        (lambda: None, "a is a NoneType"),
    ],
)
def test_what_is_no_usable_array_is_refused_with_advice(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        view(make())


def test_numpy_bfloat16_results_without_ml_dtypes_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(InvalidInput, match="ml_dtypes"):
        tilery.gemm(one, one, out_dtype="bf16")


# ---- torch ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_torch_views(torch: Any) -> None:
    tensor = torch.zeros(4, 6, dtype=torch.bfloat16)
    found = view(tensor[1:, ::2].T)
    assert found[:6] == (tensor.data_ptr() + 12, (3, 3), (2, 6), "bf16", "cpu", -1)
    assert view(torch.nn.Parameter(torch.zeros(2, 2), requires_grad=False)).dtype == "f32"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: t.zeros(2, 2, dtype=t.float64), "dtype float64"),
        (lambda t: t.zeros(2, 2, dtype=t.complex64), "dtype complex64"),
        (lambda t: t.zeros(2, 2, dtype=t.complex64).conj(), "dtype complex64"),
        (lambda t: t.zeros(2, 2, dtype=t.complex64).conj().imag, r"resolve_neg\(\)"),
        (lambda t: t.zeros(2, 2).to_sparse(), r"sparse_coo.*to_dense"),
        (lambda t: t.zeros(2, 2).to_sparse_csr(), r"sparse_csr.*to_dense"),
        (lambda t: t.zeros(2, 2, device="meta"), "device meta"),
        (lambda t: t.quantize_per_tensor(t.zeros(2, 2), 0.1, 0, t.qint8), "int_repr"),
        (lambda t: t.nested.nested_tensor([t.zeros(2, 2), t.zeros(3, 2)]), "nested"),
        (lambda t: type("Mine", (t.Tensor,), {})(t.zeros(2, 2)), r"Mine.*as_subclass"),
        (lambda t: t.zeros(2, 2, requires_grad=True), r"torch\.no_grad\(\).*detach\(\)"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_torch_tensors_that_would_give_wrong_results_are_refused(
    torch: Any, make: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        view(make(torch))


def test_torch_gradients_are_never_lost_silently(torch: Any) -> None:
    x, w = torch.ones(2, 3), torch.nn.Parameter(torch.ones(4, 3))
    with pytest.raises(InvalidInput, match=r"weight requires grad"):
        tilery.linear(x, w)
    with torch.no_grad():
        assert tilery.linear(x, w).tolist() == [[3.0] * 4] * 2
    assert tilery.linear(x, w.detach()).tolist() == [[3.0] * 4] * 2


def test_torch_autograd_sees_that_out_was_overwritten(torch: Any) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    saved = torch.ones(2, 2)
    loss = (x * saved).sum()
    tilery.gemm(torch.ones(2, 2), torch.ones(2, 2), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_torch_inference_mode_and_vmap(torch: Any) -> None:
    with torch.inference_mode():
        one = torch.ones(2, 2)
        assert tilery.gemm(one, one, out=torch.empty(2, 2)).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(InvalidInput, match="vmap"):
        torch.vmap(lambda x: tilery.gemm(x, x))(torch.ones(3, 2, 2))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_results(torch: Any, dtype: str) -> None:
    kind = getattr(torch, dtype)
    a, b = torch.randn(5, 7).to(kind), torch.randn(3, 7).to(kind)
    found = tilery.gemm(a, b, trans_b=True, out_dtype=kind)
    assert type(found) is torch.Tensor
    assert found.dtype is kind
    torch.testing.assert_close(found, (a.double() @ b.double().T).to(kind))


def test_torch_int8(torch: Any) -> None:
    a = torch.randint(-128, 127, (5, 7), dtype=torch.int8)
    found = tilery.gemm(a, a, trans_b=True)
    assert found.dtype is torch.int32
    assert torch.equal(found, a.int() @ a.int().T)


# ---- jax -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_jax_results(jax: Any, dtype: str) -> None:
    a = jax.numpy.arange(6, dtype=dtype).reshape(2, 3)
    found = tilery.gemm(a, a, trans_b=True)
    assert isinstance(found, jax.Array)
    assert found.dtype.name == ("int32" if dtype == "int8" else dtype)
    assert found.tolist() == [[5, 14], [14, 50]]
    assert found.device == a.device


def test_jax_tracers_and_out_are_refused_with_the_reason(jax: Any) -> None:
    one = jax.numpy.ones((2, 2))
    with pytest.raises(InvalidInput, match=r"tracer.*outside"):
        jax.jit(lambda x: tilery.gemm(x, x))(one)
    with pytest.raises(InvalidInput, match=r"tracer"):
        jax.grad(lambda x: tilery.gemm(x, x).sum())(one)
    with pytest.raises(InvalidInput, match="never change"):
        tilery.gemm(one, one, out=one)
    gone = one + 1
    gone.delete()
    with pytest.raises(InvalidInput, match="deleted"):
        tilery.gemm(gone, one)


def test_jax_layouts_give_true_strides(jax: Any) -> None:
    layout = types.SimpleNamespace(layout=types.SimpleNamespace(major_to_minor=(1, 0, 2)))
    array = types.SimpleNamespace(format=layout, shape=(2, 3, 4), ndim=3)
    assert arrays.JaxAdapter()._strides(array) == (4, 8, 1)


# ---- any object ----------------------------------------------------------------------------------------------------


class Dlpack:
    """An array of no known library, as NumPy exports it."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.data.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def test_any_dlpack_object_is_an_input_when_out_is_given() -> None:
    a, out = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 2), np.float32)
    assert tilery.gemm(Dlpack(a), Dlpack(a.T), out=out) is out
    assert out.tolist() == [[5, 14], [14, 50]]
    assert np.array_equal(tilery.gemm(a, Dlpack(a.T), out=np.zeros((2, 2), np.float32)), out)
    target = Dlpack(np.zeros((2, 2), np.float32))
    assert tilery.gemm(Dlpack(a), Dlpack(a.T), out=target) is target
    assert np.array_equal(target.data, out)


def test_any_dlpack_object_without_out_says_what_to_do() -> None:
    a = np.ones((2, 2), np.float32)
    with pytest.raises(InvalidInput, match=r"cannot allocate a Dlpack: pass out="):
        tilery.gemm(a, Dlpack(a))
    with pytest.raises(InvalidInput, match="dtype float64"):
        tilery.gemm(Dlpack(np.ones((2, 2))), a, out=np.ones((2, 2), np.float32))


def test_libraries_are_not_mixed(torch: Any) -> None:
    with pytest.raises(InvalidInput, match=r"a of numpy, b of torch"):
        tilery.gemm(np.ones((2, 2), np.float32), torch.ones(2, 2))


# ---- cupy, as far as it can be told without a GPU ------------------------------------------------------------------


class CupyLike:
    """What the adapter reads of a cupy.ndarray."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.strides = shape, np.dtype(dtype), strides
        self.data, self.device = types.SimpleNamespace(ptr=4096), types.SimpleNamespace(id=3)


def test_cupy_arrays_are_read_by_their_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = types.ModuleType("cupy")
    cupy.ndarray = CupyLike  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    monkeypatch.setattr(CupyLike, "__module__", "cupy._core.core")
    monkeypatch.setattr(arrays, "_by_type", {})
    monkeypatch.setattr(arrays, "_adapters", {})
    assert view(CupyLike((2, 3), "f2", (-2, 8))) == (4096, (2, 3), (-1, 4), "f16", "cuda", 3, True)
    with pytest.raises(InvalidInput, match="dtype float64"):
        view(CupyLike((2, 3), "f8", (24, 8)))
