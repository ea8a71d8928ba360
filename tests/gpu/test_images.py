"""Where the image of this GPU is missing: the JIT serves, or portable PTX, or the fallback, or a typed error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilery
from tests.gpu.compare import DTYPES, Epilogue, check
from tests.gpu.memory import operand, random, result
from tilery import image, plan, policy
from tilery.device import DeviceInfo
from tilery.errors import UnsupportedProblem
from tilery.pack import Image, Pack, builtin

pytestmark = pytest.mark.gpu

Withhold = Callable[[Callable[[Image], bool]], Pack]


@pytest.fixture
def keep_images(monkeypatch: pytest.MonkeyPatch) -> Iterator[Withhold]:
    """Leave the runtime only those images of the pack for which a condition holds, and nothing that was measured."""

    def keep(condition: Callable[[Image], bool]) -> Pack:
        images = {
            arch: {name: entry for name, entry in rows.items() if condition(entry)}
            for arch, rows in builtin().images.items()
        }
        pack = replace(builtin(), images=images, table={}, records={})
        monkeypatch.setattr(plan, "builtin", lambda: pack)
        plan.clear()
        return pack

    plan.clear()
    yield keep
    plan.clear()


def tiers() -> dict[str, int]:
    return dict(tilery.stats()["calls"])


def served_by(before: dict[str, int]) -> list[str]:
    """The tiers of the calls since."""
    return [tier for tier, count in tiers().items() if count != before.get(tier, 0)]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8"])
@pytest.mark.parametrize(("layout", "pad"), [("nt", 0), ("tn", 1)])
def test_without_any_image_the_jit_serves(keep_images: Withhold, dtype: str, layout: str, pad: int) -> None:
    keep_images(lambda entry: False)
    a = operand((144, 208), DTYPES[dtype], letter=layout[0], pad=pad)
    b = operand((208, 176), DTYPES[dtype], letter=layout[1], pad=pad)
    bias = random((176,), torch.int32 if dtype == "s8" else torch.float32)
    before = tiers()
    check(tilery.gemm(a, b, bias=bias, activation="relu"), a, b, Epilogue(bias=bias, activation="relu"))
    assert served_by(before) == ["jit"]


def test_without_any_image_tf32_is_served_by_the_jit(keep_images: Withhold) -> None:
    keep_images(lambda entry: False)
    a, b = random((256, 128), torch.float32), random((128, 192), torch.float32)
    before = tiers()
    check(tilery.gemm(a, b, precision="tf32"), a, b, tf32=True)
    assert served_by(before) == ["jit"]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8"])
def test_portable_ptx(keep_images: Withhold, gpu: DeviceInfo, dtype: str) -> None:
    pack = keep_images(lambda entry: not image.is_sass(entry.arch))
    if not any(pack.images[arch] for arch in image.order(pack.images, gpu.cc)):
        pytest.skip("the pack was built without PTX")
    policy.use(replace(policy.current(), jit="off"))
    a, b = random((144, 208), DTYPES[dtype]), random((176, 208), DTYPES[dtype]).t()
    before = tiers()
    check(tilery.gemm(a, b), a, b)
    assert served_by(before) in (["portable"], ["fallback"])


def test_every_ptx_image_is_served_by_its_own_arch(keep_images: Withhold, gpu: DeviceInfo) -> None:
    archs = [arch for arch in image.order(builtin().images, gpu.cc) if not image.is_sass(arch)]
    if not archs:
        pytest.skip("the pack was built without PTX")
    policy.use(replace(policy.current(), jit="off"))
    a, b = random((65, 208), torch.float32), random((176, 208), torch.float32).t()
    for arch in archs:
        keep_images(lambda entry, arch=arch: entry.arch == arch)
        before = tiers()
        check(tilery.gemm(a, b), a, b)
        assert served_by(before) == ["portable"], arch


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "s8"])
def test_the_fallback(keep_images: Withhold, dtype: str) -> None:
    keep_images(lambda entry: entry.name.startswith("gemm_naive"))
    policy.use(replace(policy.current(), jit="off"))
    a, b = operand((100, 77), DTYPES[dtype], step=2, pad=1), random((77, 50), DTYPES[dtype])
    before = tiers()
    check(tilery.gemm(a, b), a, b)
    assert served_by(before) == ["fallback"]


def test_nothing_left_is_a_typed_error(keep_images: Withhold) -> None:
    keep_images(lambda entry: False)
    policy.use(replace(policy.current(), jit="off"))
    a, b, out = random((64, 64), torch.float16), random((64, 64), torch.float16), result((64, 64), torch.float16)
    with pytest.raises(UnsupportedProblem, match="jit"):
        tilery.gemm(a, b, out=out.view)
    torch.cuda.synchronize()
    assert bool(out.view.isnan().all())


def test_a_broken_image_does_not_shadow_the_jit(
    keep_images: Withhold, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    bad = tmp_path / "bad.fatbin"
    bad.write_bytes(b"not a fatbin")
    pack = builtin()
    images = {
        arch: {name: replace(entry, path=bad, sha256=f"bad {arch} {name}") for name, entry in rows.items()}
        for arch, rows in pack.images.items()
    }
    monkeypatch.setattr(plan, "builtin", lambda: replace(pack, images=images))
    a, b = random((144, 208), torch.bfloat16), random((176, 208), torch.bfloat16).t()
    before = tiers()
    check(tilery.gemm(a, b), a, b)
    assert served_by(before) == ["jit"]
