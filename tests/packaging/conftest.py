from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.checkout import Checkout, StubbedCheckout, environment, write_program


@pytest.fixture
def stubbed(tmp_path: Path) -> StubbedCheckout:
    return StubbedCheckout(tmp_path / "checkout", environment("CUDA_HOME"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("real"), environment())


@pytest.fixture
def program() -> Callable[[Path, str], None]:
    return write_program
