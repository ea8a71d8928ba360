"""NVRTC: real compilations, which need no GPU, and what a failed one shows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime import simulated
from tilery import jit, toolchain
from tilery.errors import CompileError, PackError
from tilery.generator import render
from tilery.generator.errors import RenderError
from tilery.generator.variant import Variant
from tilery.jit import Toolchain, compile_source, compile_variant, options, target
from tilery.stats import reset, stats
from tilery.store import Store

HEADER = "#pragma once\n__device__ inline float twice(float x) { return x + x; }\n"
SOURCE = '#include "sub folder/twice.cuh"\nextern "C" __global__ void fixture(float* p) { *p = twice(*p); }\n'
HEADERS = {"sub folder/twice.cuh": HEADER}
VARIANT = Variant("gemm_fixture", "gemm", "f32", "nn", 1, (("tile", (16, 16, 1)),), threads=256)
PACK = simulated.pack()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(render, "render", lambda variant: SOURCE)
    monkeypatch.setattr(render, "headers", lambda family: HEADERS)
    monkeypatch.setattr(render, "content_hash", lambda variant: "content")
    reset()
    yield
    reset()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100f", "sm_120f"])
def test_a_cubin_for_each_arch(arch: str) -> None:
    compiled = compile_source(SOURCE, "fixture", HEADERS, options(arch))
    assert compiled.code.startswith(b"\x7fELF")
    assert b"fixture" in compiled.code
    assert compiled.seconds > 0


def test_ptx_ends_with_a_zero() -> None:
    code = compile_source(SOURCE, "fixture", HEADERS, options("compute_80")).code
    assert b".target sm_80" in code
    assert code.endswith(b"\0")


def test_an_error_shows_log_and_options() -> None:
    with pytest.raises(CompileError) as raised:
        compile_source(SOURCE.replace("twice(*p)", "thrice(*p)"), "fixture", HEADERS, options("sm_90a"))
    assert 'identifier "thrice" is undefined' in raised.value.log
    assert raised.value.options == options("sm_90a")
    for part in ("fixture.cu(2)", "thrice", "--gpu-architecture=sm_90a"):
        assert part in str(raised.value)


def test_a_missing_header_says_what_to_do() -> None:
    with pytest.raises(CompileError, match=r"cuda_fp16\.h was not found: .* tilery/templates"):
        compile_source("#include <cuda_fp16.h>\n", "fixture", {}, options("sm_90a"))


def test_an_unknown_arch() -> None:
    with pytest.raises(CompileError, match="gpu-architecture"):
        compile_source(SOURCE, "fixture", HEADERS, options("sm_99"))


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("libnvrtc.so.13 was not found\nin many places")

    toolchain.loaded.cache_clear()
    monkeypatch.setattr(toolchain, "nvrtc", fail)
    with pytest.raises(CompileError, match=r"libnvrtc.so.13 was not found.*pip install nvidia-cuda-nvrtc"):
        compile_source(SOURCE, "fixture", HEADERS, options("sm_90a"))
    toolchain.loaded.cache_clear()


@pytest.mark.parametrize(
    ("cc", "arch"),
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100f"),
        ((10, 3), "sm_100f"),
        ((12, 1), "sm_120f"),
        ((13, 0), "compute_121"),
        ((7, 0), None),
    ],
)
def test_target(cc: tuple[int, int], arch: str | None) -> None:
    assert target(cc, PACK.archs, simulated.NVRTC) == arch


def test_target_of_an_older_nvrtc() -> None:
    assert target((10, 0), PACK.archs, Toolchain("12.0", "1", (80, 90))) == "compute_90"
    assert target((9, 0), PACK.archs, simulated.NO_NVRTC) is None


def test_the_toolchain_here() -> None:
    tools = jit.toolchain()
    assert re.fullmatch(r"\d+\.\d+", tools.version)
    assert tools.build and not tools.why_none
    assert {80, 90} <= set(tools.archs)


def test_compiled_once_and_kept(tmp_path: Path) -> None:
    made = compile_variant(VARIANT, "sm_90a", pack=PACK, store=Store(tmp_path / "store"))
    again = compile_variant(VARIANT, "sm_90a", pack=PACK, store=Store(tmp_path / "store"))
    assert (made.origin, again.origin) == ("nvrtc", "store")
    assert made.data == again.data
    report = stats()
    assert report["jit"]["compiles"] == 1
    assert report["jit"]["seconds"] > 0
    assert compile_variant(VARIANT, "sm_80", pack=PACK, store=Store(tmp_path / "store")).data != made.data


def test_a_warm_start_renders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = next(iter(PACK.variants.values()))
    monkeypatch.setattr(render, "content_hash", lambda variant: PACK.hashes[variant.name])
    code = compile_variant(variant, "sm_90a", pack=PACK, store=Store(tmp_path))
    monkeypatch.setattr(render, "render", None)
    assert compile_variant(variant, "sm_90a", pack=PACK, store=Store(tmp_path)).data == code.data


def test_an_edited_template_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_variant(VARIANT, "sm_90a", pack=PACK, store=Store(tmp_path))
    monkeypatch.setattr(render, "content_hash", lambda variant: "edited")
    compile_variant(VARIANT, "sm_90a", pack=PACK, store=Store(tmp_path))
    assert stats()["jit"]["compiles"] == 2


def test_each_part_of_the_key_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Variant("gemm_other", "gemm", "f32", "nn", 1, VARIANT.config)
    every = itertools.product((VARIANT, other), ("sm_80", "sm_90a"), "xy", "12", (Toolchain("13.0", "1"),))
    keys = {jit.key(*parts) for parts in every}
    keys |= {jit.key(VARIANT, "sm_80", "x", "1", tools) for tools in (Toolchain("13.1", "1"), Toolchain("13.0", "2"))}
    monkeypatch.setattr(jit, "options", lambda arch: ("--more",))
    keys.add(jit.key(VARIANT, "sm_80", "x", "1", Toolchain("13.0", "1")))
    assert len({key.digest for key in keys}) == len(keys) == 19


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_failure_keeps_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool) -> None:
    broken = SOURCE.replace("twice(*p)", "thrice(*p)")
    monkeypatch.setattr(render, "render", lambda variant: broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CompileError) as raised:
        compile_variant(VARIANT, "sm_90a", pack=PACK, store=Store(tmp_path / "store" if on_disk else None))
    path = Path(str(raised.value.source_path))
    assert path.read_text() == broken
    assert (path.parent / "sub folder/twice.cuh").read_text() == HEADER
    assert "thrice" in (path.parent / "log.txt").read_text()
    assert str(path) in str(raised.value)
    assert stats()["jit"] == {"failures": 1}


def test_a_broken_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(variant: Variant) -> str:
        raise RenderError("no such template")

    monkeypatch.setattr(render, "render", fail)
    with pytest.raises(PackError, match=r"no such template.*reinstall"):
        compile_variant(VARIANT, "sm_90a", pack=PACK, store=Store(tmp_path))
