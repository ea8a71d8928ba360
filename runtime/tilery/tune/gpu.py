"""What a measurement does on a GPU: memory that is kept, a private stream, CUDA graphs, events."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import numpy as np

from .. import device
from ..errors import DriverError
from ..generator.variant import Variant
from ..launch import GemmParams, grid
from ..problem import ITEM_BYTES, Problem
from .buffers import BLOCK, Array, Layout, Skip, block
from .check import STAGED_BYTES, Sample, numpy_dtype

POISON = 0xFF  # NaN in every float, -1 in integers: what a kernel leaves unwritten shows
# So much work is put in front of the first measured launch, in bytes set: the GPU must never wait for the host.
HEAD_START_BYTES, HEAD_STARTS = 64 << 20, 3
# Of the free memory; the rest is for code, for graphs, and for others.
MEMORY_SHARE = 0.7
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


Launch = Callable[[Any, int, int], tuple[Any]]
"""A launch of a kernel; what it still needs are stream, parameters and extra."""


class Pool:
    """Device memory of inputs of one dtype: ``block(dtype)`` again and again."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.address, self.elements, self.filled = dtype, 0, 0, 0

    def reserve(self, elements: int, stream: Any) -> int:
        """The address of at least so many elements; what was there before is the same afterwards, perhaps elsewhere."""
        if elements > self.elements:
            self.free()
            self.address = int(device.call("cuMemAlloc", elements * ITEM_BYTES[self.dtype]))
            self.elements = elements
        if elements > self.filled:
            self._fill(elements, stream)
        return self.address

    def _fill(self, elements: int, stream: Any) -> None:
        """Upload the block once, and copy what is there behind itself, whole blocks at a time."""
        item, host = ITEM_BYTES[self.dtype], block(self.dtype)
        self.filled = min(elements, BLOCK)
        device.call("cuMemcpyHtoDAsync", self.address, host.ctypes.data, self.filled * item, stream)
        while self.filled < elements:
            size = min(self.filled, elements - self.filled)
            device.call("cuMemcpyDtoDAsync", self.address + self.filled * item, self.address, size * item, stream)
            self.filled += size
        device.call("cuStreamSynchronize", stream)

    def free(self) -> None:
        """Give the memory back."""
        if self.address:
            device.call("cuMemFree", self.address)
        self.address = self.elements = self.filled = 0


class Gpu:
    """One GPU for a series of measurements. Its context must be current while it is used.

    Args:
        ordinal: the GPU.
        share: of the free memory that may be taken.
        limit: bytes that may be taken at most, or None.
        before: called before each piece of work; what it raises ends the measurement.
    """

    def __init__(
        self,
        ordinal: int,
        share: float = MEMORY_SHARE,
        limit: int | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.ordinal, self.info, self.before = ordinal, device.info(ordinal), before
        self._share, self._limit = share, limit
        self._stack = ExitStack()
        self._pools: dict[str, Pool] = {}
        self._output, self._output_bytes = 0, 0
        self._staging, self._staging_bytes = 0, 0
        self._events: list[tuple[Any, Any]] = []

    def __enter__(self) -> Gpu:
        with ExitStack() as stack:
            stack.enter_context(device.current(self.ordinal))
            flag = device.constant("CUstream_flags", "CU_STREAM_NON_BLOCKING")
            self.stream = device.call("cuStreamCreate", int(flag))
            stack.callback(device.call, "cuStreamDestroy", self.stream)
            stack.callback(self._free)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(DriverError):  # after a kernel's fault nothing can be freed; the fault itself is what is told
            self._stack.close()

    def _free(self) -> None:
        for pair in self._events:
            for event in pair:
                device.call("cuEventDestroy", event)
        self._events.clear()
        self._free_memory()
        self._free_staging()

    def _free_staging(self) -> None:
        if self._staging:
            device.call("cuMemFreeHost", self._staging)
        self._staging = self._staging_bytes = 0

    def _free_memory(self) -> None:
        for pool in self._pools.values():
            pool.free()
        if self._output:
            device.call("cuMemFree", self._output)
        self._output = self._output_bytes = 0

    def layout(self, problem: Problem) -> Layout:
        """The operands of a problem, in as much memory as there is.

        Raises:
            Skip: they do not fit.
        """
        held = self._output_bytes + sum(pool.elements * ITEM_BYTES[dtype] for dtype, pool in self._pools.items())
        room = int((int(device.call("cuMemGetInfo")[0]) + held) * self._share)
        return Layout(problem, self.info.l2_bytes, room if self._limit is None else min(room, self._limit))

    def place(self, layout: Layout) -> Operands:
        """The memory of all sets; from now on that of the problem before is gone.

        Raises:
            Skip: another program took the memory meanwhile.
        """
        try:
            return self._place(layout)
        except DriverError as error:
            if error.name != OUT_OF_MEMORY:
                raise
        self._free_memory()  # the pools may be larger than this problem needs
        try:
            return self._place(layout)
        except DriverError as error:
            if error.name != OUT_OF_MEMORY:
                raise
            reason = f"no memory for its arrays of {layout.bytes / 1e9:.2f} GB: {error.text}"
            raise Skip(reason, "no memory") from error

    def _place(self, layout: Layout) -> Operands:
        needed = layout.elements()
        out = layout.sets * layout.output.grains * ITEM_BYTES[layout.problem.out_dtype]
        for dtype in [dtype for dtype in self._pools if dtype not in needed]:
            self._pools.pop(dtype).free()
        pools = {dtype: self._pool(dtype).reserve(size, self.stream) for dtype, size in needed.items()}
        return Operands(self, layout, pools, self._reserve_output(out))

    def _pool(self, dtype: str) -> Pool:
        return self._pools.setdefault(dtype, Pool(dtype))

    def _reserve_output(self, size: int) -> int:
        size = max(size, HEAD_START_BYTES)
        if size > self._output_bytes:
            if self._output:
                device.call("cuMemFree", self._output)
                self._output = self._output_bytes = 0
            self._output = int(device.call("cuMemAlloc", size))
            self._output_bytes = size
        return self._output

    def staging(self, size: int) -> int:
        """The address of pinned memory of so many bytes."""
        if size > self._staging_bytes:
            self._free_staging()
            self._staging = int(device.call("cuMemAllocHost", max(size, STAGED_BYTES)))
            self._staging_bytes = max(size, STAGED_BYTES)
        return self._staging

    def head_start(self) -> None:
        """Keep the GPU busy while the host gets ahead of it."""
        for _ in range(HEAD_STARTS):
            device.call("cuMemsetD8Async", self._output, POISON, HEAD_START_BYTES, self.stream)

    def events(self, count: int) -> list[tuple[Any, Any]]:
        """So many pairs of events; they are used again."""
        while len(self._events) < count:
            self._events.append((device.call("cuEventCreate", 0), device.call("cuEventCreate", 0)))
        return self._events[:count]

    def synchronize(self) -> None:
        """Wait for the private stream."""
        device.call("cuStreamSynchronize", self.stream)


class Operands:
    """The operands of one problem in the memory of a GPU: how candidates are launched, checked and timed.

    Attributes:
        sets: how many sets of operands there are.
        pointers: of each set, as cuLaunchKernel takes its parameters.
    """

    def __init__(self, gpu: Gpu, layout: Layout, pools: dict[str, int], output: int) -> None:
        self.gpu, self.problem, self.sets = gpu, layout.problem, layout.sets
        self._params = layout.params(pools, output)
        # kernelParams is an array of pointers, here of one.
        self._arrays = [ctypes.c_void_p(ctypes.addressof(params)) for params in self._params]
        self.pointers = [ctypes.addressof(array) for array in self._arrays]
        self._output, self._output_bytes = output, layout.output.place.size * ITEM_BYTES[self.problem.out_dtype]
        self._sample = Sample(layout)

    def params(self, index: int) -> GemmParams:
        """The kernel's parameter for one set."""
        return self._params[index]

    def launcher(self, variant: Variant, kernel: Any) -> Launch:
        """The launch of a kernel; what is left are stream, parameters and extra."""
        size = (*self._grid(variant), variant.threads, 1, 1, variant.shared_bytes)
        launch: Launch = partial(device.function("cuLaunchKernel"), kernel, *size)
        return launch

    def node(self, variant: Variant, kernel: Any) -> Any:
        """The launch of a kernel as a node of a CUDA graph; what is left are the parameters."""
        node = device.function("CUDA_KERNEL_NODE_PARAMS")()
        node.kern = kernel
        node.gridDimX, node.gridDimY, node.gridDimZ = self._grid(variant)
        node.blockDimX, node.blockDimY, node.blockDimZ = variant.threads, 1, 1
        node.sharedMemBytes = variant.shared_bytes
        return node

    def _grid(self, variant: Variant) -> tuple[int, int, int]:
        return grid(variant, self.problem.m, self.problem.n, self.problem.batch)

    def check(self, launch: Launch) -> tuple[float, float]:
        """Launch once over a poisoned result: the error as a part of what is allowed, and the microseconds it took."""
        stream = self.gpu.stream
        self.gpu.head_start()
        device.call("cuMemsetD8Async", self._output, POISON, self._output_bytes, stream)
        ((start, end),) = self.gpu.events(1)
        device.call("cuEventRecord", start, stream)
        self._go(launch, 0)
        device.call("cuEventRecord", end, stream)
        results = self._copied()
        us = float(device.call("cuEventElapsedTime", start, end)) * 1e3
        return self._sample.error(results), us

    def _go(self, launch: Launch, index: int) -> None:
        (status,) = launch(self.gpu.stream, self.pointers[index], 0)
        if status:
            raise device.driver_error("cuLaunchKernel", status)

    def _copied(self) -> list[Array]:
        """The sampled rows of the first set's result, once all work before is done."""
        p, sample, found = self.problem, self._sample, []
        at = self.gpu.staging(sample.staged)
        for rows in sample.rows:
            first = (rows.entry * p.m + rows.first) * sample.bytes
            _copy_rows(self._output + first, rows.step * sample.bytes, at, sample.bytes, rows.lines, self.gpu.stream)
            size = rows.lines * sample.bytes
            raw = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(at))
            found.append(raw.view(numpy_dtype(p)).reshape(rows.lines, p.n))
            at += size
        self.gpu.synchronize()
        return found


def _copy_rows(source: int, pitch: int, target: int, width: int, count: int, stream: Any) -> None:
    """Copy ``count`` rows of ``width`` bytes, ``pitch`` bytes apart on the GPU, to packed pinned memory."""
    if count == 1:
        device.call("cuMemcpyDtoHAsync", target, source, width, stream)
        return
    copy = device.function("CUDA_MEMCPY2D")()
    copy.srcMemoryType = device.constant("CUmemorytype", "CU_MEMORYTYPE_DEVICE")
    copy.dstMemoryType = device.constant("CUmemorytype", "CU_MEMORYTYPE_HOST")
    copy.srcDevice, copy.srcPitch = source, pitch
    copy.dstHost, copy.dstPitch = target, width
    copy.WidthInBytes, copy.Height = width, count
    device.call("cuMemcpy2DAsync", copy, stream)
