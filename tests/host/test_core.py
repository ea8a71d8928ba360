"""Every core variant, as the wheel has it, against the float64 reference: edges, odd strides, epilogues."""

from __future__ import annotations

import time

import pytest

from generator.variant import Variant
from tests.host.cases import check, edges, epilogues, odd_edges, out_dtype
from tests.host.conftest import variants_of
from tests.host.harness import CORE, SANITIZED, core_library
from tilery.host import Library
from tilery.trial import Case, Epilogue, Shape

pytestmark = pytest.mark.skipif(SANITIZED, reason="the watched ones run under sanitizers")


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return core_library(tmp_path_factory.mktemp("core"))


@pytest.mark.parametrize("variant", CORE.values(), ids=list(CORE))
def test_variant(core: Library, variant: Variant) -> None:
    for case in (*edges(variant), *odd_edges(variant), *epilogues(variant)):
        check(case, core, watched=False)


def test_speed(core: Library) -> None:
    """A mistake of a factor: bf16 on the tensor-core path takes 40 ms on one idle core."""
    for variant in variants_of("gemm_mma", "bf16", "nt", 16):
        case = Case(variant, Shape(256, 256, 256), Epilogue(out_dtype(variant)))
        start = time.perf_counter()
        case.run(core, workers=1)
        assert time.perf_counter() - start < 1, variant.name
        assert case.error() <= 1
