"""A library of host kernels, and its launches: the ctypes twin of templates/host/launch.h."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import HostError, PackError

ENTRY = "tilery_host_run"
_ERROR_BYTES = 2048


class _Range(ctypes.Structure):
    """TileryHostRange."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("writers", ctypes.c_void_p),
        ("element", ctypes.c_int),
        ("writable", ctypes.c_int),
    )


class _Launch(ctypes.Structure):
    """TileryHostLaunch."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("kernel", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("params_bytes", ctypes.c_size_t),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("workers", ctypes.c_uint),
        ("seed", ctypes.c_ulonglong),
        ("ranges", ctypes.POINTER(_Range)),
        ("range_count", ctypes.c_size_t),
        ("stop_block", ctypes.c_longlong),
        ("stop_thread", ctypes.c_longlong),
        ("error", ctypes.c_char_p),
        ("error_bytes", ctypes.c_size_t),
    )


@dataclass(frozen=True)
class Operand:
    """Memory that a kernel compiled with checks may touch.

    Attributes:
        name: in messages.
        address, bytes: where it is.
        element: bytes of one element.
        writers: int64 for each element, filled with -1 before the launch: becomes the number of the block * 1024 + that
            of the thread that wrote it. None where nobody may write.
    """

    name: str
    address: int
    bytes: int
    element: int
    writers: np.ndarray[Any, Any] | None = None


class Library:
    """A loaded library of kernels.

    Raises:
        PackError: the file is no library that this process can load, or has no launch.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._dll = ctypes.CDLL(str(path))
            self._run = getattr(self._dll, ENTRY)
        except (OSError, AttributeError) as error:
            raise PackError(f"{path} cannot be loaded as a library of host kernels: {error}") from error

    def run(
        self,
        name: str,
        params: ctypes.Structure,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int = 0,
        *,
        workers: int = 0,
        seed: int = 0,
        operands: Iterable[Operand] = (),
        stop: tuple[int, int] = (-1, -1),
    ) -> None:
        """Run a kernel to its end, with the GIL released.

        Args:
            name: the kernel's.
            params: its only parameter.
            grid, block: one to three dimensions.
            shared_bytes: dynamic shared memory of a block.
            workers: CPU threads; 0 for one per core.
            seed: of the order in which a block's threads run; 0 for theirs.
            operands: what a library compiled with checks lets it touch.
            stop: block and thread that call ``tilery_host_stop`` as they start, for a breakpoint there.

        Raises:
            HostError: the launch failed.
            PackError: the library has no such kernel, or another form of launch.
        """
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        ranges = [_range(operand) for operand in operands]
        launch = _Launch(
            size=ctypes.sizeof(_Launch),
            name=name.encode(),
            kernel=self.kernel(name),
            params=ctypes.addressof(params),
            params_bytes=ctypes.sizeof(params),
            grid=(ctypes.c_uint * 3)(*grid, *[1] * (3 - len(grid))),
            block=(ctypes.c_uint * 3)(*block, *[1] * (3 - len(block))),
            shared_bytes=shared_bytes,
            workers=workers,
            seed=seed,
            ranges=(_Range * len(ranges))(*ranges),
            range_count=len(ranges),
            stop_block=stop[0],
            stop_thread=stop[1],
            error=ctypes.cast(error, ctypes.c_char_p),
            error_bytes=len(error),
        )
        if self._run(ctypes.byref(launch)):
            if not error.value:
                raise PackError("the library of host kernels is of another version of tilery")
            raise HostError(error.value.decode(errors="replace"))

    def kernel(self, name: str) -> int:
        """The address of a kernel."""
        try:
            address = ctypes.cast(getattr(self._dll, name), ctypes.c_void_p).value
        except AttributeError:
            raise PackError(f"the library of host kernels has no kernel {name}") from None
        assert address is not None
        return address


def _range(operand: Operand) -> _Range:
    writers = None if operand.writers is None else operand.writers.ctypes.data
    return _Range(operand.name.encode(), operand.address, operand.bytes, writers, operand.element, writers is not None)
