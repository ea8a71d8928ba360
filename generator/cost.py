"""How long a variant would take: the model that ranks where nothing was measured.

A roofline (Williams, Waterman, Patterson 2009) over waves of blocks (the "wave quantization" of NVIDIA's guide to deep
learning performance; Stream-K, Osama et al. 2023, has the same tile and wave terms). Three times overlap: that of the
waves, of the traffic with memory, and of the traffic between L2 and SMs. The coefficients of each variant are fitted to
measurements by `generator.fit`; where there are none, a family's row in variants.toml stands in for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .variant import Variant
from .work import BYTES, LINE, Device, Sizes, Work, ceil_div, resident_blocks, work

# How sharply the largest of overlapping times decides: their p-norm. Fitted times change little from 3 to 8.
OVERLAP = 3
# A tile of side s does s/2 multiply-adds per element that it loads; a side of 16 reaches half of a family's efficiency.
HALF_SIDE = 16
# Before anything is fitted: clocks of a k-step that waits for memory rather than L2, and what bounds checks add to one.
COLD_CLOCKS, EDGE, ROW_CLOCKS = 250.0, 0.1, 40.0
# What a warp that returns at once costs, as a part of one that stores.
IDLE_WARP = 0.25


class Coefficients(NamedTuple):
    """What the model knows of a variant.

    Attributes:
        start_us: microseconds of a launch, whatever its size.
        step_clocks: least clocks of a k-step on an SM whose operands come from L2: latency.
        cold_clocks: how many more they are where the operands come from memory.
        block_clocks: clocks of a k-step per block on the SM: throughput.
        line_clocks: clocks of a k-step per block and line of memory that it touches.
        edge_clocks: clocks of a k-step per block and operand that lies partly outside.
        tile_clocks: clocks of a tile beside its k-steps: filling the pipeline, epilogue.
        store_clocks: the same per block on the SM.
        row_clocks: clocks of a row of the result that passes through shared memory: latency.
        scalar_clocks: clocks of an element of the result that is stored by itself, per block on the SM.
        memory: part of the memory's bandwidth that is reached.
        l2_bytes: bytes per clock that an SM draws from L2.
        resident: blocks that an SM holds at once: not fitted, but said by the driver, or estimated.
    """

    start_us: float
    step_clocks: float
    cold_clocks: float
    block_clocks: float
    line_clocks: float
    edge_clocks: float
    tile_clocks: float
    store_clocks: float
    row_clocks: float
    scalar_clocks: float
    memory: float
    l2_bytes: float
    resident: int


def time_us(found: Work, device: Device, c: Coefficients) -> float:
    """Microseconds of some work with these coefficients. Fields of the work may be arrays, for `generator.fit`."""
    latency = found.wait * c.step_clocks + found.cold * c.cold_clocks
    step_of_block = found.fill * c.block_clocks + found.lines * c.line_clocks + found.edges * c.edge_clocks
    tile = c.tile_clocks + found.rows * c.row_clocks
    stores = (IDLE_WARP + (1 - IDLE_WARP) * found.fill) * c.store_clocks + found.scalars * c.scalar_clocks

    def wave(busy: float, blocks: float) -> float:
        return found.steps * _overlap(latency, busy * step_of_block) + tile + blocks * stores

    clocks = (found.early > 0) * wave(found.early, found.early)
    clocks += found.waves * wave(found.resident, found.resident) + (found.last > 0) * wave(found.busy, found.last)
    return c.start_us + _overlap(
        clocks / device.clock_mhz,
        found.memory_bytes / (device.bandwidth_gbs * 1e3 * c.memory),
        found.l2_bytes / (device.sms * device.clock_mhz * c.l2_bytes),
    )


def _overlap(*times: float) -> float:
    """What times that overlap take together: hardly more than the longest, unless several are nearly as long."""
    together: float = sum(time**OVERLAP for time in times) ** (1 / OVERLAP)
    return together


def assumed(variant: Variant, cost: Mapping[str, Any], device: Device) -> Coefficients:
    """Coefficients of a variant that was never measured, from its family's row in variants.toml."""
    tile_m, tile_n, tile_k = variant["tile"]
    side = 2 * tile_m * tile_n / (tile_m + tile_n)
    macs_per_clock = cost["rate"][variant.dtype] * cost["efficiency"] * side / (side + HALF_SIDE)
    return Coefficients(
        start_us=cost["start_us"],
        step_clocks=cost["step_clocks"],
        cold_clocks=COLD_CLOCKS,
        block_clocks=tile_m * tile_n * tile_k / macs_per_clock,
        line_clocks=cost["line_clocks"] * LINE / (32 * max(variant.align, BYTES[variant.dtype])),
        edge_clocks=EDGE * tile_m * tile_n * tile_k / macs_per_clock,
        tile_clocks=cost["tile_clocks"] / 2,
        store_clocks=cost["tile_clocks"] / 4,
        row_clocks=ROW_CLOCKS,
        scalar_clocks=cost["scalar_clocks"],
        memory=cost["memory"],
        l2_bytes=cost["l2_bytes"],
        resident=resident_blocks(variant, device),
    )


def resident(variant: Variant, device: Device, fitted: Coefficients | None) -> int:
    """Blocks of a variant that an SM holds at once, or a core of the host device."""
    if device.cc == (0, 0):
        return 1
    return fitted.resident if fitted else resident_blocks(variant, device)


def contenders(variants: Iterable[Variant], held: Callable[[Variant], int]) -> list[Variant]:
    """Those of each family that load the widest: the others fit too, and are slower by less than the model can tell,
    unless an SM holds more of their blocks.

    Args:
        variants: that fit a problem.
        held: how many blocks of a variant an SM holds at once.
    """
    every = list(variants)
    widest: dict[str, int] = {}
    for variant in every:
        widest[variant.family] = max(variant.align, widest.get(variant.family, 0))
    first = [variant for variant in every if variant.align == widest[variant.family]]
    twins = {(variant.family, variant.config): variant for variant in first}

    def more(variant: Variant) -> bool:
        twin = twins.get((variant.family, variant.config), variant)
        return twin is not variant and held(variant) > held(twin)

    return first + [variant for variant in every if more(variant)]


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
    c = fitted or assumed(variant, cost, device)
    return time_us(work(variant, problem, device, c.resident), device, c)
