"""NVRTC: the rendered source of a Variant to code for one arch. Needs no toolkit and no driver."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from . import image, policy
from .errors import CompileError, PackError
from .generator.variant import Variant
from .pack import ADVICE, Pack, builtin
from .stats import count
from .store import Key, Store, store_for

INSTALL = "NVRTC comes with `pip install nvidia-cuda-nvrtc`"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The NVRTC of this process.

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


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compilation gave."""

    code: bytes
    log: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Code:
    """Code of a variant.

    Attributes:
        data: a cubin, or PTX for a ``compute_`` arch.
        origin: ``store`` or ``nvrtc``.
    """

    data: bytes
    origin: str


@lru_cache(maxsize=1)
def _nvrtc() -> Any:
    return import_module("cuda.bindings.nvrtc")


@lru_cache(maxsize=1)
def toolchain() -> Toolchain:
    """The NVRTC of this process; looked for once, and only when somebody asks."""
    try:
        nvrtc = _nvrtc()
        _, major, minor = nvrtc.nvrtcVersion()
        _, archs = nvrtc.nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError) as error:  # cuda-pathfinder's DynamicLibNotFoundError is a RuntimeError
        return Toolchain(why_none=f"NVRTC cannot be loaded ({str(error).splitlines()[0]}): {INSTALL}")
    return Toolchain(f"{major}.{minor}", _build(), tuple(archs))


def _build() -> str:
    """The library's size tells its builds apart, unlike its path or date, which change with a move."""
    library = import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc").abs_path
    return str(Path(library).stat().st_size) if library else ""


def target(cc: tuple[int, int], archs: Iterable[str], tools: Toolchain) -> str | None:
    """The arch to compile for, so that the code runs on ``cc``: exact if possible, else PTX; None if there is none.

    >>> tools = Toolchain("13.0", "", (80, 86, 90))
    >>> [target(cc, ["sm_80", "sm_90a"], tools) for cc in [(9, 0), (8, 6), (13, 0)]]
    ['sm_90a', 'sm_86', 'compute_90']
    """
    number = cc[0] * 10 + cc[1]
    for arch in image.order(archs, cc):
        _, capability, suffix = image.parse_arch(arch)
        compiles = capability[0] * 10 + capability[1] in tools.archs
        if image.is_sass(arch) and compiles and (suffix or capability == cc):
            return arch
    if number in tools.archs:
        return f"sm_{number}"
    older = [supported for supported in tools.archs if supported <= number]
    return f"compute_{max(older)}" if older else None


def options(arch: str) -> tuple[str, ...]:
    """The compiler's options, in order; they are part of the store's key."""
    return (f"--gpu-architecture={arch}", "--std=c++17")


def compile_source(source: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> Compiled:
    """Compile CUDA source to a cubin, or to PTX for a ``compute_`` arch. Headers come from memory.

    Raises:
        CompileError: with log and options.
    """
    tools = toolchain()
    if tools.why_none:
        raise CompileError(f"{name} cannot be compiled: {tools.why_none}", options=options)
    nvrtc, started = _nvrtc(), time.perf_counter()
    texts, names = [t.encode() for t in headers.values()], [n.encode() for n in headers]
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), len(names), texts, names)
    if int(status) != 0:
        raise CompileError(f"NVRTC {tools.version} does not take {name}: {status!r}", options=options)
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _fetch(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            raise CompileError(f"NVRTC {tools.version} failed on {name}", log=log, options=options, advice=_advice(log))
        code = _fetch(program, "PTX" if "=compute_" in options[0] else "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(code, log, time.perf_counter() - started)


def _fetch(program: Any, what: str) -> bytes:
    nvrtc = _nvrtc()
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    data: bytes = b"\0" * size  # filled in place
    getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    return data


def _advice(log: str) -> str:
    missing = re.search(r'could not open source file "([^"]+)"', log)
    if missing is None:
        return ""
    return (
        f"The header {missing[1]} was not found: the JIT sees the files of tilery/templates and nothing else, so that "
        "it needs no toolkit. Include a file from there, or reinstall tilery if it is one of them."
    )


def key(variant: Variant, arch: str, content: str, library: str) -> Key:
    """The store's key of a variant compiled for an arch; ``content`` is the hash of source and headers."""
    tools = toolchain()
    return Key(
        "binary",
        (
            ("variant", variant.name),
            ("content", content),
            ("options", "\0".join(options(arch))),
            ("arch", arch),
            ("nvrtc", tools.version),
            ("build", tools.build),
            ("library", library),
        ),
    )


def compile_variant(variant: Variant, arch: str, *, pack: Pack | None = None, store: Store | None = None) -> Code:
    """Code of a variant for an arch, from the store or from NVRTC.

    Args:
        variant: what to compile.
        arch: the target, see `target`.
        pack: whose variant it is; default: the built-in pack.
        store: where the code is kept; default: the store of the current policy.

    Raises:
        CompileError: with the log, the options and the path of the source.
    """
    pack = builtin() if pack is None else pack
    store = store_for(policy.current()) if store is None else store
    # The pack's hash spares a warm start the template engine. Where it is stale, as in an edited checkout, the entry is
    # looked up and published under the true one.
    promised = pack.hashes.get(variant.name)
    if promised and (data := store.get(key(variant, arch, promised, pack.version))) is not None:
        return Code(data, "store")
    source, headers, content = _render(variant)
    true = key(variant, arch, content, pack.version)
    if content != promised and (data := store.get(true)) is not None:
        return Code(data, "store")
    origin = "store"

    def make() -> bytes:
        nonlocal origin
        origin = "nvrtc"
        return _compile_kept(variant, arch, source, headers, store)

    data = store.make(true, make)
    return Code(data, origin)


def _render(variant: Variant) -> tuple[str, dict[str, str], str]:
    """Source, headers and content hash; the template engine is imported only now."""
    from .generator import render
    from .generator.errors import GeneratorError

    try:
        return render.render(variant), render.headers(variant.family), render.content_hash(variant)
    except GeneratorError as error:
        raise PackError(f"{error}. {ADVICE}") from error


def _compile_kept(variant: Variant, arch: str, source: str, headers: Mapping[str, str], store: Store) -> bytes:
    try:
        compiled = compile_source(source, variant.name, headers, options(arch))
    except CompileError as error:
        count("jit", "failures")
        raise _with_source(error, variant.name, {f"{variant.name}.cu": source, **headers}, store) from None
    count("jit", "compiles")
    count("jit", "seconds", compiled.seconds)
    return compiled.code


def _with_source(error: CompileError, name: str, files: dict[str, str], store: Store) -> CompileError:
    """The error again, with the path of the source, which is written for people to look at."""
    digest = hashlib.sha256("\0".join([*files.values(), *error.options]).encode()).hexdigest()[:8]
    files = files | {"log.txt": error.log, "options.txt": "\n".join(error.options) + "\n"}
    folder = store.keep_failure(f"{name}-{digest}", files)
    if folder is None:
        folder = Store(Path(tempfile.mkdtemp(prefix="tilery-"))).keep_failure(name, files)
    path = str(folder / f"{name}.cu") if folder else None
    message = str(error).partition("\n")[0]
    return CompileError(message, log=error.log, options=error.options, source_path=path, advice=_advice(error.log))
