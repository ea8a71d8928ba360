"""Arrays of each library on a real GPU: values, the caller's stream and device, and lifetimes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilery
from tests.runtime.fake_cuda import f32

pytestmark = pytest.mark.gpu


class Cai:
    """An array of no known library."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        # cuda-core reads version 3; torch still says 2, and differs from 3 only in that it names no stream.
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3}


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_torch_runs_on_the_callers_current_stream(torch: Any) -> None:
    stream = torch.cuda.Stream()
    a, b = torch.ones(512, 512, device="cuda"), torch.ones(512, 512, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        a.fill_(2)
        found = tilery.gemm(a, b)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(found, torch.full_like(found, 1024))


def test_torch_on_every_device_whatever_the_current_one(torch: Any) -> None:
    for ordinal in reversed(range(torch.cuda.device_count())):
        x = torch.eye(33, device=f"cuda:{ordinal}")
        assert torch.equal(tilery.gemm(x, x, alpha=3), 3 * x)
        assert torch.cuda.current_device() == 0


def test_torch_linear_writes_nothing_but_its_result(torch: Any) -> None:
    x, weight, bias = (torch.from_numpy(f32(*shape)).cuda() for shape in ((3, 5, 40), (24, 40), (24,)))
    found = tilery.linear(x, weight, bias, "relu")
    assert torch.equal(found, torch.relu(x @ weight.T + bias))
    whole = torch.full((34, 50), 7.0, device="cuda")
    out = whole[1:16, 1:25]
    tilery.gemm(x.reshape(15, 40), weight, trans_b=True, out=out)
    assert torch.equal(out, x.reshape(15, 40) @ weight.T)
    assert int((whole == 7).sum()) >= whole.numel() - out.numel()


def test_objects_of_no_known_library(torch: Any) -> None:
    a, b, out = (torch.from_numpy(f32(16, 16, seed=seed)).cuda() for seed in range(3))
    assert tilery.gemm(Cai(a), Cai(b), out=out) is out
    assert torch.equal(out, a @ b)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    a, b = jax.numpy.asarray(f32(37, 53)), jax.numpy.asarray(f32(53, 19))
    found = tilery.gemm(a * 2, b)
    assert found.device == a.device
    np.testing.assert_array_equal(np.asarray(found), 2 * f32(37, 53) @ f32(53, 19))


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    a, b = cupy.asarray(f32(37, 53)), cupy.asarray(f32(19, 53))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        found = tilery.gemm(a, b, trans_b=True)
        stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(found), f32(37, 53) @ f32(19, 53).T)
