"""Store: what the rest of tilery uses. Seeds first, then the user's level, then whoever makes the entry."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..stats import count
from . import aside
from .bounds import SLACK_S, Gauge, Limits, Trimmed, trim
from .entry import MAX_BYTES, BadEntry, header, payload_of
from .key import Key
from .level import Entry, Level, make_private
from .lock import FileLock, Flights
from .memory import Memory
from .publish import publish

if TYPE_CHECKING:
    from ..policy import Policy

log = logging.getLogger(__name__)

MAX_MIB = 2048
MAX_ENTRIES = 10_000
# A file system that says one of these will say it again.
_LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOTDIR)


class Store:
    """Entries below ``root``, or in memory only where it is None or cannot be used.

    Args:
        root: the user's folder, or None.
        deadline_s: how long to wait for another thread or process that makes the same entry.
        max_mib, max_entries: bounds of the folder, and of what is kept in memory.
        seeds: folders of entries that are read and never written, looked into before ``root``.

    Attributes:
        root: the folder, or None.
        why_off: why the folder that was asked for is not used, or "".
        user: its level, or None.
        seeds: the levels of the seeds that are used.
        refused: the seeds that are not used, with the reason.
    """

    def __init__(
        self,
        root: Path | None,
        deadline_s: float = 60.0,
        *,
        max_mib: float = MAX_MIB,
        max_entries: int = MAX_ENTRIES,
        seeds: Sequence[Path] = (),
    ) -> None:
        self.why_off = ""
        self.user: Level | None = None
        self.refused: dict[Path, str] = {}
        self.limits = Limits(int(max_mib * 2**20), max_entries)
        self._deadline_s = deadline_s
        self._warned = False
        self._writable = True
        self._memory = Memory(self.limits)
        self._gauge = Gauge(self.limits)
        self._flights = Flights()
        self.seeds = tuple(level for seed in seeds if (level := self._open_seed(seed)))
        if root is not None:
            self._open(root)

    @property
    def root(self) -> Path | None:
        """The folder, or None."""
        return self.user.root if self.user else None

    def _open(self, root: Path) -> None:
        try:
            self.user = Level.own(root)
        except OSError as error:
            self.why_off = str(error)
            self._fault(f"the store {root} is not used: {error}")

    def _open_seed(self, root: Path) -> Level | None:
        try:
            return Level.seed(root)
        except OSError as error:
            self.refused[root] = str(error)
            count("store", "faults")
            log.warning("the seed store %s is not used: %s", root, error)
            return None

    def _fault(self, text: str) -> None:
        count("store", "faults")
        if not self._warned:
            self._warned = True
            log.warning("%s. Kernels are kept in memory only where it fails; TILERY_STORE names another folder.", text)

    def get(self, key: Key) -> bytes | None:
        """The payload of an entry that is whole and has exactly this key, else None."""
        payload, where = self._find(key, key.digest)
        if payload is None:
            count("store", "misses")
        else:
            count("store", "hits")
            count("store", f"{where}_hits")
        return payload

    def look(self, key: Key) -> bytes | None:
        """As `get` for what is no compiled code: uncounted, and what is this machine's own before what a seed has."""
        digest = key.digest
        if (kept := self._memory.get(digest)) is not None:
            return kept
        levels = (self.user, *self.seeds) if self.user else self.seeds
        return next((payload for level in levels if (payload := self._read(level, key, digest)) is not None), None)

    def _find(self, key: Key, digest: str) -> tuple[bytes | None, str]:
        """The payload and the level that has it."""
        payload = self._memory.get(digest)
        if payload is not None:
            return payload, "memory"
        for level in self.seeds:
            if (payload := self._read(level, key, digest)) is not None:
                return payload, "seed"
        return (self._read(self.user, key, digest) if self.user else None), "user"

    def _read(self, level: Level, key: Key, digest: str) -> bytes | None:
        path = level.path(key.kind, digest)
        try:
            data, used = level.read(path)
            payload = payload_of(data, key)
        except FileNotFoundError:
            return None
        except BadEntry as error:
            self._reject(level, path, error)
            return None
        except OSError as error:
            self._fault(f"the store cannot read {path}: {error}")
            return None
        if level is self.user and abs(time.time() - used) > SLACK_S:
            with suppress(OSError):  # it may have gone, or be on a read-only file system
                os.utime(path)
        return payload

    def _reject(self, level: Level, path: Path, error: BadEntry) -> None:
        if level is not self.user:
            count("store", "bad_in_seed")
            log.warning("the seed store %s has a broken entry, which is not used: %s: %s", level.root, path.name, error)
            return
        count("store", "quarantined")
        try:
            aside.quarantine(level, path)
        except OSError as fault:
            self._fault(f"the store cannot move the broken entry {path}: {fault}")

    def put(self, key: Key, payload: bytes) -> None:
        """Publish an entry, in memory where the folder cannot take it. A lasting fault ends this process's writing."""
        self._put(key, key.digest, payload)
        self._trim(len(payload))

    def _put(self, key: Key, digest: str, payload: bytes) -> None:
        data = header(key, payload) + payload
        if self.user is None or not self._writable or len(data) > min(MAX_BYTES, self.limits.low.bytes):
            self._memory.put(digest, payload)
            return
        path = self.user.path(key.kind, digest)
        try:
            publish(path, data)
            self._memory.drop(digest)  # what is there is of a write that failed, and older
            count("store", "writes")
        except OSError as error:
            self._writable = self._writable and error.errno not in _LASTING
            self._memory.put(digest, payload)
            self._fault(f"the store cannot write {path}: {error}")

    def _trim(self, size: int) -> None:
        if self.user and self._writable and self._gauge.add(size):
            trimmed = trim(self.user, self.limits)
            self._gauge.set(trimmed)
            if trimmed.evicted:
                count("store", "evicted", len(trimmed.evicted))

    def make(self, key: Key, maker: Callable[[], bytes]) -> bytes:
        """Make and publish an entry that `get` did not find. One maker at a time, across threads and processes.

        Waits for another maker until the deadline, then makes a private copy. What ``maker`` raises goes to the caller.
        ``maker`` must not make another entry: its lock may be the same file.
        """
        with self._alone(key, Path.exists) as digest:
            # Whoever held the lock before may have published it meanwhile.
            payload, _ = self._find(key, digest)
            if payload is not None:
                return payload
            payload = maker()
            self._put(key, digest, payload)
        self._trim(len(payload))
        return payload

    def change(self, key: Key, new: Callable[[bytes | None], bytes]) -> None:
        """Replace an entry by what ``new`` makes of what `look` finds; no other change comes in between.

        After the deadline it is replaced all the same. ``new`` must not touch another entry, as with `make`.
        """
        with self._alone(key) as digest:
            payload = new(self.look(key))
            self._put(key, digest, payload)
        self._trim(len(payload))

    @contextmanager
    def _alone(self, key: Key, enough: Callable[[Path], bool] = lambda path: False) -> Iterator[str]:
        """Hold a key, between threads and processes, and yield its digest; without it after the deadline, and where
        ``enough`` says of the entry's file that there is no need to wait."""
        digest, until = key.digest, time.monotonic() + self._deadline_s
        with self._flights.hold(digest, until) as first, self._lock(key, digest, until if first else 0.0, enough):
            yield digest

    @contextmanager
    def _lock(self, key: Key, digest: str, until: float, enough: Callable[[Path], bool]) -> Iterator[None]:
        """Hold the lock of a key between processes, if that is possible before the deadline.

        4096 lock files at most: some keys share one.
        """
        if self.user is None or not self._writable:
            yield
            return
        path = self.user.path(key.kind, digest)
        lock = FileLock(self.user.base / "locks" / f"{digest[:3]}.lock")
        try:
            make_private(self.user.base / "locks")
            if not lock.acquire(until, lambda: enough(path)) and time.monotonic() >= until:
                count("store", "deadlines")
        except OSError as error:
            self._fault(f"the store cannot lock {path}: {error}")
        try:
            yield
        finally:
            lock.release()

    def path(self, key: Key) -> Path | None:
        """The file of an entry, in the first level that has one; None where none has."""
        levels = (*self.seeds, self.user) if self.user else self.seeds
        return next((path for level in levels if (path := level.path_of(key)).exists()), None)

    def entries(self) -> Iterator[Entry]:
        """The entries of the user's level, unverified and in no order."""
        return self.user.entries() if self.user else iter(())

    def trim(self, limits: Limits | None = None, dry_run: bool = False) -> Trimmed:
        """Bring the user's level within limits, by default the store's own."""
        if self.user is None:
            return Trimmed([], 0, 0, 0)
        return trim(self.user, limits or self.limits, dry_run)

    def keep_failure(self, name: str, files: dict[str, str]) -> Path | None:
        """Keep the files of a failed compile under ``failed/<name>/`` for people; None where that is not possible."""
        if self.user is None:
            return None
        try:
            return aside.keep_failure(self.user, name, files)
        except OSError as error:
            self._fault(f"the store cannot keep what failed, {name}: {error}")
            return None


def user_root() -> Path:
    """The store in the user's cache folder; a path that no Store takes where the user has no home."""
    from platformdirs import user_cache_path

    try:
        return user_cache_path("tilery", appauthor=False)
    except RuntimeError:
        return Path("~/.cache/tilery")


_Arguments = tuple[Path | None, float, float, int, tuple[Path, ...]]
_stores: dict[_Arguments, Store] = {}
_opening = threading.Lock()


def open_store(
    where: str | Path | None,
    deadline_s: float = 60.0,
    max_mib: float = MAX_MIB,
    max_entries: int = MAX_ENTRIES,
    seeds: Sequence[str | Path] = (),
) -> Store:
    """The store in a folder; the same object for the same arguments, see `Store`.

    Args:
        where: the folder, ``"user"`` for the user's cache folder, or None for memory only.
        deadline_s, max_mib, max_entries, seeds: as `Store` takes them.
    """
    root = user_root() if where == "user" else None if where is None else Path(where)
    key = (root, deadline_s, max_mib, max_entries, tuple(map(Path, seeds)))
    store = _stores.get(key)
    if store is None:
        with _opening:
            store = _stores.get(key)
            if store is None:
                store = _stores[key] = Store(root, deadline_s, max_mib=max_mib, max_entries=max_entries, seeds=key[4])
    return store


def store_for(settings: Policy) -> Store:
    """The store that a Policy asks for."""
    return open_store(
        settings.store,
        settings.compile_deadline_s,
        settings.store_max_mib,
        settings.store_max_entries,
        settings.seeds,
    )


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
