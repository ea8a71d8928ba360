"""Memo: the Plans of a process by key, of which only so many are kept: a program may meet new shapes for ever."""

from __future__ import annotations

import threading
from typing import TypeVar

from . import trace
from .stats import Counted, retire

MOST = 16384
"""Plans that are kept: some 5 KB each."""

Key = TypeVar("Key")
Plan = TypeVar("Plan", bound=Counted)


class Memo(dict[Key, Plan | None]):
    """A dict that is read as one, and written by `keep` alone. A Plan that is given up is made again when it is asked
    for; its kernel stays loaded, also for graphs that captured it, and its calls stay counted."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def keep(self, key: Key, plan: Plan | None) -> None:
        """Add a Plan, or None where the reference serves, or let it take another's place; the oldest ones beyond the
        limit are given up."""
        with self._lock:
            gone = [self[key]] if key in self else []
            self[key] = plan
            while len(self) > MOST:
                gone.append(self.pop(next(iter(self))))
        for former in gone:
            if former is not None:
                retire(former)
                trace.retire(former)
