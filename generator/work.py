"""What a variant has to do for a problem on a GPU: what of the cost model no measurement is needed for."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, gcd, isqrt
from typing import Any, NamedTuple, Protocol

from .variant import Variant

BYTES = {"f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "s8": 1, "s32": 4}
"""Bytes of an element in memory."""
ROTATED_SETS = 128
"""Sets of arrays that a measurement rotates at most: smaller inputs stay in L2."""
# Threads that an SM holds, where it is not 2048.
SM_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
SM_BLOCKS = 32
SM_REGISTERS = 65536
# Registers of a thread beside its accumulators: operand fragments, addresses, loop state. With one sum there are
# no fragments. Words, and rows that begin at multiples of 16 bytes, go to shared memory without passing through
# registers (cp.async).
OTHER_REGISTERS, FEW_REGISTERS = 64, 31
MAX_REGISTERS = 255
WORD, CHUNK = 4, 16
# The hardware keeps 1 KiB of shared memory for each block, and the SM has 1 KiB beyond what one block may ask for.
RESERVED_SHARED = 1024
# Of an SM; each issues for the warps of its own.
SCHEDULERS = 4
WARP = 32
# Bytes that L1 and L2 look up at once, and the part of them that L2 delivers. Memory delivers a burst at a time to rows
# that are read along k, and whole lines where one row is read after the other.
LINE, SECTOR, BURST = 128, 32, 64
# Lines that L1 looks up while one bank of it delivers an element.
LOOKUPS = 16
# The compiler unrolls a loop with one sum so often, so that as many loads of an operand are under way at once. What is
# left of k then takes its steps one by one.
UNROLLED = 4
# Latency of what L1 has over that of what L2 has.
L1_LATENCY = 0.5
# Where most warps of a block return at once, an SM holds so many times as many blocks in its second wave, and later:
# what they leave is given away when a block ends, and not before.
SECOND, LATER = 2.0, 2.5


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


class Work(NamedTuple):
    """What a variant has to do.

    Attributes:
        steps: k-steps of a tile.
        wait: latency of a k-step, as a part of that of one whose operands come from L2.
        cold: how much more of it there is where they come from memory, as a part of what it is then.
        fill: part of a block's warps that work: 1 but where threads outside the result return at once.
        lines: lines of memory that a k-step touches; where nothing is staged, accesses to L1 one after the other.
        edges: how many operands of a k-step lie partly outside, as a mean over the tiles.
        rows: rows of the result in a tile that passes through shared memory.
        scalars: elements of a tile's result that are stored one by one, as where rows do not begin at 16 bytes.
        early: blocks that one SM holds in a first wave, where it holds more of them later.
        resident: blocks that one SM holds, as `_busy` counts them.
        waves: how many waves of so many there are on each SM.
        last: blocks on the busiest SM in a last, incomplete wave.
        busy: those, as `_busy` counts them.
        memory_bytes: traffic with memory.
        l2_bytes: traffic between L2 and SMs.
    """

    steps: int
    wait: float
    cold: float
    fill: float
    lines: float
    edges: float
    rows: int
    scalars: int
    early: float
    resident: float
    waves: float
    last: float
    busy: float
    memory_bytes: float
    l2_bytes: float


class Loads(NamedTuple):
    """Those fields of `Work` that depend on how a kernel loads its operands."""

    wait: float
    cold: float
    fill: float
    lines: float
    edges: float
    rows: int


class Operand(NamedTuple):
    """A or B as the blocks read it.

    Attributes:
        mn_major: whether its rows in memory run along m (or n), one for each k; otherwise along k.
        mn: its extent along m (or n).
        k: its extent along k.
        tile: the part of `mn` that a block reads.
        tiles: of them.
        size: bytes of an element.
    """

    mn_major: bool
    mn: int
    k: int
    tile: int
    tiles: int
    size: int

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next."""
        return (self.mn if self.mn_major else self.k) * self.size

    def lines(self, tile_k: int) -> float:
        """Lines of memory that a k-step touches, as a mean: rows that begin within a line cost one more."""
        inside, k = min(self.mn, self.tile), self.k / max(1, ceil_div(self.k, tile_k))
        rows, width = (k, inside * self.size) if self.mn_major else (inside, k * self.size)
        return rows * max(1.0, width / LINE + 1 - gcd(self.pitch, LINE) / LINE)

    def accesses(self, rows: int) -> float:
        """What a warp's load of one element each costs that touches ``rows`` m (or n): elements of one bank of L1 are
        delivered one after the other, and the lines that they lie in have to be looked up."""
        if self.mn_major:
            return 1.0
        return rows / LOOKUPS + ceil_div(rows, LINE // gcd(self.pitch, LINE))

    def fresh(self, rows: int, steps: int, sector: bool) -> float:
        """The part of a warp's loads, ``steps`` of k of one element each, that wait for a sector, or else for memory.

        Rows that begin differently within a sector leave it at different k.
        """
        if self.mn_major:
            return min(1.0, steps * self.pitch / (SECTOR if sector else LINE))
        piece = SECTOR if sector else BURST
        together = piece // gcd(self.pitch, piece)
        return min(1.0, steps * self.size / piece * min(rows, together))

    def outside(self, tile_k: int) -> float:
        """The part of its tiles that lie partly outside; none where there is nothing to load."""
        if not (self.mn and self.k):
            return 0.0
        inside = (self.mn // self.tile) * (self.k // tile_k)
        return 1 - inside / (self.tiles * max(1, ceil_div(self.k, tile_k)))


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def sums_per_thread(variant: Variant) -> int:
    """Elements of the result that a thread computes."""
    tile_m, tile_n, _ = variant["tile"]
    return int(tile_m * tile_n // variant.threads)


def resident_blocks(variant: Variant, device: Device) -> int:
    """Blocks of a variant that one SM holds at a time, at least 1: an estimate, for where the driver was not asked."""
    sums, size = sums_per_thread(variant), BYTES[variant.dtype]
    registers = sums + (OTHER_REGISTERS if sums > 1 else FEW_REGISTERS)
    if sums > 1 and size != WORD and variant.align != CHUNK:
        tile_m, tile_n, tile_k = variant["tile"]
        registers += (tile_m + tile_n) * tile_k * size // (variant.threads * WORD)
    # A Config with `blocks` has its registers bounded so that as many fit.
    config: dict[str, Any] = dict(variant.config)
    by_registers: int = config.get("blocks", SM_REGISTERS // (min(registers, MAX_REGISTERS) * variant.threads))
    by_shared = (device.shared_bytes + RESERVED_SHARED) // (variant.shared_bytes + RESERVED_SHARED)
    by_threads = SM_THREADS.get(device.cc, 2048) // variant.threads
    return max(1, min(SM_BLOCKS, by_threads, by_shared, by_registers))


class Waves(NamedTuple):
    """Those fields of `Work` that say which blocks run at once."""

    early: float
    resident: float
    waves: float
    last: float
    busy: float

    @property
    def first(self) -> float:
        """The part of them whose operands come from memory. What others need of them is in L2 then."""
        return 1 / max(1, ceil((self.early > 0) + self.waves + (self.last > 0)))


def work(variant: Variant, problem: Sizes, device: Device, resident: int) -> Work:
    """What a variant has to do of which an SM holds so many blocks. Inputs beyond L2 are read again for each square of
    tiles that runs at once."""
    tile_m, tile_n, tile_k = variant["tile"]
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    size, out_size = BYTES[problem.dtype], BYTES[problem.out_dtype]
    tiles_m, tiles_n = max(1, ceil_div(m, tile_m)), max(1, ceil_div(n, tile_n))
    a = Operand(problem.layout[0] == "t", m, k, tile_m, tiles_m, size)
    b = Operand(problem.layout[-1] == "n", n, k, tile_n, tiles_n, size)
    blocks, warps = tiles_m * tiles_n * batch, ceil_div(variant.threads, WARP)
    single = sums_per_thread(variant) == 1
    if single:
        working = ceil_div(max(1, min(m, tile_m)) * tile_n, WARP)
        waves = _crowded(blocks, resident, resident * warps // working, device)
        loads = _direct(a, b, warps, waves.first)
    else:
        waves = _even(blocks, resident, device, warps)
        loads = _staged(a, b, tile_k, waves.first)
    reads_a = reads_b = 1.0
    if (m + n) * k * size > device.l2_bytes:
        side = isqrt(resident * device.sms)
        reads_a, reads_b = max(1.0, n / (side * tile_n)), max(1.0, m / (side * tile_m))
    outputs = m * n * out_size * (2 if getattr(problem, "accumulate", False) else 1)
    far = _from_memory(batch * ((m + n) * k * size + m * n * out_size), device)
    return Work(
        steps=max(1, ceil_div(k, tile_k)),
        **loads._replace(cold=loads.cold * far)._asdict(),
        scalars=min(m, tile_m) * min(n, tile_n) if single or n * out_size % 16 else 0,
        **waves._asdict(),
        memory_bytes=batch * ((m * reads_a + n * reads_b) * k * size + outputs),
        l2_bytes=float((m * tiles_n + n * tiles_m) * k * size * batch),
    )


def _staged(a: Operand, b: Operand, tile_k: int, first: float) -> Loads:
    """Where tiles of A and B pass through shared memory, and the result does; ``first`` as in `Waves`.

    The first k-step of a tile is of something new in any wave.
    """
    return Loads(
        wait=1.0,
        cold=max(first, 1 / min(a.tiles, b.tiles), 1 / max(1, ceil_div(a.k, tile_k))),
        fill=1.0,
        lines=a.lines(tile_k) + b.lines(tile_k),
        edges=a.outside(tile_k) + b.outside(tile_k),
        rows=min(a.mn, a.tile),
    )


def _direct(a: Operand, b: Operand, warps: int, first: float) -> Loads:
    """Where each thread loads what its one sum needs; ``first`` as above."""
    # Of the blocks of a tile's last rows some warps have nothing to do.
    working = (a.mn // a.tile * warps + ceil_div(a.mn % a.tile * b.tile, WARP)) / a.tiles
    rows, columns = min(a.mn, ceil_div(WARP, b.tile)), min(b.mn, b.tile)
    left = a.k % UNROLLED

    def mean(parts: Callable[[int], float]) -> float:
        """Over the steps of k, of which those that are left of it take as long as `UNROLLED` others."""
        return (UNROLLED * left * parts(1) + (a.k - left) * parts(UNROLLED)) / max(1, a.k)

    def wait(steps: int) -> float:
        fresh = max(a.fresh(rows, steps, sector=True), b.fresh(columns, steps, sector=True))
        return L1_LATENCY + (1 - L1_LATENCY) * fresh

    def cold(steps: int) -> float:
        of_a = a.fresh(rows, steps, sector=False) * max(first, 1 / b.tiles)
        return min(1.0, of_a + b.fresh(columns, steps, sector=False) * max(first, 1 / a.tiles))

    lines = working * (a.accesses(rows) + b.accesses(columns))
    return Loads(mean(wait), mean(cold), working / warps, lines, edges=0.0, rows=0)


def _from_memory(footprint: int, device: Device) -> float:
    """The part of the inputs that come from memory when sets of arrays of so many bytes take turns. Each half of L2
    keeps what its SMs read, so that what fills more than half of it is partly lost."""
    part = footprint * ROTATED_SETS / device.l2_bytes
    return ((part > 0.5) + (part > 1)) / 2


def _crowded(blocks: int, early: int, most: int, device: Device) -> Waves:
    """Waves of blocks of which an SM holds more from the second wave on, at most ``most``.

    After three waves the SMs are no longer in step, so that there is no last one.
    """
    second, later = min(int(SECOND * early), most), min(int(LATER * early), most)
    beyond = max(0, blocks - early * device.sms) / device.sms
    if not beyond:
        last = ceil_div(blocks, device.sms)
        return Waves(0, early, 0, last, last)
    if beyond > second + later:
        return Waves(early, later, 2 + (beyond - second - later) / later, 0, 0)
    full = int(beyond > second)
    last = ceil(beyond - full * second)
    return Waves(early, second, full, last, last)


def _even(blocks: int, resident: int, device: Device, warps: int) -> Waves:
    """Waves of equally many blocks, and a last one of what is left."""
    waves, rest = divmod(blocks, resident * device.sms)
    last = _last(rest, resident, waves, device, SCHEDULERS)
    return Waves(0, _busy(resident, warps), waves, last, busy=_last(rest, resident, waves, device, warps))


def _busy(blocks: int, warps: int) -> float:
    """Blocks whose work takes an SM as long: two warps of a block keep two of its four schedulers busy, so that a third
    such block takes as long as a fourth one would.

    >>> [_busy(blocks, 2) for blocks in (1, 2, 3, 4)], _busy(3, 4)
    ([2.0, 2.0, 4.0, 4.0], 3.0)
    """
    return ceil_div(blocks * warps, SCHEDULERS) * SCHEDULERS / warps


def _last(rest: int, resident: int, waves: int, device: Device, warps: int) -> float:
    """Blocks on the busiest SM in the last wave, as `_busy` counts them, which with SCHEDULERS warps changes none.

    They are spread evenly, but not behind a full wave: there an SM that is free early takes a second one. After more
    waves SMs are free at different times, and that fades.
    """
    even = ceil_div(rest, device.sms)
    spread = _busy(even, warps)
    return spread + (_busy(max(even, min(rest, resident, 2)), warps) - spread) / (waves + 1) if waves else spread
