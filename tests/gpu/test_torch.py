"""The public API on PyTorch tensors: strides, batches, streams, threads, empty sizes, out, linear."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import tilery
from tests.gpu.compare import Epilogue, check
from tests.gpu.memory import operand, random, result

pytestmark = pytest.mark.gpu

# Clocks for which a stream is kept busy: about 0.1 s.
BUSY = 200_000_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8], ids=str)
def test_the_result_is_a_tensor_like_the_inputs(dtype: Any) -> None:
    a, b = random((129, 65), dtype), random((65, 70), dtype)
    got = tilery.gemm(a, b)
    assert isinstance(got, torch.Tensor)
    assert (got.device, got.is_contiguous()) == (a.device, True)
    assert got.dtype is (torch.int32 if dtype is torch.int8 else dtype)
    check(got, a, b)


@pytest.mark.parametrize("out_dtype", ["float32", torch.float16, torch.bfloat16], ids=str)
def test_out_dtype(out_dtype: Any) -> None:
    a, b = random((64, 96), torch.bfloat16), random((96, 48), torch.bfloat16)
    check(tilery.gemm(a, b, out_dtype=out_dtype), a, b)


def test_tf32_is_used_only_where_allowed() -> None:
    a, b = random((256, 512), torch.float32), random((512, 256), torch.float32)
    check(tilery.gemm(a, b), a, b)
    check(tilery.gemm(a, b, precision="tf32"), a, b, tf32=True)


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_views(layout: str, step: int) -> None:
    a = operand((100, 77), torch.bfloat16, letter=layout[0], step=step, pad=3, offset=1)
    b = operand((77, 90), torch.bfloat16, letter=layout[1], step=step, pad=5, offset=7)
    check(tilery.gemm(a, b), a, b)
    check(tilery.gemm(a.t(), b.t(), trans_a=True, trans_b=True), a, b)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", [(8, 24, 13), (9, 11, 8), (1, 8, 5), (5, 1, 3), (1, 1, 1), (61, 130, 70)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_rows_that_end_within_a_chunk(dtype: Any, sizes: tuple[int, int, int], layout: str) -> None:
    """Rows begin at multiples of 16 bytes and do not end there: what follows is NaN, and must not come in."""
    m, n, k = sizes
    a_line, b_line = (k if layout[0] == "n" else m), (n if layout[1] == "n" else k)
    a = operand((m, k), dtype, letter=layout[0], pad=-a_line % 16)
    b = operand((k, n), dtype, letter=layout[1], pad=-b_line % 16)
    check(tilery.gemm(a, b), a, b)


@pytest.mark.parametrize(
    ("lead_a", "lead_b"),
    [((3,), (3,)), ((3,), ()), ((), (3,)), ((1,), (4,)), ((2, 3), (2, 3)), ((2, 1), (3,)), ((2, 1, 3), (4, 1))],
    ids=str,
)
def test_batches_broadcast(lead_a: tuple[int, ...], lead_b: tuple[int, ...]) -> None:
    a, b = random((*lead_a, 33, 40), torch.float16), random((*lead_b, 40, 50), torch.float16)
    check(tilery.gemm(a, b), a, b)
    check(tilery.gemm(a.mT.contiguous().mT, b), a, b)


def test_expanded_batches_and_more_than_a_grid_holds() -> None:
    a, b = random((4, 5), torch.float32), random((70000, 5, 3), torch.float32)
    check(tilery.gemm(a.expand(70000, 4, 5), b), a, b)


@pytest.mark.parametrize("sizes", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("lead", [(), (2,), (0,)], ids=str)
def test_empty_sizes(sizes: tuple[int, int, int], lead: tuple[int, ...]) -> None:
    m, n, k = sizes
    a, b, bias = random((*lead, m, k), torch.bfloat16), random((k, n), torch.bfloat16), random((n,), torch.bfloat16)
    got = tilery.gemm(a, b, bias=bias, activation="relu")
    check(got, a, b, Epilogue(bias=bias, activation="relu"))


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_epilogue_into_a_padded_out_that_is_c(dtype: Any, activation: str) -> None:
    a, b = random((70, 50), dtype), random((50, 90), dtype)
    out = result((70, 90), dtype, pad=3, offset=1)
    out.view.copy_(random((70, 90), dtype))
    epilogue = Epilogue(1.5, -0.5, out.view, random((90,), torch.float32), activation)
    before = epilogue.kept()
    assert tilery.gemm(a, b, out=out.view, **epilogue.arguments()) is out.view
    check(out.view, a, b, before)
    assert out.untouched_around()


def test_c_is_not_read_where_beta_is_zero_and_out_is_overwritten() -> None:
    a, b = random((40, 40), torch.float32), random((40, 40), torch.float32)
    out = result((40, 40), torch.float32)
    tilery.gemm(a, b, out=out.view)
    check(out.view, a, b)


def test_out_in_any_order() -> None:
    a, b = random((2, 33, 20), torch.float32), random((2, 20, 45), torch.float32)
    for letter, step in (("t", 1), ("n", 2), ("t", 3)):
        out = result((2, 33, 45), torch.float32, letter=letter, step=step, pad=1)
        tilery.gemm(a, b, out=out.view)
        check(out.view, a, b)


def test_bias_of_each_batch() -> None:
    a, b, bias = random((3, 20, 30), torch.float16), random((3, 30, 40), torch.float16), random((3, 40), torch.float16)
    check(tilery.gemm(a, b, bias=bias), a, b, Epilogue(bias=bias))


def test_integers_wrap() -> None:
    a, b = random((64, 512), torch.int8), random((512, 64), torch.int8)
    c = random((64, 64), torch.int32)
    epilogue = Epilogue(2**24, -7, c)
    check(tilery.gemm(a, b, **epilogue.arguments()), a, b, epilogue)
    check(tilery.gemm(a, b, alpha=0.5, out_dtype="float32"), a, b, Epilogue(0.5))


@pytest.mark.parametrize("shape", [(64,), (5, 64), (2, 7, 64), (2, 3, 5, 64), (0, 64)], ids=str)
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_linear(shape: tuple[int, ...], activation: str | None) -> None:
    x, weight, bias = random(shape, torch.bfloat16), random((96, 64), torch.bfloat16), random((96,), torch.bfloat16)
    got = tilery.linear(x, weight, bias, activation)
    assert tuple(got.shape) == (*shape[:-1], 96)
    check(got.reshape(-1, 96), x.reshape(-1, 64), weight.t(), Epilogue(bias=bias, activation=activation or "none"))


def test_linear_does_what_the_layer_does() -> None:
    layer = torch.nn.Linear(128, 256, device="cuda", dtype=torch.float32)
    x = random((3, 17, 128), torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(tilery.linear(x, layer.weight, layer.bias), layer(x))


def test_the_current_stream_is_used_and_not_waited_for() -> None:
    a, b = random((256, 128), torch.float32), random((128, 64), torch.float32)
    out, source = torch.empty((256, 64), device="cuda"), a.clone()
    tilery.gemm(a, b, out=out)  # loads what the timed call needs
    a.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        a.copy_(source)
        tilery.gemm(a, b, out=out)
        waited = stream.query()
    stream.synchronize()
    assert not waited
    check(out, source, b)


def test_a_new_result_on_another_stream() -> None:
    a, b = torch.zeros((256, 128), device="cuda"), random((128, 64), torch.float32)
    source = random((256, 128), torch.float32)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(BUSY)
        a.copy_(source)
        got = tilery.gemm(a, b)
    stream.synchronize()
    check(got, source, b)


def test_threads_of_their_own_context_and_stream() -> None:
    a, b = random((130, 64), torch.float16), random((64, 50), torch.float16)
    torch.cuda.synchronize()
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        stream = torch.cuda.Stream() if i % 2 else torch.cuda.default_stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                found[i] = tilery.gemm(a, b)
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    for got in found.values():
        check(got, a, b)


def test_explain_tells_what_the_call_takes() -> None:
    a, b = random((512, 4096), torch.bfloat16), random((4096, 4096), torch.bfloat16)
    decision = tilery.explain("gemm", m=512, n=4096, k=4096, dtype="bf16", layout="nn")
    before = tilery.stats()["calls"].get(decision.tier, 0)
    check(tilery.gemm(a, b), a, b)
    assert tilery.stats()["calls"].get(decision.tier, 0) == before + 1
    assert decision.variant.name in str(decision)
