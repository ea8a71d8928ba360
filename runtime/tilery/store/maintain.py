"""Looking after a level: how much is in it, whether it is whole, and emptying it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import aside
from .entry import BadEntry, parse
from .key import KINDS
from .level import Entry, Level, scan
from .lock import FileLock


class Usage(NamedTuple):
    """What is in a level; bytes and entries by kind."""

    entries: dict[str, int]
    bytes: dict[str, int]
    leftovers: int
    quarantined: int
    failed: int
    others: list[str]


class Broken(NamedTuple):
    """An entry that is not what it must be."""

    entry: Entry
    reason: str


class Cleared(NamedTuple):
    """What emptying a level deleted, or would delete, and the files that it leaves: not tilery's, or protected."""

    entries: int
    bytes: int
    others: int
    left: list[Path]


def usage(level: Level) -> Usage:
    """Count what is in a level. ``others`` names the folders of other versions of tilery."""
    entries, sizes = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for entry in level.entries():
        entries[entry.kind] += 1
        sizes[entry.kind] += entry.bytes
    names = sorted(item.name for item in scan(level.root))
    others = [name for name in names if name[:1] == "v" and name[1:].isdecimal() and name != level.base.name]
    quarantined, failed = (len(scan(level.base / name)) for name in (aside.QUARANTINE, aside.FAILED))
    return Usage(entries, sizes, sum(1 for _ in level.leftovers()), quarantined, failed, others)


def fault(level: Level, entry: Entry) -> str:
    """What is wrong with an entry, or ""."""
    try:
        key, _ = parse(level.read(entry.path)[0])
    except FileNotFoundError:
        return ""  # it has just gone
    except (BadEntry, OSError) as error:
        return str(error)
    named = (entry.kind, entry.digest)
    return "" if (key.kind, key.digest) == named else "it is the entry of another key"


def verify(level: Level, entries: Iterable[Entry], dry_run: bool = False) -> list[Broken]:
    """Read entries through and move the broken ones to quarantine; returns those."""
    broken = [Broken(entry, why) for entry in entries if (why := fault(level, entry))]
    for entry, _ in () if dry_run else broken:
        with suppress(OSError):
            aside.quarantine(level, entry.path)
    return broken


def clear(level: Level, dry_run: bool = False) -> Cleared:
    """Delete what this version of tilery keeps in a level, and nothing else: unknown files stay."""
    entries = list(level.entries())
    temporary = [path for path, _ in level.leftovers()]
    kept = [Path(item.path) for name in (aside.QUARANTINE, aside.FAILED) for item in scan(level.base / name)]
    if not dry_run:
        for path in (*temporary, *(entry.path for entry in entries)):
            with suppress(OSError):
                os.unlink(path)
        for path in kept:
            aside.remove(path)
        _delete_locks(level)
        for _, shard in list(level.shards()):
            with suppress(OSError):  # something is in it
                shard.rmdir()
    known = {*temporary, *(entry.path for entry in entries)} if dry_run else set()
    left = [Path(item.path) for _, shard in level.shards() for item in scan(shard) if Path(item.path) not in known]
    size = sum(entry.bytes for entry in entries)
    return Cleared(len(entries), size, len(temporary) + len(kept), sorted(left))


def _delete_locks(level: Level) -> None:
    """Delete the lock files that nobody holds."""
    for item in scan(level.base / "locks"):
        if item.name.endswith(".lock"):
            lock = FileLock(Path(item.path))
            with suppress(OSError):
                if lock.acquire(0.0):
                    lock.delete()
            lock.release()
