"""The layer itself, feature by feature: probe.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilery.errors import HostError
from tilery.host import Library, Operand

Array = np.ndarray[Any, Any]
SEEDS = (0, 1, 2)


class Params(ctypes.Structure):
    _fields_ = (("inp", ctypes.c_void_p), ("out", ctypes.c_void_p), ("n", ctypes.c_int), ("what", ctypes.c_int))


def run(
    library: Library,
    name: str,
    inp: Array,
    out: Array,
    *,
    n: int = 0,
    what: int = 0,
    grid: int = 1,
    block: Sequence[int] = (32,),
    shared_bytes: int = 0,
    seed: int = 0,
    once: bool = False,
) -> Array:
    params = Params(inp.ctypes.data, out.ctypes.data, n, what)
    writers = np.full(out.size, -1, np.int64)
    operands = [
        Operand("in", inp.ctypes.data, inp.nbytes, inp.itemsize),
        Operand("out", out.ctypes.data, out.nbytes, out.itemsize, writers),
    ]
    library.run(name, params, (grid,), block, shared_bytes=shared_bytes, seed=seed, operands=operands)
    return out


def convert(probe: Library, name: str, values: Array, dtype: Any) -> Array:
    out = np.empty(values.shape, dtype)
    return run(probe, name, values, out, n=values.size, grid=-(-values.size // 256), block=(256,))


def same(got: Array, expected: Array) -> None:
    """Bit for bit, but for what a NaN carries."""
    nan = np.isnan(expected)
    assert (np.isnan(got) == nan).all()
    bits = np.dtype(f"u{got.itemsize}")
    assert np.array_equal(got.view(bits)[~nan], expected.view(bits)[~nan])


def near(values: Array) -> Array:
    """Every value, every value halfway to the next, and their neighbours in f32; NaN and Inf are among them."""
    ordered = np.sort(values.astype(np.float32)[~np.isnan(values.astype(np.float32))])
    with np.errstate(invalid="ignore", over="ignore"):
        middle = ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32)
        largest = ordered[np.isfinite(ordered)].max().astype(np.float64)
        edge = np.float32([largest * (1 + 2.0**-bits) for bits in range(3, 14)])
        points = np.concatenate([ordered, middle, edge, -edge, np.float32([np.nan])])
        return np.concatenate(
            [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
        )


EVERY = np.arange(65536, dtype=np.uint16)


def test_f16_to_f32(probe: Library) -> None:
    same(convert(probe, "f16_to_f32", EVERY, np.float32), EVERY.view(np.float16).astype(np.float32))


def test_bf16_to_f32(probe: Library) -> None:
    same(convert(probe, "bf16_to_f32", EVERY, np.float32), EVERY.view(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize(("name", "dtype"), [("f32_to_f16", np.float16), ("f32_to_bf16", ml_dtypes.bfloat16)])
def test_f32_to_half(probe: Library, name: str, dtype: Any) -> None:
    values = near(EVERY.view(dtype))
    random = np.random.default_rng(0).integers(0, 2**32, 500_000, np.uint32).view(np.float32)
    values = np.concatenate([values, random])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(dtype)
    got = convert(probe, name, values, np.uint16)
    same(got.view(dtype).astype(np.float32), expected.astype(np.float32))
    assert (got[np.isnan(values)] == 0x7FFF).all()


def test_tf32_rounds_ties_away(probe: Library) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32)
    cut = bits & ~np.uint32(0x1FFF)
    bits = np.concatenate([bits, cut, cut | np.uint32(0x1000), np.uint32([0x7F7FFFFF])])
    values = bits.view(np.float32)
    got = convert(probe, "f32_to_tf32", bits, np.uint32).view(np.float32)
    finite = np.isfinite(values)
    exact = np.abs(values[finite].astype(np.float64))
    down = (bits[finite] & np.uint32(0x7FFFE000)).view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        above = ((bits[finite] & np.uint32(0x7FFFE000)) + np.uint32(0x2000)).view(np.float32)
    up = np.where(np.isinf(above), 2.0**128, above.astype(np.float64))
    expected = np.where(exact - down < up - exact, down, np.where(up == 2.0**128, np.inf, up))
    assert np.array_equal(np.abs(got[finite].astype(np.float64)), expected)
    assert (np.signbit(got[finite]) == np.signbit(values[finite])).all()
    same(got[~finite], values[~finite])


@pytest.mark.parametrize("size", [1, 2, 4])
def test_load_words(probe: Library, size: int) -> None:
    for offset in range(0, 16, size):
        for count in range(0, 17, size):
            data = np.arange(1, offset + count + 1, dtype=np.uint8)  # what lies beyond is not the kernel's to read
            out = run(probe, f"load_part_{size}", data, np.zeros(16, np.uint8), n=count, what=offset, block=(1,))
            assert out.tolist() == [*range(offset + 1, offset + count + 1), *[0] * (16 - count)], (offset, count)


@pytest.mark.parametrize(
    ("name", "dtype", "acc"),
    [
        ("mma_f16", np.float16, np.float32),
        ("mma_bf16", ml_dtypes.bfloat16, np.float32),
        ("mma_tf32", np.float32, np.float32),
        ("mma_s8", np.int8, np.int32),
    ],
)
def test_mma(probe: Library, name: str, dtype: Any, acc: Any) -> None:
    rng = np.random.default_rng(0)
    k = 32 // np.dtype(dtype).itemsize
    limit = 128 if dtype is np.int8 else 16
    a, b = rng.integers(-limit, limit, (16, k)).astype(dtype), rng.integers(-limit, limit, (8, k)).astype(dtype)
    c = rng.integers(-1000, 1000, (16, 8)).astype(acc)
    data = np.concatenate([part.view(np.uint8).ravel() for part in (a, b, c)])
    for seed in SEEDS:
        out = run(probe, name, data.view(np.uint32), np.zeros((16, 8), acc), seed=seed)
        assert np.array_equal(out, a.astype(acc) @ b.astype(acc).T + c)


def test_tf32_mma_ignores_the_low_bits(probe: Library) -> None:
    a, b = np.zeros((16, 8), np.float32), np.zeros((8, 8), np.float32)
    a[3, 2], b[5, 2] = np.float32(1 + 2.0**-10 + 2.0**-11), 1
    data = np.concatenate([a.ravel(), b.ravel(), np.zeros(128, np.float32)])
    assert run(probe, "mma_tf32", data, np.zeros((16, 8), np.float32))[3, 5] == np.float32(1 + 2.0**-10)


def test_s8_mma_wraps(probe: Library) -> None:
    a, b, c = np.full((16, 32), 127, np.int8), np.full((8, 32), 127, np.int8), np.full((16, 8), 2**31 - 1, np.int32)
    data = np.concatenate([part.view(np.uint8).ravel() for part in (a, b, c)])
    out = run(probe, "mma_s8", data.view(np.uint32), np.zeros((16, 8), np.int32))
    assert (out == 32 * 127 * 127 - 2**31 - 1).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(probe: Library, transposed: bool) -> None:
    matrices = np.arange(4 * 8 * 8, dtype=np.uint16).reshape(4, 8, 8)
    expected = matrices.swapaxes(1, 2) if transposed else matrices
    for seed in SEEDS:
        out = np.zeros((32, 4), np.uint32)
        run(probe, "matrices", matrices, out, what=int(transposed), shared_bytes=512, seed=seed)
        for lane in range(32):
            pairs = expected[:, lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert np.array_equal(out[lane].view(np.uint16).reshape(4, 2), pairs)


def test_votes_and_shuffles(probe: Library) -> None:
    x = np.random.default_rng(0).integers(0, 120, 96).astype(np.int32)
    for seed in SEEDS:
        out = run(probe, "warp_words", x, np.zeros((8, 96), np.int32), n=96, block=(96,), seed=seed)
        for warp in range(3):
            mine, got = x[warp * 32 : warp * 32 + 32], out[:, warp * 32 : warp * 32 + 32]
            lane = np.arange(32)
            assert (got[0].view(np.uint32) == sum(1 << int(i) for i in lane if mine[i] & 1)).all()
            assert (got[1] == 2 * int((mine > 100).any()) + 1).all()
            assert np.array_equal(got[2], mine[lane // 8 * 8 + (lane + 5) % 8])
            assert np.array_equal(got[3], mine[np.where(lane % 16 < 3, lane, lane - 3)])
            assert np.array_equal(got[4], mine[np.where(lane % 16 > 12, lane, lane + 3)])
            assert np.array_equal(got[5], mine[lane ^ 4])
            assert np.array_equal(got[6], mine[lane ^ 1])
            assert (got[7, :7] == sum(1 << i for i in range(7) if mine[i] & 2)).all() and (got[7, 7:] == -1).all()


def test_atomics_and_static_shared_memory(probe: Library) -> None:
    for seed in SEEDS:
        out = np.zeros(4, np.int32)
        with pytest.raises(HostError, match="up to 4 bytes after the end of out"):
            run(probe, "count", out[:0], out, grid=64, block=(256,), seed=seed)
        out = np.zeros(5, np.int32)
        with pytest.raises(HostError, match=r"writes element 4 of out at probe.cu:\d+ a second time"):
            run(probe, "count", out[:0], out, grid=64, block=(256,), seed=seed)
        out = np.zeros(5, np.int32)
        params = Params(0, out.ctypes.data, 0, 0)
        probe.run("count", params, (64,), (256,), seed=seed)
        assert [out[0], out[1], out.view(np.float32)[2], out[3], out[4]] == [64 * 255 * 128, 255, 64 * 256 / 2, 7, 64]


def test_bits(probe: Library) -> None:
    out = run(probe, "bits", np.zeros(1, np.uint32), np.zeros(9, np.uint32), block=(1,))
    first = [0xFF774411 & 0xFFFFFFFF, 0x88112233, 0x11223344, 0x66778811, 31 * 10000 + 8 * 100 + 4]
    assert [hex(x) for x in out[1:5]] == [hex(x) for x in first[1:]]
    # selectors from the lowest: byte 1, byte 7, byte 4, and the sign of byte 4 (0x84)
    assert hex(out[0]) == "0xff847711"
    assert [hex(x) for x in out[5:]] == ["0x30201000", "0x31211101", "0x32221202", "0x33231303"]


HERE, SHARED = r"\(probe.cu:\d+\)", r"of shared memory at probe.cu:\d+"
NOBODY = f"reads byte \\d+ {SHARED}, which nobody has written"
FAULTS = {
    0: rf"deadlock: 40 threads \(from 0 on\) wait at __syncthreads {HERE}; 24 threads \(from 40 on\) have returned$",
    1: r"deadlock: 32 threads .* wait at __syncthreads \(probe.cu:(\d+)\); 32 .* at __syncthreads \(.*:(?!\1)\d+\)$",
    2: rf"deadlock: 32 threads \(from 0 on\) wait at __syncwarp {HERE}; 32 threads \(from 16 on\) have returned$",
    3: rf"deadlock: 62 .* wait at ldmatrix.x4.trans {HERE}; 2 threads \(from 5 on\) wait at ldmatrix.x4 {HERE}$",
    4: rf"thread \d+: calls __syncwarp {HERE} with mask fffffff0, not for lane \d$",
    5: r"lane \d+ shuffles from lane 31, which takes no part",
    6: rf"cp.async of 16 bytes {HERE} to .* misaligned$",
    7: rf"race: reads byte \d+ {SHARED}, with no barrier since it was written by thread \d+ at probe.cu:\d+$|{NOBODY}",
    8: NOBODY,
    9: rf"writes 4 bytes from byte \d+ {SHARED}, outside of its 1024 bytes$",
    10: rf"reads 16 bytes from byte 8 {SHARED}: misaligned$",
    11: r"reads 4 bytes at probe.cu:\d+, up to \d+ bytes after the end of in$",
    12: r"writes 4 bytes of in at probe.cu:\d+, which is an input$",
    13: r"reads 4 bytes of global memory at probe.cu:\d+: misaligned",
    14: rf"race: (writes|reads) byte \d+ {SHARED}, with no barrier since it was (read|written) by thread \d+",
    15: rf"thread 3: reads byte 48 {SHARED}, before the wait for the cp.async that fills it by thread 3",
    17: rf"race: reads byte \d+ {SHARED}|{NOBODY}",
}


@pytest.mark.parametrize("what", FAULTS)
def test_faults(probe: Library, what: int) -> None:
    inp, out = np.zeros(64, np.int32), np.zeros(64, np.int32)
    for seed in SEEDS:
        with pytest.raises(HostError, match=r"^kernel faulty, block \(0, 0, 0\).*" + FAULTS[what]):
            run(probe, "faulty", inp, out, n=1024, what=what, block=(64,), shared_bytes=1024, seed=seed)
    run(probe, "f16_to_f32", EVERY[:8], np.zeros(8, np.float32), n=8)  # the worker is as good as new


def test_a_warps_own_exchange_needs_no_block_barrier(probe: Library) -> None:
    for seed in SEEDS:
        run(
            probe,
            "faulty",
            np.zeros(1, np.int32),
            np.zeros(1, np.int32),
            what=16,
            block=(64,),
            shared_bytes=1024,
            seed=seed,
        )


def test_two_writers_of_one_element(probe: Library) -> None:
    text = r"writes element 0 of out at probe.cu:\d+ a second time: thread \d+ of block 0 has written it"
    with pytest.raises(HostError, match=text):
        run(probe, "same_element", np.zeros(1, np.int32), np.zeros(1, np.int32))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"block": (1025,)}, "a block has 1 to 1024 threads"),
        ({"block": (0,)}, "a block has 1 to 1024 threads"),
        ({"grid": 0}, "a grid beyond CUDA's limits"),
        ({"shared_bytes": 300_000}, "a block has at most 232448 bytes of shared memory"),
    ],
)
def test_refused_launches(probe: Library, change: dict[str, Any], text: str) -> None:
    with pytest.raises(HostError, match=f"^kernel bits: {text}"):
        run(probe, "bits", np.zeros(1, np.uint32), np.zeros(9, np.uint32), **change)
