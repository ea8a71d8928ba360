"""A driver whose GPU is host memory: what the tuner asks of CUDA, with a clock of its own.

Kernels are names. A launch computes what the kernels' ABI says, and takes the time that the test gives; a node of a
graph only takes time.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tests.runtime.fake_cuda import run_kernel
from tilery.launch import GemmParams
from tilery.problem import ITEM_BYTES, Problem

SUCCESS, OUT_OF_MEMORY, INVALID_VALUE, ILLEGAL_ADDRESS = 0, 2, 1, 700
RESIDENT = 3  # blocks of any kernel that an SM holds


class Attribute(IntEnum):
    """Values do not matter."""

    CU_STREAM_NON_BLOCKING = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2
    CU_MEMORYTYPE_DEVICE = 2
    CU_MEMORYTYPE_HOST = 1


class Node(NamedTuple):
    """A launch in a graph: of which kernel, the how many-th, with which A, and how much shared memory."""

    name: str
    index: int
    a: int
    shared_bytes: int


class FakeDriver:
    """What happened on the GPU, and the knobs of the tests.

    Attributes:
        us: name of a kernel → microseconds of one launch.
        wrong: names whose last element is off.
        refused: names that cannot be launched.
        faults: names that break the context.
        unwritten: names that leave the last column of the result alone.
        memory: bytes of the GPU.
        launched: names in the order of launches outside of graphs.
        replayed: names of graphs in the order of their replays.
        instantiated: the nodes of each graph, in the order in which graphs were made.
        called: names of the driver's functions that were asked for.
    """

    CUstream_flags = CUstreamCaptureMode = CUmemorytype = Attribute

    def __init__(self, problem: Callable[[], Problem]) -> None:
        self.called: set[str] = set()
        self.occupancy: dict[str, tuple[int, int]] = {}
        self.us: Callable[[str], float] = lambda name: 10.0
        self.problem = problem
        self.wrong: set[str] = set()
        self.refused: set[str] = set()
        self.faults: set[str] = set()
        self.unwritten: set[str] = set()
        self.memory = 1 << 30
        self.launched: list[str] = []
        self.replayed: list[str] = []
        self.instantiated: list[list[Node]] = []
        self.buffers: dict[int, Any] = {}
        self.clock = 0.0
        self.graphs = self.events = self.streams = 0
        self.broken = False
        self._numbers = itertools.count(1)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            self.called.add(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the fake driver has no {name}")

    # Contexts.
    def cuInit(self, flags: int) -> tuple[int]:
        return (SUCCESS,)

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return SUCCESS, ordinal

    def cuDeviceGetUuid(self, device: int) -> tuple[int, Any]:
        return SUCCESS, SimpleNamespace(bytes=bytes(range(16)))

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[int, int]:
        return SUCCESS, 77

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return SUCCESS, 77

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> tuple[int, Any]:
        return SUCCESS, mode

    def cuGetErrorName(self, code: int) -> tuple[int, bytes]:
        names = {OUT_OF_MEMORY: b"OUT_OF_MEMORY", INVALID_VALUE: b"INVALID_VALUE", ILLEGAL_ADDRESS: b"ILLEGAL_ADDRESS"}
        return SUCCESS, b"CUDA_ERROR_" + names[code]

    def cuGetErrorString(self, code: int) -> tuple[int, bytes]:
        return SUCCESS, b"text"

    # Memory.
    def cuMemGetInfo(self) -> tuple[int, int, int]:
        used = sum(len(buffer) for buffer in self.buffers.values())
        return SUCCESS, self.memory - used, self.memory

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        if self.cuMemGetInfo()[1] < size:
            return OUT_OF_MEMORY, 0
        return SUCCESS, self._allocate(size)

    def cuMemAllocHost(self, size: int) -> tuple[int, int]:
        return SUCCESS, self._allocate(size)

    def _allocate(self, size: int) -> int:
        buffer = np.full(size + 256, 0xAB, np.uint8)
        address = -(-buffer.ctypes.data // 256) * 256
        self.buffers[address] = buffer
        return address

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.buffers[address]
        return (SUCCESS,)

    cuMemFreeHost = cuMemFree

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: Any) -> tuple[int]:
        assert any(start <= address and address + size <= start + len(b) - 256 for start, b in self.buffers.items())
        ctypes.memset(address, value, size)
        return (SUCCESS,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: Any) -> tuple[int]:
        ctypes.memmove(target, source, size)
        return (SUCCESS,)

    cuMemcpyDtoHAsync = cuMemcpyHtoDAsync

    def cuMemcpyDtoDAsync(self, target: int, source: int, size: int, stream: Any) -> tuple[int]:
        assert source + size <= target or target + size <= source, "overlapping copies are undefined"
        return self.cuMemcpyHtoDAsync(target, source, size, stream)

    CUDA_MEMCPY2D = SimpleNamespace

    def cuMemcpy2DAsync(self, copy: Any, stream: Any) -> tuple[int]:
        assert copy.srcPitch >= copy.WidthInBytes <= copy.dstPitch
        for row in range(copy.Height):
            source, target = copy.srcDevice + row * copy.srcPitch, copy.dstHost + row * copy.dstPitch
            ctypes.memmove(target, source, copy.WidthInBytes)
        return (SUCCESS,)

    # Kernels.
    def cuKernelGetFunction(self, kernel: Any) -> tuple[int, Any]:
        return SUCCESS, f"function of {kernel}"

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: Any, threads: int, shared: int) -> tuple[int, int]:
        assert function.startswith("function of kernel "), "the driver takes a function here, and no kernel"
        self.occupancy[function.removeprefix("function of kernel ")] = threads, shared
        return SUCCESS, RESIDENT

    # Streams, events and graphs.
    def cuStreamCreate(self, flags: int) -> tuple[int, int]:
        assert flags == Attribute.CU_STREAM_NON_BLOCKING
        self.streams += 1
        return SUCCESS, 4096

    def cuStreamDestroy(self, stream: Any) -> tuple[int]:
        self.streams -= 1
        return (SUCCESS,)

    def cuStreamSynchronize(self, stream: Any) -> tuple[int]:
        return (ILLEGAL_ADDRESS if self.broken else SUCCESS,)

    def cuEventCreate(self, flags: int) -> tuple[int, Any]:
        self.events += 1
        return SUCCESS, SimpleNamespace(at=0.0)

    def cuEventDestroy(self, event: Any) -> tuple[int]:
        self.events -= 1
        return (SUCCESS,)

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[int]:
        event.at = self.clock
        return (SUCCESS,)

    def cuEventElapsedTime(self, start: Any, end: Any) -> tuple[int, float]:
        return SUCCESS, (end.at - start.at) / 1e3

    CUDA_KERNEL_NODE_PARAMS = SimpleNamespace

    def cuGraphCreate(self, flags: int) -> tuple[int, Any]:
        self.graphs += 1
        return SUCCESS, []

    def cuGraphAddKernelNode(self, graph: list[Any], before: list[Any], count: int, node: Any) -> tuple[int, Any]:
        assert count == len(before)
        assert before == graph[-1:], "each node waits for the one before it"
        assert min(node.gridDimX, node.gridDimY, node.gridDimZ, node.blockDimX, node.blockDimY, node.blockDimZ) > 0
        params = GemmParams.from_address(ctypes.c_void_p.from_address(node.kernelParams).value or 0)
        graph.append(Node(node.kern.removeprefix("kernel "), len(graph), params.a or 0, node.sharedMemBytes))
        return SUCCESS, graph[-1]

    def cuGraphInstantiate(self, graph: Any, flags: int) -> tuple[int, Any]:
        self.graphs += 1
        self.instantiated.append(list(graph))
        return SUCCESS, self.instantiated[-1]

    def cuGraphDestroy(self, graph: Any) -> tuple[int]:
        self.graphs -= 1
        return (SUCCESS,)

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphUpload(self, graph: Any, stream: Any) -> tuple[int]:
        return (SUCCESS,)

    def cuGraphLaunch(self, graph: list[Node], stream: Any) -> tuple[int]:
        self.replayed.append(graph[0].name)
        for node in graph:
            self.clock += self.us(node.name)
        return (SUCCESS,)

    def cuLaunchKernel(self, kernel: str, *args: Any) -> tuple[int]:
        name = kernel.removeprefix("kernel ")
        *_, stream, pointers, _extra = args
        assert stream == 4096
        if name in self.refused:
            return (INVALID_VALUE,)
        self.launched.append(name)
        self.clock += self.us(name)
        self.broken = self.broken or name in self.faults
        params = GemmParams.from_address(ctypes.c_void_p.from_address(pointers).value or 0)
        self._compute(name, params)
        return (SUCCESS,)

    def _compute(self, name: str, params: GemmParams) -> None:
        if name in self.unwritten:
            params.n -= 1
            run_kernel(self._narrow(), params)
            params.n += 1
            return
        run_kernel(self.problem(), params)
        if name in self.wrong:
            last = (params.m - 1) * params.d_row + (params.n - 1) * params.d_col
            ctypes.memset((params.d or 0) + last * ITEM_BYTES[self.problem().out_dtype], 0x41, 1)

    def _narrow(self) -> Problem:
        from dataclasses import replace

        p = self.problem()
        return replace(p, n=p.n - 1, align=1)
