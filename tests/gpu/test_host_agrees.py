"""Inputs alike on a GPU and on the host device, every built core variant: equal within rounding, s32 in every bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.pack_variants import every_variant
from tests.host.cases import odd, out_dtype
from tests.host.harness import core_library
from tilery import image, reference
from tilery.device import DeviceInfo
from tilery.generator.variant import Variant
from tilery.host import Library
from tilery.pack import builtin
from tilery.plan import plan_for
from tilery.problem import OUT_DTYPES
from tilery.trial import PACKED, Case, Epilogue, Shape, fit, input_dtype

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]
CORE = [variant for variant in every_variant() if variant.tier == "core"]
# Both results may be off by the bound, in opposite directions.
SIDES = 2


@dataclass
class Tally:
    """What was compared."""

    variants: int = 0
    launches: int = 0
    worst: float = 0.0
    worst_at: str = "none"
    equal: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"host and GPU agree: {self.variants} of {len(CORE)} core variants in {self.launches} launches, "
            f"{len(self.equal)} of them in every bit of s32; "
            f"the largest difference is {self.worst:.2g} of what rounding allows ({self.worst_at})"
        )


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    made = Tally()
    yield made
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\n{made}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return core_library(tmp_path_factory.mktemp("core"))


def cases(variant: Variant) -> Iterator[Case]:
    """Past a tile's edges; odd strides and an epilogue; a long sum."""
    tile_m, tile_n, tile_k = variant["tile"]
    first, other, *_ = OUT_DTYPES[input_dtype(variant)]
    yield Case(variant, fit(variant, Shape(tile_m + 1, tile_n - 1, 2 * tile_k + 1)), Epilogue(first), PACKED, 1)
    activation = "relu" if variant.dtype == "s8" else "gelu"
    epilogue = Epilogue(out_dtype(variant), -3, 2, True, activation)
    yield Case(variant, fit(variant, Shape(tile_m - 3, tile_n + 5, tile_k + 3, 2)), epilogue, odd(variant), 2)
    yield Case(variant, fit(variant, Shape(2 * tile_m + 7, 33, max(1000, 6 * tile_k - 1))), Epilogue(other), PACKED, 3)


def on_gpu(case: Case) -> Any:
    """Start a case on the GPU, on copies of the same bytes; gives the memory of D."""
    d = case.placed["d"]
    d.flat.view(np.uint8)[...] = 0xFF
    copies = {name: torch.from_numpy(placed.flat.view(np.uint8).copy()).cuda() for name, placed in case.placed.items()}
    plan = plan_for(case.problem, 0)
    assert (plan.tier, plan.decision.variant.name) == ("forced", case.variant.name)
    addresses = {name: copy.data_ptr() + case.placed[name].offset for name, copy in copies.items()}
    plan.launch(case.params(addresses), torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return copies["d"]


def difference(case: Case, gpu: Array, host: Array) -> float:
    """The largest, as a part of what is allowed."""
    if case.epilogue.out_dtype == "s32":
        return 0.0 if np.array_equal(gpu, host) else float("inf")
    _, allowed = case.expected()
    return reference.worst(gpu, reference.decode(host), SIDES * allowed, case.epilogue.out_dtype)


@pytest.mark.parametrize("variant", CORE, ids=lambda variant: variant.name)
def test_host_agrees(
    variant: Variant, gpu: DeviceInfo, library: Library, force: Callable[[str], None], tally: Tally
) -> None:
    pack = builtin()
    if not any(pack.image_of(arch, variant) for arch in image.order(pack.images, gpu.cc)):
        pytest.skip(f"no image of it serves {gpu.name}")
    force(variant.name)
    for case in cases(variant):
        told = f"{variant.name} {case.shape} {case.epilogue} {case.odd} seed {case.seed}"
        memory = on_gpu(case).cpu().numpy().view(case.placed["d"].flat.dtype)
        host = case.run(library, check=False)
        got = case.placed["d"].like(memory)
        ratio = difference(case, got, host)
        assert ratio <= 1, f"{told}: they differ by {ratio:.3g} times what rounding allows"
        assert case.placed["d"].stray(memory) == 0, f"{told}: the GPU wrote outside of the result"
        assert case.error() <= 1, f"{told}: the host device's result is wrong"
        tally.launches += 1
        if case.epilogue.out_dtype == "s32":
            tally.equal.add(variant.name)
        if ratio > tally.worst:
            tally.worst, tally.worst_at = ratio, told
    tally.variants += 1


def test_something_was_compared(tally: Tally) -> None:
    assert tally.variants > 0, "no core variant has an image for this GPU"
    assert tally.equal, "no int8 variant was compared"
