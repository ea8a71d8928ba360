"""Interleaved timing of several GEMMs: CUDA graphs replayed in turn (A B A B ...), inputs that rotate past the L2.

Power decides how fast large kernels run, and what runs first looks faster. So no candidate is measured alone.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilery.reference import HALF_SUBNORMAL, ROUND_OUT, ROUND_TF32, UNIT_F32, UNIT_TENSOR_CORE

# An H200 has 60 MB of L2. Small problems would need thousands of sets: they stay partly in it, all candidates alike.
ROTATED_BYTES = 180e6
MIN_SETS, MAX_SETS = 3, 128
# A graph takes about so long, so that starting it does not count. Estimates of short calls are several times too high.
GRAPH_US = 3000
MAX_LAUNCHES = 256
# Beyond this a graph no longer goes through all sets: such a problem sweeps the L2 cache itself.
LONG_GRAPH_US = 20000
# Rounds that take longer are few.
LONG_ROUND_US, FEW_ROUNDS = 1e5, 3
# A problem is left out where one call takes longer, and where its arrays take more of the free memory.
TOO_SLOW_US = 3e5
MEMORY_SHARE = 0.7
# Clocks for which the GPU waits at first, so that it never waits for the next graph: 2 ms.
HEAD_START = 4_000_000
SAMPLED = 64

TORCH_DTYPES = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TORCH_DTYPES |= {"s8": torch.int8, "s32": torch.int32}


class Skip(Exception):
    """Why a problem is not measured."""


@dataclass(frozen=True)
class Shape:
    """A line of a shape file: C is (m, n); layout as in benchmarks/README.md."""

    m: int
    n: int
    k: int
    layout: str

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.layout}"


def read_shapes(path: Path) -> list[Shape]:
    """The single products of a file; batches are left out."""
    with path.open(encoding="utf-8") as lines:
        single = (row for row in csv.DictReader(lines) if row.get("batch", "1") == "1")
        return [Shape(int(r["m"]), int(r["n"]), int(r["k"]), r["layout"]) for r in single]


@dataclass(frozen=True)
class Set:
    """Arrays of one call: a (m, k) and b (k, n) as the layout stores them, out (m, n)."""

    a: Any
    b: Any
    out: Any


Call = Callable[[Set], object]


class Pool:
    """Memory that is kept from one problem to the next; random once, where it is for inputs."""

    def __init__(self, dtype: Any, random: bool) -> None:
        self.dtype, self.random = dtype, random
        self.memory = torch.empty(0, dtype=dtype, device="cuda")

    def cut(self, shapes: Sequence[tuple[int, int]]) -> list[Any]:
        """Row-major matrices, each from a multiple of 256 elements on."""
        sizes = [-(-rows * cols // 256) * 256 for rows, cols in shapes]
        if sum(sizes) > len(self.memory):
            self.memory = torch.empty(0, dtype=self.dtype, device="cuda")
            torch.cuda.empty_cache()
            self.memory = self._new(sum(sizes))
        parts = self.memory[: sum(sizes)].split(sizes)
        return [part[: rows * cols].view(rows, cols) for part, (rows, cols) in zip(parts, shapes, strict=True)]

    def _new(self, count: int) -> Any:
        if not self.random:
            return torch.empty(count, dtype=self.dtype, device="cuda")
        if self.dtype is torch.int8:
            return torch.randint(-128, 128, (count,), dtype=self.dtype, device="cuda")
        return torch.randn(count, dtype=self.dtype, device="cuda")


class Arrays:
    """Sets of arrays for one dtype, problem after problem."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.out_dtype = "s32" if dtype == "s8" else "f32" if dtype == "tf32" else dtype
        self.inputs = Pool(TORCH_DTYPES[dtype], random=True)
        self.outputs = Pool(TORCH_DTYPES[self.out_dtype], random=False)

    def sets(self, shape: Shape) -> list[Set]:
        """As many sets as rotate past the L2 cache; Skip where not even one fits."""
        m, n, k = shape.m, shape.n, shape.k
        item, out_item = self.inputs.dtype.itemsize, self.outputs.dtype.itemsize
        size = (m * k + k * n) * item + m * n * out_item
        free = torch.cuda.mem_get_info()[0] + len(self.inputs.memory) * item + len(self.outputs.memory) * out_item
        room = int(free * MEMORY_SHARE // size)
        if room < 1:
            raise Skip(f"its arrays take {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
        count = min(MAX_SETS, max(MIN_SETS, round(ROTATED_BYTES / size)), room)
        stored_a = (m, k) if shape.layout[0] == "n" else (k, m)
        stored_b = (k, n) if shape.layout[1] == "n" else (n, k)
        inputs = self.inputs.cut([stored_a, stored_b] * count)
        outputs = self.outputs.cut([(m, n)] * count)
        as_a = [x if shape.layout[0] == "n" else x.t() for x in inputs[::2]]
        as_b = [x if shape.layout[1] == "n" else x.t() for x in inputs[1::2]]
        return [Set(*arrays) for arrays in zip(as_a, as_b, outputs, strict=True)]


def _sample(size: int) -> Any:
    spread = torch.randint(size, (SAMPLED,)).tolist()
    return torch.tensor(sorted({0, size - 1, *spread}), device="cuda")


def error(call: Call, arrays: Set, dtype: str, out_dtype: str) -> float:
    """The largest error of a call's result, as a part of what is allowed: at most 1 if right. Of sampled elements."""
    arrays.out.fill_(float("nan") if arrays.out.is_floating_point() else -1)
    call(arrays)
    rows, cols = _sample(arrays.out.shape[0]), _sample(arrays.out.shape[1])
    a, b = arrays.a[rows].double(), arrays.b[:, cols].double()
    got, want = arrays.out[rows][:, cols].double(), a @ b
    if out_dtype == "s32":
        return 0.0 if torch.equal(got, want) else float("inf")
    gamma = a.shape[1] * (UNIT_F32 if dtype == "f32" else UNIT_TENSOR_CORE) + 4 * UNIT_F32
    gamma += (1 + ROUND_TF32) ** 2 - 1 if dtype == "tf32" else 0.0
    allowed = gamma * (a.abs() @ b.abs()) + ROUND_OUT[out_dtype] * 1.01 * want.abs() + HALF_SUBNORMAL[out_dtype]
    worst = ((got - want).abs() / allowed).max()
    return float("inf") if worst.isnan() else float(worst)


def _elapsed(work: Callable[[], object]) -> tuple[Any, Any]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    return start, end


def estimate(call: Call, sets: Sequence[Set]) -> float:
    """Microseconds of one call, launched from Python: an upper limit for short ones."""
    call(sets[0])
    start, end = _elapsed(lambda: call(sets[-1]))
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def capture(call: Call, sets: Sequence[Set], launches: int) -> Any:
    """A graph of so many calls on rotating sets; the current stream is not the default one, and the call ran on it."""
    graph = torch.cuda.CUDAGraph()
    # Not torch.cuda.graph(): it collects garbage and empties the allocator's cache each time.
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for i in range(launches):
            call(sets[i % len(sets)])
    finally:
        graph.capture_end()
    return graph


def launches_of(fastest_us: float, sets: int) -> int:
    """How many calls a graph holds."""
    through_all = sets if fastest_us * sets <= LONG_GRAPH_US else 1
    return min(MAX_LAUNCHES, max(through_all, round(GRAPH_US / fastest_us), 1))


@dataclass(frozen=True)
class Times:
    """Microseconds of one call, round by round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a part of the median; 0 for fewer than three rounds."""
        if len(self.rounds) < 3:
            return 0.0
        low, _, high = statistics.quantiles(self.rounds, n=4)
        return (high - low) / self.median


def _replay(graphs: Mapping[str, Any], rounds: int, launches: int) -> dict[str, list[float]]:
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
    torch.cuda._sleep(HEAD_START)
    for _ in range(rounds):
        for name, graph in graphs.items():
            events[name].append(_elapsed(graph.replay))
    torch.cuda.synchronize()
    return {
        name: [float(start.elapsed_time(end)) * 1e3 / launches for start, end in pairs]
        for name, pairs in events.items()
    }


def compare(calls: Mapping[str, Call], sets: Sequence[Set], rounds: int) -> dict[str, Times]:
    """Times of calls that are right, in one interleaved run."""
    first = {name: estimate(call, sets) for name, call in calls.items()}
    if max(first.values()) > TOO_SLOW_US:
        raise Skip(f"one call takes {max(first.values()) / 1e6:.2f} s")
    launches = launches_of(min(first.values()), len(sets))
    graphs = {name: capture(call, sets, launches) for name, call in calls.items()}
    _replay(graphs, 1, launches)  # the first replay also uploads a graph
    if sum(first.values()) * launches > LONG_ROUND_US:
        rounds = FEW_ROUNDS
    return {name: Times(tuple(us)) for name, us in _replay(graphs, rounds, launches).items()}
