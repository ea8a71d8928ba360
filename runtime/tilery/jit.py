"""NVRTC: the rendered source of a Variant to code for one arch. Needs no toolkit and no driver."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import image, policy
from .errors import CompileError, PackError
from .generator.variant import Variant
from .pack import ADVICE, Pack, builtin
from .stats import count
from .store import Key, Store, store_for
from .toolchain import INSTALL as INSTALL
from .toolchain import Toolchain as Toolchain
from .toolchain import actual, nvrtc
from .toolchain import loaded as loaded
from .toolchain import toolchain as toolchain


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
    # ptxas at level 2 takes 30 to 40 % less time than at its default 3, see docs/decisions/0013-compile-time.md.
    return (f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-O2")


def compile_source(source: str, name: str, headers: Mapping[str, str], options: Sequence[str]) -> Compiled:
    """Compile CUDA source to a cubin, or to PTX for a ``compute_`` arch. Headers come from memory.

    Raises:
        CompileError: with log and options.
    """
    tools = loaded()
    if tools.why_none:
        raise CompileError(f"{name} cannot be compiled: {tools.why_none}", options=options)
    api, started = nvrtc(), time.perf_counter()
    texts, names = [t.encode() for t in headers.values()], [n.encode() for n in headers]
    status, program = api.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), len(names), texts, names)
    if int(status) != 0:
        raise CompileError(f"NVRTC {tools.version} does not take {name}: {status!r}", options=options)
    try:
        (status,) = api.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _fetch(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if int(status) != 0:
            raise CompileError(f"NVRTC {tools.version} failed on {name}", log=log, options=options, advice=_advice(log))
        code = _fetch(program, "PTX" if "=compute_" in options[0] else "CUBIN")
    finally:
        api.nvrtcDestroyProgram(program)
    return Compiled(code, log, time.perf_counter() - started)


def _fetch(program: Any, what: str) -> bytes:
    _, size = getattr(nvrtc(), f"nvrtcGet{what}Size")(program)
    data: bytes = b"\0" * size  # filled in place
    getattr(nvrtc(), f"nvrtcGet{what}")(program, data)
    return data


def _advice(log: str) -> str:
    missing = re.search(r'could not open source file "([^"]+)"', log)
    if missing is None:
        return ""
    return (
        f"The header {missing[1]} was not found: the JIT sees the files of tilery/templates and nothing else, so that "
        "it needs no toolkit. Include a file from there, or reinstall tilery if it is one of them."
    )


def key(variant: Variant, arch: str, content: str, library: str, tools: Toolchain) -> Key:
    """The store's key of a variant compiled for an arch; ``content`` is the hash of source and headers."""
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
    # The pack's hash spares a warm start the template engine, and the remembered toolchain the compiler. Where one of
    # them is stale, the entry is looked up and published under the true one.
    guess = key(variant, arch, pack.hashes.get(variant.name, ""), pack.version, toolchain())
    if (data := store.get(guess)) is not None:
        return Code(data, "store")
    source, headers, content = _render(variant)
    true = key(variant, arch, content, pack.version, actual(store))
    if true != guess and (data := store.get(true)) is not None:
        return Code(data, "store")
    origin = "store"

    def make() -> bytes:
        nonlocal origin
        origin = "nvrtc"
        return _compile_kept(variant, arch, source, headers, store)

    data = store.make(true, make)
    return Code(data, origin)


def ready() -> None:
    """Import what a compilation needs: in the background that would take the GIL from calls, over and over."""
    from .generator import render  # noqa: F401

    with suppress(ImportError):  # whoever compiles is told so
        nvrtc()


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
