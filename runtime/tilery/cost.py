"""How long a variant would take: the model that ranks where nothing was measured.

A roofline (Williams, Waterman, Patterson 2009) over waves of blocks (the "wave quantization" of NVIDIA's guide to deep
learning performance; Stream-K, Osama et al. 2023, has the same tile and wave terms). It is made to rank, not to
predict; measured coefficients come from the tuner.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from .device import DeviceInfo
from .generator.variant import Variant
from .problem import ITEM_BYTES, Problem

# Threads that an SM holds, where it is not 2048.
SM_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
SM_BLOCKS = 32
SM_REGISTERS = 65536
# Registers of a thread beside its accumulators: operand fragments, addresses, loop state.
OTHER_REGISTERS = 64
MAX_REGISTERS = 255
# The hardware keeps 1 KiB of shared memory for each block, and the SM has 1 KiB beyond what one block may ask for.
RESERVED_SHARED = 1024
# What an SM draws from L2 at best, well below the 64 bytes per clock of the wires.
L2_BYTES_PER_CLOCK = 32
# Issue and address arithmetic of one warp-wide load, whatever its width.
CLOCKS_PER_WARP_LOAD = 4
# A tile of side s does s/2 multiply-adds per element that it loads; a side of 16 reaches half of a family's efficiency.
HALF_SIDE = 16


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def blocks_per_sm(variant: Variant, device: DeviceInfo) -> int:
    """Blocks of the variant that one SM holds at a time, at least 1."""
    tile_m, tile_n, _ = variant["tile"]
    registers = min(tile_m * tile_n // variant.threads + OTHER_REGISTERS, MAX_REGISTERS)
    limits: tuple[int, ...] = (
        SM_BLOCKS,
        SM_THREADS.get(device.cc, 2048) // variant.threads,
        (device.shared_bytes + RESERVED_SHARED) // (variant.shared_bytes + RESERVED_SHARED),
        SM_REGISTERS // (registers * variant.threads),
    )
    return max(1, min(limits))


def step_clocks(variant: Variant, problem: Problem, cost: Mapping[str, Any], blocks: int) -> float:
    """Clocks of one k-step on an SM that holds so many blocks."""
    tile_m, tile_n, tile_k = variant["tile"]
    size = ITEM_BYTES[problem.dtype]
    side = 2 * tile_m * tile_n / (tile_m + tile_n)
    macs_per_clock: float = cost["rate"][variant.dtype] * cost["efficiency"] * side / (side + HALF_SIDE)
    loaded: int = (tile_m + tile_n) * tile_k * size
    warp_loads: float = loaded / (32 * max(variant.align, size))
    math: float = blocks * tile_m * tile_n * tile_k / macs_per_clock
    least: float = cost["step_clocks"]
    return max(math, blocks * loaded / L2_BYTES_PER_CLOCK, least) + blocks * warp_loads * CLOCKS_PER_WARP_LOAD


def compute_us(variant: Variant, problem: Problem, device: DeviceInfo, cost: Mapping[str, Any]) -> float:
    """Time of all waves: full ones, then one whose busiest SM holds what is left."""
    tile_m, tile_n, tile_k = variant["tile"]
    tiles = ceil_div(problem.m, tile_m) * ceil_div(problem.n, tile_n) * problem.batch
    steps = max(1, ceil_div(problem.k, tile_k))
    blocks = blocks_per_sm(variant, device)
    waves, rest = divmod(tiles, blocks * device.sms)
    clocks = waves * step_clocks(variant, problem, cost, blocks)
    if rest:
        clocks += step_clocks(variant, problem, cost, ceil_div(rest, device.sms))
    return steps * clocks / device.clock_mhz


def memory_us(variant: Variant, problem: Problem, device: DeviceInfo) -> float:
    """Time of the traffic with memory. Inputs beyond L2 are read again for each square of tiles that runs at once."""
    tile_m, tile_n, _ = variant["tile"]
    m, n, k = problem.m, problem.n, problem.k
    size, out_size = ITEM_BYTES[problem.dtype], ITEM_BYTES[problem.out_dtype]
    reads_a = reads_b = 1.0
    if (m + n) * k * size > device.l2_bytes:
        side = isqrt(blocks_per_sm(variant, device) * device.sms)
        reads_a, reads_b = max(1.0, n / (side * tile_n)), max(1.0, m / (side * tile_m))
    outputs = m * n * out_size * (2 if problem.accumulate else 1)
    moved = problem.batch * ((m * reads_a + n * reads_b) * k * size + outputs)
    return moved / (device.bandwidth_gbs * 1e3)


def host_us(variant: Variant, problem: Problem, device: DeviceInfo, cost: Mapping[str, Any]) -> float:
    """Time on the CPU, where each core runs one block at a time."""
    tile_m, tile_n, tile_k = variant["tile"]
    tiles = ceil_div(problem.m, tile_m) * ceil_div(problem.n, tile_n) * problem.batch
    macs = tile_m * tile_n * tile_k * max(1, ceil_div(problem.k, tile_k))
    side = 2 * tile_m * tile_n / (tile_m + tile_n)
    rate: float = cost.get("host_rate", cost["rate"])[variant.dtype] * side / (side + HALF_SIDE)
    busy: float = ceil_div(tiles, device.sms) * macs / rate
    return busy


def predict(variant: Variant, problem: Problem, device: DeviceInfo, cost: Mapping[str, Any]) -> float:
    """Predicted time in microseconds; ``cost`` holds the coefficients of the variant's family."""
    if device.is_host:
        return float(cost["start_us"] + host_us(variant, problem, device, cost))
    busy = max(compute_us(variant, problem, device, cost), memory_us(variant, problem, device))
    return float(cost["start_us"] + busy)
