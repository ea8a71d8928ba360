from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import TERMINAL
from tests.cli.conftest import run as run
from tests.cli.conftest import spawn as spawn
from tests.runtime.world import world as world
from tilery import policy
from tilery.policy import Policy
from tilery.stats import reset
from tilery.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture(autouse=True)
def settings(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store of the test's own, plain text, and counters at nothing."""
    for name in TERMINAL:
        monkeypatch.delenv(name, raising=False)
    policy.use(Policy(store=store.root, jit="off"))
    reset()
    yield
    policy.use(None)
    reset()
