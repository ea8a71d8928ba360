"""Sources to a library of host kernels, and its launches.

With libasan preloaded, everything is compiled with AddressSanitizer and UBSan (see test_sanitizers.py).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from generator.load import TEMPLATES

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1"] if SANITIZED else []
FLAGS = ["-std=c++17", "-O1" if SANITIZED else "-O2", "-fPIC", "-fvisibility=hidden", "-DTILERY_HOST", *SANITIZE]
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
CHECK = ("-DTILERY_HOST_CHECK",)


class Range(ctypes.Structure):
    """TileryHostRange of templates/host/launch.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("writers", ctypes.c_void_p),
        ("element", ctypes.c_int),
        ("writable", ctypes.c_int),
    )


class Launch(ctypes.Structure):
    """TileryHostLaunch of templates/host/launch.h."""

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
        ("ranges", ctypes.POINTER(Range)),
        ("range_count", ctypes.c_size_t),
        ("stop_block", ctypes.c_longlong),
        ("stop_thread", ctypes.c_longlong),
        ("error", ctypes.c_char_p),
        ("error_bytes", ctypes.c_size_t),
    )


class HostFault(Exception):
    """The text that a launch failed with."""


@dataclass(frozen=True)
class Operand:
    """Memory that a kernel may touch, and who wrote each element of it."""

    name: str
    address: int
    bytes: int
    element: int
    writers: np.ndarray[Any, Any] | None = None

    @property
    def range(self) -> Range:
        writers = None if self.writers is None else self.writers.ctypes.data
        return Range(self.name.encode(), self.address, self.bytes, writers, self.element, writers is not None)


class Library:
    def __init__(self, path: Path) -> None:
        self.dll = ctypes.CDLL(str(path))

    def run(
        self,
        name: str,
        params: ctypes.Structure,
        grid: Sequence[int],
        block: Sequence[int],
        *,
        shared_bytes: int = 0,
        seed: int = 0,
        workers: int = 0,
        operands: Iterable[Operand] = (),
    ) -> None:
        error = ctypes.create_string_buffer(2048)
        ranges = [operand.range for operand in operands]
        launch = Launch(
            size=ctypes.sizeof(Launch),
            name=name.encode(),
            kernel=ctypes.cast(getattr(self.dll, name), ctypes.c_void_p).value,
            params=ctypes.addressof(params),
            params_bytes=ctypes.sizeof(params),
            grid=(ctypes.c_uint * 3)(*grid, *[1] * (3 - len(grid))),
            block=(ctypes.c_uint * 3)(*block, *[1] * (3 - len(block))),
            shared_bytes=shared_bytes,
            workers=workers,
            seed=seed,
            ranges=(Range * len(ranges))(*ranges),
            range_count=len(ranges),
            stop_block=-1,
            stop_thread=-1,
            error=ctypes.cast(error, ctypes.c_char_p),
            error_bytes=len(error),
        )
        if self.dll.tilery_host_run(ctypes.byref(launch)):
            raise HostFault(error.value.decode())


def build(
    sources: Mapping[str, str], folder: Path, *, templates: Path = TEMPLATES, flags: Sequence[str] = ()
) -> Library:
    """Compile sources (name to text) in two units, and the layer, and load the library."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        (folder / f"{name}.cu").write_text(source)
    units = [folder / f"unit{i}.cc" for i in range(min(2, len(sources)))]
    for i, unit in enumerate(units):
        unit.write_text("".join(f'#include "{name}.cu"\n' for name in list(sources)[i::2]))
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda unit: _compile(unit, folder, templates, flags), units))
        layer = _layer(tuple(flags))
    library = folder / "kernels.so"
    _call(["g++", "-shared", "-pthread", *SANITIZE, *map(str, [*objects, layer]), "-o", str(library)])
    return Library(library)


@cache
def _layer(flags: tuple[str, ...]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tilery-layer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _compile(TEMPLATES / "host" / "run.cpp", folder, TEMPLATES, flags)


def _compile(file: Path, folder: Path, templates: Path, flags: Sequence[str]) -> Path:
    target = folder / f"{file.stem}.o"
    command = ["g++", *FLAGS, *WARNINGS, *flags, "-I", str(templates), "-c", "-x", "c++", str(file), "-o", str(target)]
    _call(command)
    return target


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
