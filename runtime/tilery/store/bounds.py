"""Bounds of the user's level: bytes and entries, least recently used first. Works after a publish, off the hot path."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from .level import Entry, Level

# A clock of another host or an unfinished write may be off by this much.
SLACK_S = 3600.0
# With this share of the room used up by our own publishes, others may have used up the rest: look again.
_SHARE = 64


class Limits(NamedTuple):
    """What a level may hold. What exceeds it is brought to nine tenths, so that not every publish has to clean."""

    bytes: int
    entries: int

    @property
    def low(self) -> Limits:
        """What cleaning leaves."""
        return Limits(self.bytes * 9 // 10, self.entries * 9 // 10)


class Trimmed(NamedTuple):
    """What a cleaning did, or would do."""

    evicted: list[Entry]
    leftovers: int
    kept_bytes: int
    kept_entries: int


def excess(entries: Iterable[Entry], limits: Limits, now: float) -> list[Entry]:
    """What must go so that the limits hold, least recently used first.

    A stamp in the future says nothing, so it goes before all others.

    >>> from pathlib import Path
    >>> old, new = (Entry("binary", name, Path(), 1, used) for name, used in (("old", 1), ("new", 2)))
    >>> [entry.digest for entry in excess([new, old], Limits(100, 1), now=3)]
    ['old', 'new']
    >>> [entry.digest for entry in excess([new, old], Limits(100, 2), now=3)]
    []
    """
    order = sorted(entries, key=lambda entry: (entry.used <= now + SLACK_S, entry.used, entry.digest))
    size, count, doomed = sum(entry.bytes for entry in order), len(order), 0
    if size <= limits.bytes and count <= limits.entries:
        return []
    low = limits.low
    while doomed < len(order) and (size > low.bytes or count > low.entries):
        size -= order[doomed].bytes
        count -= 1
        doomed += 1
    return order[:doomed]


def trim(level: Level, limits: Limits, dry_run: bool = False) -> Trimmed:
    """Evict what exceeds the limits, and delete temporary files that were left an hour ago or longer.

    Other processes may read, write and clean meanwhile: what has gone already is as good as deleted.
    """
    now = time.time()
    entries = list(level.entries())
    doomed = excess(entries, limits, now)
    # A killed writer's; one from the future is no younger: the clock was set back.
    stale = [path for path, written in level.leftovers() if abs(now - written) > SLACK_S]
    if not dry_run:
        for path in (*stale, *(entry.path for entry in doomed)):
            with suppress(OSError):
                os.unlink(path)
    size = sum(entry.bytes for entry in entries) - sum(entry.bytes for entry in doomed)
    return Trimmed(doomed, len(stale), size, len(entries) - len(doomed))


class Gauge:
    """Tells when a level may be over its limits, without a look at the disk at every publish."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._room = Limits(0, 0)
        self._added = Limits(0, 0)

    def add(self, size: int) -> bool:
        """Count an entry of this process; True when it is time to trim."""
        self._added = Limits(self._added.bytes + size, self._added.entries + 1)
        room = self._room
        return self._added.bytes * _SHARE > room.bytes or self._added.entries * _SHARE > room.entries

    def set(self, trimmed: Trimmed) -> None:
        """Start anew from what a trim found."""
        self._added = Limits(0, 0)
        self._room = Limits(self._limits.bytes - trimmed.kept_bytes, self._limits.entries - trimmed.kept_entries)
