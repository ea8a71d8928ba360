"""Which variants are measured for a problem."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.simulated import NO_NVRTC, VARIANTS, problem
from tests.tune.conftest import H200, pack
from tilery import device, dispatch, jit
from tilery.errors import CompileError, TileryError
from tilery.policy import Policy
from tilery.store import Store
from tilery.tune.candidates import FALLBACK_FLOPS, Candidate, candidates, compile_ahead, target_of


def found(asked: Any, **more: Any) -> list[Candidate]:
    return candidates(asked, H200, pack(), **more)


@pytest.mark.parametrize("layout", ["nn", "nt", "tt", "any"])
@pytest.mark.parametrize("align", [2, 16])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_they_are_those_that_dispatch_could_choose(layout: str, align: int, dtype: str) -> None:
    asked = problem(layout=layout, align=4 if dtype == "f32" and align == 2 else align, dtype=dtype, out_dtype=dtype)
    search = dispatch.Search(asked, H200, pack(), Policy(), {}, lambda: NO_NVRTC, {}, False, lambda: "", {}, {})
    fits = {name for name, variant in search.fits.items() if search.image(variant)}
    assert {one.variant.name for one in found(asked)} == fits


def test_the_best_arch_of_an_image() -> None:
    assert {(one.source, one.arch) for one in found(problem())} == {("image", "sm_90a")}


def test_the_fallback_only_where_it_can_win() -> None:
    small, large = problem(512, 512, 512), problem(1024, 1024, 1024)
    assert 2 * 512**3 < FALLBACK_FLOPS < 2 * 1024**3
    assert any(one.variant.family == "gemm_naive" for one in found(small))
    assert not any(one.variant.family == "gemm_naive" for one in found(large))
    assert not any(one.variant.family == "gemm_naive" for one in found(problem(512, 512, 512, batch=8)))


def test_what_has_no_image_is_compiled_where_that_is_asked() -> None:
    asked = problem(layout="tt")
    assert all(one.source == "image" for one in found(asked))
    compiled = [one for one in found(asked, target="sm_90a") if one.source == "jit"]
    assert {one.variant.layout for one in compiled} == {"tt"}
    assert {one.arch for one in compiled} == {"sm_90a"}


def test_what_is_blocked_is_left_out() -> None:
    first, *rest = found(problem())
    assert found(problem(), blocked={first.variant.name: "wrong"}) == rest


def test_the_order_is_that_of_dispatch_then_by_name() -> None:
    names = [one.variant.name for one in found(problem())]
    assert names == sorted(names)
    assert [one.variant.name for one in found(problem(), first=[names[-1], "unknown"])] == [names[-1], *names[:-1]]


def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "toolchain", lambda: NO_NVRTC)
    with pytest.raises(TileryError, match="pip install nvidia-cuda-nvrtc"):
        target_of(device.representative("sm_90a", pack()), pack())


def test_compiled_ahead_once_each_and_failures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_variant(variant: Any, arch: str, **_: Any) -> jit.Code:
        compiled.append((variant.name, arch))
        if variant["tile"] == (64, 64, 64):
            raise CompileError("no registers left")
        return jit.Code(b"", "nvrtc")

    monkeypatch.setattr(jit, "compile_variant", compile_variant)
    wanted = found(problem(layout="tt"), target="sm_90a")
    failed = compile_ahead(wanted + wanted, pack(), Store(None))
    assert sorted(compiled) == sorted((one.variant.name, "sm_90a") for one in wanted if one.source == "jit")
    assert set(failed) == {name for name, _ in compiled if VARIANTS[name]["tile"] == (64, 64, 64)} != set()
    assert all("no registers left" in why for why in failed.values())
