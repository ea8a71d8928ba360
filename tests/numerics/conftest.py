from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from generator.render import render
from tests.host.harness import CORE, build
from tests.numerics.packs import of_library
from tilery import pack as packs
from tilery import policy
from tilery.generator.variant import Variant
from tilery.host import plan as plans
from tilery.pack import Pack
from tilery.policy import Policy

# By dtype that is computed in: large and small tiles, both alignments, both layouts of A, and the fallback.
CONFIGS = {
    "f32": [
        "gemm_naive_f32_any_16x16x1",
        "gemm_simt_f32_nn_64x128x16_t8x8_b3_a16",
        "gemm_simt_f32_nn_64x128x16_t8x8_b3",
        "gemm_simt_f32_nn_32x64x32_t4x4_b4_a16",
        "gemm_simt_f32_tn_64x64x16_t8x8_b6",
    ],
    "tf32": [
        "gemm_mma_tf32_nn_128x128x16_w2x2_s4_a16",
        "gemm_mma_tf32_nn_32x128x32_w1x4_s4_a16",
        "gemm_mma_tf32_nn_64x64x32_w2x2_s3",
        "gemm_mma_tf32_tn_64x64x32_w2x2_s3",
    ],
    "f16": [
        "gemm_naive_f16_any_16x16x1",
        "gemm_mma_f16_nn_128x128x64_w2x2_s3_a16",
        "gemm_mma_f16_nn_16x64x128_w1x4_s5_a16",
        "gemm_mma_f16_nn_64x64x64_w2x2_s2",
        "gemm_mma_f16_tn_64x64x64_w2x2_s2",
    ],
    "bf16": [
        "gemm_naive_bf16_any_16x16x1",
        "gemm_mma_bf16_nn_128x128x64_w2x2_s3_a16",
        "gemm_mma_bf16_nn_16x64x128_w1x4_s5_a16",
        "gemm_mma_bf16_nn_64x64x64_w2x2_s2",
        "gemm_mma_bf16_tn_64x64x64_w2x2_s2",
    ],
    "s8": [
        "gemm_naive_s8_any_16x16x1",
        "gemm_mma_s8_nn_128x128x64_w2x2_s4_a16",
        "gemm_mma_s8_nn_32x128x128_w1x4_s3_a16",
        "gemm_mma_s8_nn_64x64x64_w2x2_s2",
    ],
}


def computing(dtype: str) -> list[Variant]:
    """The variants that are there for a dtype."""
    return [CORE[name] for name in CONFIGS[dtype]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host library of these variants."""
    folder = tmp_path_factory.mktemp("numerics") / "host"
    names = [name for group in CONFIGS.values() for name in group]
    build({name: render(CORE[name]) for name in names}, folder, check=False)
    return folder / "kernels.so"


@pytest.fixture
def host(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pack]:
    """NumPy arrays run these variants and no others."""
    pack = of_library(library, [name for group in CONFIGS.values() for name in group])
    monkeypatch.setattr(packs, "builtin", lambda: pack)
    monkeypatch.setattr(plans, "builtin", lambda: pack)
    monkeypatch.setattr(plans, "_memory", plans.Memory())
    with policy.scope(Policy(jit="off", store=None)):
        yield pack
