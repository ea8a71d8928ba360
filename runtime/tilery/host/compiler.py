"""The machine's C++ compiler: sources of kernels to a library for the host device."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ..errors import CompileError
from ..generator.load import TEMPLATES

FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-DTILERY_HOST")
CHECK = ("-DTILERY_HOST_CHECK",)
LINK = ("-shared", "-pthread")
# The C++ run-time goes into the library, as the process may have loaded an older one; not every system has it to give.
STATIC = ("-static-libstdc++", "-static-libgcc")
LEAST_GCC = 11  # __builtin_bit_cast; Clang has it from 9 on
INSTALL = "Install g++ 11 or later (apt-get install g++, dnf install gcc-c++), or set CXX to a compiler"


@dataclass(frozen=True, slots=True)
class Compiler:
    """The C++ compiler of this machine.

    Attributes:
        command: how it is called; empty where there is none.
        version: its first line of ``--version``.
        why_none: why there is none, for people.
    """

    command: tuple[str, ...] = ()
    version: str = ""
    why_none: str = ""


@dataclass(frozen=True, slots=True)
class Layer:
    """The files of ``templates/host``; copies of a folder are the same layer."""

    templates: Path = field(compare=False)
    digest: str


@lru_cache(maxsize=1)
def find() -> Compiler:
    """$CXX, else g++ or c++ in PATH; looked for once, and only when somebody asks."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return Compiler(why_none=f"the host device runs on x86-64, and this is {platform.machine()}")
    wanted = [tuple(shlex.split(os.environ["CXX"]))] if os.environ.get("CXX") else [("g++",), ("c++",)]
    refused = []
    for command in wanted:
        found = examine(command)
        if not found.why_none:
            return found
        refused.append(found.why_none)
    return Compiler(why_none=f"{'; '.join(refused)}. {INSTALL}")


def examine(command: tuple[str, ...]) -> Compiler:
    """The compiler that a command calls, or why it will not do."""
    if not command or shutil.which(command[0]) is None:
        return Compiler(why_none=f"there is no C++ compiler {' '.join(command)!r}")
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=True)
        probe = [*command, "-dM", "-E", "-x", "c++", os.devnull]
        macros = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Compiler(why_none=f"the C++ compiler {' '.join(command)!r} does not run ({error})")
    version = (done.stdout.splitlines() or [""])[0]
    gcc = re.search(r"#define __GNUC__ (\d+)", macros)
    if "__clang__" not in macros and (gcc is None or int(gcc[1]) < LEAST_GCC):
        return Compiler(why_none=f"{version} is older than GCC {LEAST_GCC}")
    return Compiler(command, version)


def compile(
    sources: Mapping[str, str],
    out: Path,
    *,
    check: bool = False,
    flags: Sequence[str] = (),
    templates: Path = TEMPLATES,
    units: int = 2,
) -> Path:
    """Compile and link a library of kernels.

    Args:
        sources: by name; they stay beside the library as ``<name>.cu``.
        out: the library to write; its folder is made.
        check: watch every access of the kernels; see docs/decisions/0010-host-device.md.
        flags: for the compiler, after `FLAGS`, and for the linker.
        templates: the folder that the sources include from, and whose layer runs them.
        units: translation units, compiled at the same time.

    Returns:
        ``out``.

    Raises:
        CompileError: there is no compiler, nothing can be written, or it failed, with its log.
    """
    compiler = find()
    names = ", ".join(list(sources)[:3]) + (", ..." if len(sources) > 3 else "")
    if compiler.why_none:
        raise CompileError(f"{names} cannot be compiled for the host device: {compiler.why_none}")
    flags = (*FLAGS, *(CHECK if check else ()), *flags)
    folder = out.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = _write_units(sources, folder, max(1, min(units, len(sources))))
        with ThreadPoolExecutor(len(files) + 1) as pool:
            layer = pool.submit(_layer, compiler, flags, Layer(templates, _digest(templates)))
            objects = list(pool.map(lambda file: _object(compiler, file, folder, flags, templates), files))
        _link(compiler, [*objects, layer.result()], out, flags)
    except OSError as error:
        raise CompileError(f"{names} cannot be compiled for the host device: {error}", options=flags) from error
    return out


def _write_units(sources: Mapping[str, str], folder: Path, count: int) -> list[Path]:
    for name, source in sources.items():
        (folder / f"{name}.cu").write_text(source, encoding="utf-8")
    units = [folder / f"unit{i}.cc" for i in range(count)]
    for i, unit in enumerate(units):
        unit.write_text("".join(f'#include "{name}.cu"\n' for name in list(sources)[i::count]), encoding="utf-8")
    return units


def _object(compiler: Compiler, file: Path, folder: Path, flags: Sequence[str], templates: Path) -> Path:
    target = folder / f"{file.stem}.o"
    _call([*compiler.command, *flags, "-I", str(templates), "-c", "-x", "c++", str(file), "-o", str(target)])
    return target


def _link(compiler: Compiler, objects: Sequence[Path], out: Path, flags: Sequence[str]) -> None:
    command = [*compiler.command, *flags, *LINK, *map(str, objects), "-o", str(out)]
    try:
        _call([*command, *STATIC])
    except CompileError as error:
        if "stdc++" not in error.log:
            raise
        _call(command)


def _digest(templates: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted((templates / "host").iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@lru_cache(maxsize=32)
def _layer(compiler: Compiler, flags: tuple[str, ...], layer: Layer) -> Path:
    """The scheduler's object file, compiled once in a process for each set of flags."""
    folder = Path(tempfile.mkdtemp(prefix="tilery-host-"))
    atexit.register(_remove, folder, os.getpid())
    return _object(compiler, layer.templates / "host" / "run.cpp", folder, flags, layer.templates)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _call(command: Sequence[str]) -> None:
    english = os.environ | {"LC_ALL": "C"}  # an error is looked for in the output
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=english)
    if done.returncode:
        message = f"the C++ compiler ended with status {done.returncode}"
        with suppress(IndexError):
            message += f": {next(line for line in done.stderr.splitlines() if 'error' in line)}"
        raise CompileError(message, log=done.stderr, options=command)
