"""Every core variant, as the wheel has it, against the float64 reference: edges, odd strides, epilogues."""

from __future__ import annotations

import pytest

from generator.variant import Variant
from tests.host.cases import check, edges, epilogues, odd_edges
from tests.host.harness import CORE, SANITIZED, core_library
from tilery.host import Library

pytestmark = pytest.mark.skipif(SANITIZED, reason="the watched ones run under sanitizers")


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return core_library(tmp_path_factory.mktemp("core"))


@pytest.mark.parametrize("variant", CORE.values(), ids=list(CORE))
def test_variant(core: Library, variant: Variant) -> None:
    for case in (*edges(variant), *odd_edges(variant), *epilogues(variant)):
        check(case, core, watched=False)
