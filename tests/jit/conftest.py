from __future__ import annotations

from tests.runtime.world import world as world
