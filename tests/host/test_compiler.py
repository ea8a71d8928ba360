"""Compiling where there is no compiler, no folder to write to, or a strange one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.render import render
from tests.host.conftest import variants_of
from tests.host.harness import SANITIZED
from tilery.errors import CompileError, PackError
from tilery.host import Library, compile, compiler
from tilery.trial import Case, Epilogue, Shape

pytestmark = pytest.mark.skipif(SANITIZED, reason="nothing is run")
VARIANT = variants_of("gemm_naive", "f32", "any", 1)[0]
SOURCES = {VARIANT.name: render(VARIANT)}


@pytest.fixture(autouse=True)
def looked_for_anew() -> Iterator[None]:
    compiler.find.cache_clear()
    yield
    compiler.find.cache_clear()


def refused(folder: Path) -> str:
    with pytest.raises(CompileError, match=f"^{VARIANT.name} cannot be compiled for the host device: ") as caught:
        compile(SOURCES, folder / "out" / "kernels.so")
    return str(caught.value)


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert re.search(r"there is no C\+\+ compiler 'g\+\+'; .* 'c\+\+'\. Install g\+\+ 11 or later", refused(tmp_path))


def test_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").touch()  # a file where the folder has to be
    assert "out" in refused(tmp_path)


def test_paths_with_spaces_and_other_letters(tmp_path: Path) -> None:
    library = Library(compile(SOURCES, tmp_path / "a folder, größer" / "kernels.so"))
    case = Case(VARIANT, Shape(20, 30, 40), Epilogue("f32"))
    case.run(library)
    assert case.error() <= 1
    with pytest.raises(PackError, match="has no kernel gemm_mma"):
        library.kernel("gemm_mma")


def test_what_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "kernels.so").write_bytes(b"\x7fELF but no more")
    with pytest.raises(PackError, match=r"kernels.so cannot be loaded as a library of host kernels: "):
        Library(tmp_path / "kernels.so")
