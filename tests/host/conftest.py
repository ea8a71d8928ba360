from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.render import render
from generator.variant import Variant
from tests.host.harness import CORE, SANITIZED, build
from tilery.host import Library

HERE = Path(__file__).parent
# No test takes a tenth of it: a kernel that never ends ends the whole run, with the stacks of all threads.
HANG_S = 300

# family, dtype, layout, align: their first and last Config, so that large and small tiles and fragments occur
REPRESENTATIVE = [
    *(("gemm_naive", dtype, "any", 1) for dtype in ("f32", "f16", "bf16", "s8")),
    ("gemm_simt", "f32", "nt", 16),
    ("gemm_simt", "f32", "nn", 1),
    ("gemm_simt", "bf16", "tn", 1),
    ("gemm_simt", "f16", "nn", 16),
    ("gemm_mma", "bf16", "nt", 16),
    ("gemm_mma", "bf16", "nt", 1),
    ("gemm_mma", "bf16", "nn", 16),
    ("gemm_mma", "f16", "tn", 16),
    ("gemm_mma", "f16", "tn", 1),
    ("gemm_mma", "tf32", "tn", 16),
    ("gemm_mma", "tf32", "nt", 16),
    ("gemm_mma", "tf32", "nn", 1),
    ("gemm_mma", "s8", "tn", 16),
    ("gemm_mma", "s8", "nt", 16),
    ("gemm_mma", "s8", "nn", 1),
]


def variants_of(family: str, dtype: str, layout: str, align: int) -> list[Variant]:
    wanted = (family, dtype, layout, align)
    found = [v for v in CORE.values() if (v.family, v.dtype, v.layout, v.align) == wanted]
    assert found, f"no core variant is {wanted}: choose another"
    return found


def watched() -> dict[str, Variant]:
    """The variants that run with every access watched; under sanitizers the one of the smallest tile of each kind."""
    kinds = [variants_of(*point) for point in REPRESENTATIVE]
    if SANITIZED:
        smallest = [min(kind, key=lambda v: (v["tile"][0] * v["tile"][1], v.name)) for kind in kinds]
        return {variant.name: variant for variant in smallest}
    return {variant.name: variant for kind in kinds for variant in (kind[0], kind[-1])}


WATCHED = watched()


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The watched variants."""
    sources = {name: render(variant) for name, variant in WATCHED.items()}
    return build(sources, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return build({"probe": (HERE / "probe.cu").read_text()}, tmp_path_factory.mktemp("probe"))
