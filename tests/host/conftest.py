from __future__ import annotations

from pathlib import Path

import pytest

from generator.expand import expand
from generator.load import load
from generator.render import render
from generator.variant import Variant
from tests.host.harness import CHECK, Library, build

HERE = Path(__file__).parent

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
    ("gemm_mma", "tf32", "nt", 1),
    ("gemm_mma", "s8", "tn", 16),
    ("gemm_mma", "s8", "nt", 16),
    ("gemm_mma", "s8", "nn", 1),
]


def variants_of(family: str, dtype: str, layout: str, align: int) -> list[Variant]:
    wanted = (family, dtype, layout, align)
    return [v for v in expand(load(), None).variants if (v.family, v.dtype, v.layout, v.align) == wanted]


VARIANTS = {v.name: v for point in REPRESENTATIVE for v in (variants_of(*point)[0], variants_of(*point)[-1])}


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The representative variants, every access watched."""
    sources = {name: render(variant) for name, variant in VARIANTS.items()}
    return build(sources, tmp_path_factory.mktemp("kernels"), flags=CHECK)


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return build({"probe": (HERE / "probe.cu").read_text()}, tmp_path_factory.mktemp("probe"), flags=CHECK)
