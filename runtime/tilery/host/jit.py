"""Variants that no image covers, compiled by the machine's C++ compiler and kept in the store."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ..errors import CompileError, PackError
from ..generator.archs import HOST
from ..generator.variant import Variant
from ..pack import ADVICE, Pack
from ..stats import count
from ..store import Key, Store
from .compiler import FLAGS, LINK, STATIC, compile, find
from .library import Library


def key(variant: Variant, content: str, library: str) -> Key:
    """The store's key of a variant's library; ``content`` is the hash of source, headers and the layer's files."""
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""  # a library may not load beside an older one
    return Key(
        "binary",
        (
            ("variant", variant.name),
            ("content", content),
            ("options", "\0".join((*FLAGS, *LINK, *STATIC))),
            ("arch", HOST),
            ("compiler", find().version),
            ("libc", libc),
            ("library", library),
        ),
    )


def compile_variant(variant: Variant, pack: Pack, store: Store) -> tuple[bytes, str]:
    """The library of a variant, and whether it was in the ``store`` or the ``compiler`` made it.

    Raises:
        CompileError: with the log, the command and the path of the source.
        PackError: the variant has no source here.
    """
    from ..generator import render
    from ..generator.errors import GeneratorError

    try:
        source, content = render.render(variant), render.content_hash(variant, host=True)
        files = render.headers(variant.family) | render.host_files()
    except (GeneratorError, OSError) as error:
        raise PackError(f"{error}. {ADVICE}") from error
    wanted = key(variant, content, pack.version)
    if (data := store.get(wanted)) is not None:
        return data, "store"
    origin = "store"

    def make() -> bytes:
        nonlocal origin
        origin = "compiler"
        return _compile_kept(variant.name, source, files, store)

    return store.make(wanted, make), origin


def _compile_kept(name: str, source: str, files: Mapping[str, str], store: Store) -> bytes:
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="tilery-") as folder:
            data = compile({name: source}, Path(folder) / "kernels.so").read_bytes()
    except (CompileError, OSError) as error:
        count("jit", "failures")
        failed = error if isinstance(error, CompileError) else CompileError(f"{name} cannot be compiled: {error}")
        raise _with_source(failed, name, {f"{name}.cu": source, **files}, store) from None
    count("jit", "compiles")
    count("jit", "seconds", time.perf_counter() - started)
    return data


def _with_source(error: CompileError, name: str, files: dict[str, str], store: Store) -> CompileError:
    """The error again, with the path of the source, which is kept for people to look at."""
    digest = hashlib.sha256("\0".join(files.values()).encode()).hexdigest()[:8]
    texts = {Path(path).name: text for path, text in files.items()}
    texts |= {"log.txt": error.log, "options.txt": "\n".join(error.options) + "\n"}
    folder = store.keep_failure(f"{name}-host-{digest}", texts)
    path = str(folder / f"{name}.cu") if folder else None
    message = str(error).partition("\n")[0]
    advice = "" if "cannot be compiled" in message else "CXX names another C++ compiler; TILERY_JIT=off uses none."
    return CompileError(f"{name}: {message}", log=error.log, options=error.options, source_path=path, advice=advice)


def load(data: bytes, name: str) -> Library:
    """A library from its bytes. No file is left.

    Raises:
        PackError: it cannot be loaded, or nothing can be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="tilery-") as folder:  # of one name each: the loader goes by names too
            path = Path(folder) / f"{name}.so"
            path.write_bytes(data)
            return Library(path)
    except (OSError, PackError):  # no folder to write to, or one whose files may not be executed
        return _load_from_memory(data, name)


def _load_from_memory(data: bytes, name: str) -> Library:
    try:
        descriptor = os.memfd_create(name)  # stays open: the loader would take another file of its number for this one
        os.write(descriptor, data)
    except OSError as error:
        raise PackError(f"the host library of {name} can be written nowhere: {error}") from error
    return Library(Path(f"/proc/self/fd/{descriptor}"))
