from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.world import World
from tests.runtime.world import world as world
from tilery import policy, trace
from tilery.policy import Policy


@pytest.fixture
def file(tmp_path: Path, world: World) -> Iterator[Path]:
    """A trace to which the made-up world's Plans are written."""
    path = tmp_path / "a trace.jsonl"
    policy.use(Policy(trace=path))
    yield path
    trace._traces.clear()
