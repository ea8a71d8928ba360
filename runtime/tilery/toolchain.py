"""Toolchain: which NVRTC this process has. Loading the library takes 60 ms, so that the store remembers what it is."""

from __future__ import annotations

import json
import os
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from . import policy
from .store import Key, Store, store_for

INSTALL = "NVRTC comes with `pip install nvidia-cuda-nvrtc`"
# What decides, beside the installed packages, which library is found.
SEARCHED = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """An NVRTC.

    Attributes:
        version: e.g. "13.0", or "" where there is none.
        build: tells two builds of one version apart.
        archs: capabilities that it compiles for, as 90 for 9.0.
        why_none: why there is none, for people.
    """

    version: str = ""
    build: str = ""
    archs: tuple[int, ...] = ()
    why_none: str = ""


@lru_cache(maxsize=1)
def nvrtc() -> Any:
    """The bindings of NVRTC."""
    return import_module("cuda.bindings.nvrtc")


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The NVRTC of this process, asked once: as the store remembers it, else by loading it.

    It may be remembered wrongly where a process has loaded another NVRTC by itself; who compiles asks `loaded`.
    """
    store = store_for(policy.current())
    return recall(store) or remember(store, loaded())


@lru_cache(maxsize=1)
def loaded() -> Toolchain:
    """The NVRTC of this process, by loading it."""
    try:
        _, major, minor = nvrtc().nvrtcVersion()
        _, archs = nvrtc().nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError) as error:  # cuda-pathfinder's DynamicLibNotFoundError is a RuntimeError
        return Toolchain(why_none=f"NVRTC cannot be loaded ({str(error).splitlines()[0]}): {INSTALL}")
    library = _library()
    return Toolchain(f"{major}.{minor}", build_of(library) if library else "", tuple(archs))


def actual(store: Store) -> Toolchain:
    """The NVRTC that compiles. If another one was remembered, the store learns of this one."""
    tools = loaded()
    if not tools.why_none and tools != toolchain():
        remember(store, tools)
        toolchain.cache_clear()
    return tools


def _library() -> Path | None:
    """The file of the library that is loaded."""
    found = import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc").abs_path
    return Path(found) if found else None


def _key() -> Key:
    """Where this process would look for the library: not part of any other key, so that folders can move."""
    searched = tuple((name, os.environ.get(name, "")) for name in SEARCHED)
    finder = ("bindings", str(import_module("cuda.bindings").__version__))
    return Key("toolchain", (("prefix", sys.prefix), *searched, finder))


def recall(store: Store) -> Toolchain | None:
    """What the store remembers, if that library is still the same file."""
    try:
        data = json.loads(store.look(_key()) or b"null")
        if data is None or _identity(Path(data["path"])) != data["identity"]:
            return None
        return Toolchain(data["version"], data["build"], tuple(data["archs"]))
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return None


def remember(store: Store, tools: Toolchain) -> Toolchain:
    """Let the store remember the NVRTC that is loaded."""
    library = _library() if not tools.why_none else None
    if library is not None:
        data = {"path": str(library), "identity": _identity(library)}
        data |= {"version": tools.version, "build": tools.build, "archs": tools.archs}
        store.put(_key(), json.dumps(data).encode())
    return tools


def _identity(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def build_of(library: Path) -> str:
    """The GNU build id of a library, else its size; unlike its path and date, neither changes with a move."""
    with library.open("rb") as file, suppress(struct.error, ValueError):  # as of a file that is no ELF
        if found := _build_id(file):
            return found
    return str(library.stat().st_size)


def _build_id(file: BinaryIO) -> str:
    """The note NT_GNU_BUILD_ID of a 64-bit little-endian ELF file in hex, or ""."""
    head = file.read(64)
    if head[:6] != b"\x7fELF\2\1":
        raise ValueError("another kind of file")
    (table,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    file.seek(table)
    segments = file.read(size * count)
    for at in range(0, len(segments) - 55, size):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", segments, at)
        if kind == 4:  # PT_NOTE
            file.seek(offset)
            if found := _note(file.read(min(length, 4096))):
                return found
    return ""


def _note(notes: bytes) -> str:
    at = 0
    while at + 12 <= len(notes):
        name, length, kind = struct.unpack_from("<III", notes, at)
        text, data = at + 12, at + 12 + (name + 3) // 4 * 4
        if kind == 3 and notes[text : text + name] == b"GNU\0":  # NT_GNU_BUILD_ID
            return notes[data : data + length].hex()
        at = data + (length + 3) // 4 * 4
    return ""
