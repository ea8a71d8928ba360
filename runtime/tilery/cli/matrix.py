"""Arrays of the demo's own, so that it needs no array library: bf16, which NumPy lacks, and memory of a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from .. import device
from ..arrays import ADAPTERS, Adapter, ArrayView
from ..dtypes import LONG_NAMES
from ..geometry import contiguous_strides
from ..problem import ITEM_BYTES
from .problems import Array

STREAM = 0  # the legacy default stream
POISON = 0xFF  # NaN in every float, -1 in integers: what a kernel leaves unwritten shows
FLUSH_BYTES = 256 << 20  # more than any L2; writing it also covers the host's time to launch


class Matrix:
    """A row-major array in host memory (``bits``, ordinal -1) or in a GPU's memory (at ``ptr``)."""

    def __init__(self, shape: tuple[int, ...], dtype: str, bits: Array | None = None, ptr: int = 0, ordinal: int = -1):
        self.shape, self.dtype, self.bits, self.ptr, self.ordinal = shape, dtype, bits, ptr, ordinal

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape)) * ITEM_BYTES[self.dtype]


class MatrixAdapter(Adapter):
    """The adapter of Matrix; it is found by the package that the class is from."""

    name = "tilery"

    def accepts(self, kind: type) -> str:
        return "" if kind is Matrix else "pass an array"

    def view(self, array: Matrix, role: str) -> ArrayView:
        kind = "cpu" if array.bits is not None else "cuda"
        ptr = array.ptr if array.bits is None else array.bits.ctypes.data
        return ArrayView(ptr, array.shape, contiguous_strides(array.shape), array.dtype, kind, array.ordinal)

    def empty(self, like: Matrix, shape: tuple[int, ...], dtype: str) -> Matrix:
        return Matrix(shape, dtype, np.empty(shape, _numpy_dtype(dtype)))

    def stream(self, ordinal: int) -> int:
        return STREAM

    def host(self, array: Matrix) -> Array:
        assert array.bits is not None, "this Matrix is in the memory of a GPU"
        return array.bits


def register() -> None:
    """Let `tilery.gemm` take Matrix."""
    ADAPTERS.setdefault("tilery", MatrixAdapter)


def _numpy_dtype(dtype: str) -> Any:
    return np.uint16 if dtype == "bf16" else np.dtype(LONG_NAMES[dtype])


class Gpu:
    """Memory and time on one GPU; all memory is freed at the end of the block."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._stack = ExitStack()

    def __enter__(self) -> Gpu:
        self._stack.enter_context(device.current(self.ordinal))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _allocate(self, size: int) -> int:
        pointer = device.call("cuMemAlloc", max(size, 1))
        self._stack.callback(device.call, "cuMemFree", pointer)
        return int(pointer)

    def upload(self, bits: Array, dtype: str) -> Matrix:
        """A copy on the GPU."""
        made = Matrix(bits.shape, dtype, None, self._allocate(bits.nbytes), self.ordinal)
        device.call("cuMemcpyHtoD", made.ptr, bits.ctypes.data, bits.nbytes)
        return made

    def poisoned(self, shape: tuple[int, ...], dtype: str) -> Matrix:
        """Memory for a result."""
        made = Matrix(shape, dtype, None, 0, self.ordinal)
        made.ptr = self._allocate(made.nbytes)
        device.call("cuMemsetD8", made.ptr, POISON, made.nbytes)
        return made

    def download(self, matrix: Matrix) -> Array:
        """A copy in host memory, once all work before is done."""
        bits = np.empty(matrix.shape, _numpy_dtype(matrix.dtype))
        device.call("cuMemcpyDtoH", bits.ctypes.data, matrix.ptr, bits.nbytes)
        return bits

    def time_us(self, launch: Callable[[], object], repetitions: int) -> float:
        """Median time of a launch on the default stream, each with a cold L2, by CUDA events."""
        flush = self._allocate(FLUSH_BYTES)
        times = [self._time_ms(launch, flush) for _ in range(repetitions)]
        return statistics.median(times) * 1e3

    def _time_ms(self, launch: Callable[[], object], flush: int) -> float:
        with ExitStack() as events:
            start, stop = (device.call("cuEventCreate", 0) for _ in range(2))
            events.callback(device.call, "cuEventDestroy", start)
            events.callback(device.call, "cuEventDestroy", stop)
            device.call("cuMemsetD8Async", flush, 0, FLUSH_BYTES, STREAM)
            device.call("cuEventRecord", start, STREAM)
            launch()
            device.call("cuEventRecord", stop, STREAM)
            device.call("cuEventSynchronize", stop)
            return float(device.call("cuEventElapsedTime", start, stop))
