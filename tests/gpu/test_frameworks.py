"""Arrays of CuPy, JAX and of anything that shows its memory: the same kind out, on the right stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilery
from tests.gpu.compare import Epilogue, check
from tests.gpu.memory import random
from tilery.errors import InvalidInput

pytestmark = pytest.mark.gpu


def seen(array: Any) -> Any:
    """A CuPy or JAX array as a tensor."""
    return torch.from_dlpack(array)


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def jax() -> Any:
    found = pytest.importorskip("jax")
    platform = found.devices()[0].platform
    if platform == "cpu":
        pytest.skip("this JAX has no GPU")
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_cupy(cupy: Any, dtype: str) -> None:
    source = random((70, 50), getattr(torch, dtype)), random((50, 33), getattr(torch, dtype))
    a, b = (cupy.asarray(x) for x in source)
    got = tilery.gemm(a, b)
    assert isinstance(got, cupy.ndarray)
    assert got.dtype.name == ("int32" if dtype == "int8" else dtype)
    check(seen(got), *source)


def test_cupy_strides_of_every_sign(cupy: Any) -> None:
    base_a, base_b = cupy.asarray(random((90, 120), torch.float32)), cupy.asarray(random((120, 80), torch.float32))
    for a, b in (
        (base_a[::-1], base_b),
        (base_a[:, ::-1], base_b[::-1]),
        (base_a[::-2, ::3], base_b[::-3, ::-1]),
        (base_a.T[::-1].T, base_b[:, ::2]),
        (cupy.asfortranarray(base_a), base_b.T[::-1].T),
    ):
        check(seen(tilery.gemm(a, b)), *(seen(cupy.ascontiguousarray(x)) for x in (a, b)))


def test_cupy_out_epilogue_and_stream(cupy: Any) -> None:
    tensors = [random(shape, torch.float32) for shape in ((64, 48), (48, 32), (64, 32), (32,))]
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        a, b, c, bias = (cupy.array(cupy.asarray(x)) for x in tensors)
        out = cupy.full((64, 32), cupy.nan, dtype="float32")
        got = tilery.gemm(a, b, out=out, c=c, beta=0.5, bias=bias, activation="silu")
    stream.synchronize()
    assert got is out
    check(seen(out), *tensors[:2], Epilogue(1.0, 0.5, *tensors[2:], "silu"))


def test_cupy_linear(cupy: Any) -> None:
    x, weight, bias = random((2, 5, 64), torch.float16), random((24, 64), torch.float16), random((24,), torch.float16)
    got = tilery.linear(*(cupy.asarray(tensor) for tensor in (x, weight, bias)), activation="relu")
    assert got.shape == (2, 5, 24)
    check(seen(got), x, weight.t(), Epilogue(bias=bias, activation="relu"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_jax(jax: Any, dtype: str) -> None:
    source = random((70, 50), getattr(torch, dtype)), random((50, 33), getattr(torch, dtype))
    torch.cuda.synchronize()
    a, b = (jax.numpy.from_dlpack(x.clone()) for x in source)
    got = tilery.gemm(a, b)
    assert isinstance(got, jax.Array)
    assert got.devices() == a.devices()
    assert got.dtype.name == ("int32" if dtype == "int8" else dtype)
    check(seen(got), *source)


def test_jax_after_and_before_its_own_work(jax: Any) -> None:
    source = random((512, 300), torch.float32), random((300, 200), torch.float32)
    torch.cuda.synchronize()
    a, b = (jax.numpy.from_dlpack(x.clone()) for x in source)
    doubled = tilery.gemm(a + a, b) + 0.0
    check(seen(doubled), source[0] * 2, source[1])
    batched = tilery.gemm(jax.numpy.stack([a, a + 1]), b.T, trans_b=True)
    check(seen(batched), torch.stack([source[0], source[0] + 1]), source[1])


def test_jax_arrays_are_not_written(jax: Any) -> None:
    a = jax.numpy.ones((4, 4))
    with pytest.raises(InvalidInput, match="out"):
        tilery.gemm(a, a, out=jax.numpy.zeros((4, 4)))


class Foreign:
    """An array of no known library."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    @property
    def __cuda_array_interface__(self) -> Any:
        # cuda-core reads version 3; torch still says 2, and differs from 3 only in that it names no stream.
        return {**self.tensor.__cuda_array_interface__, "version": 3}


class ForeignDlpack:
    """An array of no known library that speaks DLPack."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("kind", [Foreign, ForeignDlpack])
def test_foreign_arrays(kind: Any) -> None:
    a, b = random((33, 20), torch.float32), random((20, 45), torch.float32)
    out = torch.empty((33, 45), device="cuda")
    torch.cuda.synchronize()
    tilery.gemm(kind(a), b, out=out)
    check(out, a, b)
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    tilery.gemm(kind(a), kind(b), out=kind(out))
    check(out, a, b)
    with pytest.raises(InvalidInput, match="out="):
        tilery.gemm(kind(a), kind(b))
