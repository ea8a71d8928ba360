"""How long a variant would take: the model that ranks where nothing was measured.

A roofline (Williams, Waterman, Patterson 2009) over waves of blocks (the "wave quantization" of NVIDIA's guide to deep
learning performance; Stream-K, Osama et al. 2023, has the same tile and wave terms). Three times overlap: that of the
waves, of the traffic with memory, and of the traffic between L2 and SMs. Six coefficients of each variant are fitted to
measurements by `generator.fit`; where there are none, a family's row in variants.toml stands in for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd, isqrt
from typing import Any, NamedTuple, Protocol

from .variant import Variant

BYTES = {"f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "s8": 1, "s32": 4}
"""Bytes of an element in memory."""
# Threads that an SM holds, where it is not 2048.
SM_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
SM_BLOCKS = 32
SM_REGISTERS = 65536
# Registers of a thread beside its accumulators: operand fragments, addresses, loop state. With one sum there are
# no fragments.
OTHER_REGISTERS, FEW_REGISTERS = 64, 31
MAX_REGISTERS = 255
# The hardware keeps 1 KiB of shared memory for each block, and the SM has 1 KiB beyond what one block may ask for.
RESERVED_SHARED = 1024
# Of an SM; each issues for the warps of its own.
SCHEDULERS = 4
# Bytes that L1 and L2 look up at once.
LINE = 128
# How sharply the largest of overlapping times decides: their p-norm. Fitted times change little from 3 to 8.
OVERLAP = 3
# A tile of side s does s/2 multiply-adds per element that it loads; a side of 16 reaches half of a family's efficiency.
HALF_SIDE = 16


class Device(Protocol):
    """What the model knows of a GPU: `tilery.device.DeviceInfo`, or the gpu of an arch in variants.toml."""

    @property
    def cc(self) -> tuple[int, int]: ...

    @property
    def sms(self) -> int: ...

    @property
    def shared_bytes(self) -> int: ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def clock_mhz(self) -> float: ...

    @property
    def bandwidth_gbs(self) -> float: ...


class Sizes(Protocol):
    """What the model knows of a problem: `tilery.Problem`, or the key of a record."""

    @property
    def m(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def out_dtype(self) -> str: ...

    @property
    def layout(self) -> str: ...


class Coefficients(NamedTuple):
    """What the model knows of a variant.

    Attributes:
        start_us: microseconds of a launch, whatever its size.
        step_clocks: least clocks of a k-step on an SM: latency.
        block_clocks: clocks of a k-step per block on the SM: throughput.
        line_clocks: clocks of a k-step per block and line of memory that it touches.
        tile_clocks: clocks of a tile beside its k-steps: filling the pipeline, epilogue.
        store_clocks: the same per block on the SM.
        scalar_clocks: clocks of an element of the result that is stored by itself, per block on the SM.
        memory: part of the memory's bandwidth that is reached.
        l2_bytes: bytes per clock that an SM draws from L2.
    """

    start_us: float
    step_clocks: float
    block_clocks: float
    line_clocks: float
    tile_clocks: float
    store_clocks: float
    scalar_clocks: float
    memory: float
    l2_bytes: float


class Work(NamedTuple):
    """What a variant has to do for a problem on a GPU: what of the model is no coefficient.

    Attributes:
        steps: k-steps of a tile.
        fill: part of a block's warps that work: 1 but where threads below the result return at once.
        lines: lines of memory that a k-step touches.
        scalars: elements of a tile's result that are stored one by one, as where rows do not begin at 16 bytes.
        resident: blocks that one SM holds, as `_busy` counts them.
        waves: full waves of them on each SM.
        last: blocks on the busiest SM in the last, incomplete wave.
        memory_bytes: traffic with memory.
        l2_bytes: traffic between L2 and SMs.
    """

    steps: int
    fill: float
    lines: float
    scalars: int
    resident: float
    waves: int
    last: float
    memory_bytes: float
    l2_bytes: float


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def sums_per_thread(variant: Variant) -> int:
    """Elements of the result that a thread computes."""
    tile_m, tile_n, _ = variant["tile"]
    return int(tile_m * tile_n // variant.threads)


def resident_blocks(variant: Variant, device: Device) -> int:
    """Blocks of the variant that one SM holds at a time, at least 1."""
    sums = sums_per_thread(variant)
    registers = min(sums + (OTHER_REGISTERS if sums > 1 else FEW_REGISTERS), MAX_REGISTERS)
    # A Config with `blocks` has its registers bounded so that as many fit.
    config: dict[str, Any] = dict(variant.config)
    by_registers: int = config.get("blocks", SM_REGISTERS // (registers * variant.threads))
    by_shared = (device.shared_bytes + RESERVED_SHARED) // (variant.shared_bytes + RESERVED_SHARED)
    by_threads = SM_THREADS.get(device.cc, 2048) // variant.threads
    return max(1, min(SM_BLOCKS, by_threads, by_shared, by_registers))


def work(variant: Variant, problem: Sizes, device: Device) -> Work:
    """What the variant has to do. Inputs beyond L2 are read again for each square of tiles that runs at once."""
    tile_m, tile_n, tile_k = variant["tile"]
    m, n, k = problem.m, problem.n, problem.k
    size, out_size = BYTES[problem.dtype], BYTES[problem.out_dtype]
    tiles_m, tiles_n = max(1, ceil_div(m, tile_m)), max(1, ceil_div(n, tile_n))
    resident, warps = resident_blocks(variant, device), ceil_div(variant.threads, 32)
    waves, rest = divmod(tiles_m * tiles_n * problem.batch, resident * device.sms)
    reads_a = reads_b = 1.0
    if (m + n) * k * size > device.l2_bytes:
        side = isqrt(resident * device.sms)
        reads_a, reads_b = max(1.0, n / (side * tile_n)), max(1.0, m / (side * tile_m))
    outputs = m * n * out_size * (2 if getattr(problem, "accumulate", False) else 1)
    single, inside = sums_per_thread(variant) == 1, min(m, tile_m) * min(n, tile_n)
    return Work(
        steps=max(1, ceil_div(k, tile_k)),
        fill=ceil_div(min(m, tile_m) * tile_n, 32) / warps if single else 1.0,
        lines=_lines(problem.layout[0] == "t", min(m, tile_m), m * size, tile_k, k * size, size)
        + _lines(problem.layout[-1] == "n", min(n, tile_n), n * size, tile_k, k * size, size),
        scalars=inside if single or n * out_size % 16 else 0,
        resident=_busy(resident, warps),
        waves=waves,
        last=_last(rest, resident, waves, device, warps),
        memory_bytes=problem.batch * ((m * reads_a + n * reads_b) * k * size + outputs),
        l2_bytes=float((m * tiles_n + n * tiles_m) * k * size * problem.batch),
    )


def _busy(blocks: int, warps: int) -> float:
    """Blocks whose work takes an SM as long: two warps of a block keep two of its four schedulers busy, so that a third
    such block takes as long as a fourth one would.

    >>> [_busy(blocks, 2) for blocks in (1, 2, 3, 4)], _busy(3, 4)
    ([2.0, 2.0, 4.0, 4.0], 3.0)
    """
    return ceil_div(blocks * warps, SCHEDULERS) * SCHEDULERS / warps


def _last(rest: int, resident: int, waves: int, device: Device, warps: int) -> float:
    """Blocks on the busiest SM in the last wave, as `_busy` counts them.

    They are spread evenly, but not behind a full wave: there an SM that is free early takes a second one. After more
    waves SMs are free at different times, and that fades.
    """
    even = ceil_div(rest, device.sms)
    spread = _busy(even, warps)
    return spread + (_busy(max(even, min(rest, resident, 2)), warps) - spread) / (waves + 1) if waves else spread


def _lines(mn_major: bool, mn: int, mn_bytes: int, tile_k: int, k_bytes: int, size: int) -> float:
    """Lines of memory that a k-step touches of an operand: rows that begin within a line cost one more."""
    rows, width, pitch = (tile_k, mn * size, mn_bytes) if mn_major else (mn, tile_k * size, k_bytes)
    return rows * max(1.0, width / LINE + 1 - gcd(pitch, LINE) / LINE)


def time_us(found: Work, device: Device, c: Coefficients) -> float:
    """Microseconds of some work with these coefficients. Fields of the work may be arrays, for `generator.fit`."""

    def wave(blocks: float) -> float:
        step = _overlap(c.step_clocks, blocks * (found.fill * c.block_clocks + found.lines * c.line_clocks))
        stores = found.fill * c.store_clocks + found.scalars * c.scalar_clocks
        return found.steps * step + c.tile_clocks + blocks * stores

    clocks = found.waves * wave(found.resident) + (found.last > 0) * wave(found.last)
    return c.start_us + _overlap(
        clocks / device.clock_mhz,
        found.memory_bytes / (device.bandwidth_gbs * 1e3 * c.memory),
        found.l2_bytes / (device.sms * device.clock_mhz * c.l2_bytes),
    )


def _overlap(*times: float) -> float:
    """What times that overlap take together: hardly more than the longest, unless several are nearly as long."""
    together: float = sum(time**OVERLAP for time in times) ** (1 / OVERLAP)
    return together


def assumed(variant: Variant, cost: Mapping[str, Any]) -> Coefficients:
    """Coefficients of a variant that was never measured, from its family's row in variants.toml."""
    tile_m, tile_n, tile_k = variant["tile"]
    side = 2 * tile_m * tile_n / (tile_m + tile_n)
    macs_per_clock = cost["rate"][variant.dtype] * cost["efficiency"] * side / (side + HALF_SIDE)
    return Coefficients(
        start_us=cost["start_us"],
        step_clocks=cost["step_clocks"],
        block_clocks=tile_m * tile_n * tile_k / macs_per_clock,
        line_clocks=cost["line_clocks"] * LINE / (32 * max(variant.align, BYTES[variant.dtype])),
        tile_clocks=cost["tile_clocks"] / 2,
        store_clocks=cost["tile_clocks"] / 2,
        scalar_clocks=cost["scalar_clocks"],
        memory=cost["memory"],
        l2_bytes=cost["l2_bytes"],
    )


def contenders(variants: Iterable[Variant]) -> list[Variant]:
    """Those of each family that load the widest: the others fit too, and are slower by less than the model can tell."""
    every = list(variants)
    widest: dict[str, int] = {}
    for variant in every:
        widest[variant.family] = max(variant.align, widest.get(variant.family, 0))
    return [variant for variant in every if variant.align == widest[variant.family]]


def host_us(variant: Variant, problem: Sizes, device: Device, cost: Mapping[str, Any]) -> float:
    """Time on the CPU, where each core runs one block at a time."""
    tile_m, tile_n, tile_k = variant["tile"]
    tiles = ceil_div(problem.m, tile_m) * ceil_div(problem.n, tile_n) * problem.batch
    macs = tile_m * tile_n * tile_k * max(1, ceil_div(problem.k, tile_k))
    side = 2 * tile_m * tile_n / (tile_m + tile_n)
    rate: float = cost.get("host_rate", cost["rate"])[variant.dtype] * side / (side + HALF_SIDE)
    busy: float = ceil_div(tiles, device.sms) * macs / rate
    return float(cost["start_us"]) + busy


def predict(
    variant: Variant, problem: Sizes, device: Device, cost: Mapping[str, Any], fitted: Coefficients | None = None
) -> float:
    """Predicted time in microseconds.

    Args:
        variant: what would run.
        problem: its sizes and dtypes.
        device: the GPU, or the host device.
        cost: the row of the variant's family.
        fitted: the variant's coefficients, where it was measured.
    """
    if device.cc == (0, 0):
        return host_us(variant, problem, device, cost)
    return time_us(work(variant, problem, device), device, fitted or assumed(variant, cost))
