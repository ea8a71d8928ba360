from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tilery.stats import reset
from tilery.store import Store


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "a folder" / "tilery")
