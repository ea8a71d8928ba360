"""The store: discardable binaries on disk. It never makes a call fail: any fault in it is a counted miss.

One file per entry, at ``<kind>/<2 hex>/<2 hex>/<digest>``: a line of JSON with the whole key, size and checksum, then
the payload. Published by a rename, so that a reader sees a whole entry or none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .stats import count

log = logging.getLogger(__name__)

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Key:
    """What an entry depends on: named fields, in order."""

    kind: str
    fields: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """SHA-256 in hex over the fields, each with its length, so that no two keys run together.

        >>> Key("binary", (("a", "bc"),)).digest == Key("binary", (("ab", "c"),)).digest
        False
        """
        digest = hashlib.sha256()
        for text in (str(SCHEMA), self.kind, *(part for field in self.fields for part in field)):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()


def header(key: Key, payload: bytes) -> bytes:
    """The first line of an entry. It follows from key and payload alone, so a reader compares it as a whole."""
    row = {
        "schema": SCHEMA,
        "kind": key.kind,
        "key": key.fields,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def user_root() -> Path:
    """The store in the user's cache folder."""
    from platformdirs import user_cache_path

    return user_cache_path("tilery", appauthor=False)


def _unsafe(root: Path) -> str:
    """Why a folder must not be trusted, "" where it may."""
    state = root.stat()
    if state.st_uid != os.geteuid():
        return f"it belongs to user {state.st_uid}, not to {os.geteuid()}"
    if state.st_mode & 0o022:
        return f"others can write it (mode {stat.S_IMODE(state.st_mode):o}); chmod 700 makes it usable"
    return ""


def _make_private(folder: Path) -> None:
    """Like ``mkdir -p -m 700``: `Path.mkdir` gives only the last folder the mode."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


class Store:
    """Entries under ``root``, or in memory only where it is None or cannot be used.

    Attributes:
        root: the folder, or None.
        why_off: why the folder that was asked for is not used, or "".
    """

    def __init__(self, root: Path | None, deadline_s: float = 60.0) -> None:
        self.root = root
        self.why_off = ""
        self._deadline_s = deadline_s
        self._warned = False
        self._writable = True
        self._memory: dict[str, bytes] = {}
        self._flights: dict[str, threading.Lock] = {}
        if root is not None:
            self._open(root)

    def _open(self, root: Path) -> None:
        try:
            if not root.is_absolute():
                raise OSError("the path is not absolute; is HOME missing?")
            _make_private(root)
            self.why_off = _unsafe(root)
        except FileExistsError as error:
            self.why_off = f"{error.filename} is not a folder"
        except OSError as error:
            self.why_off = str(error)
        if self.why_off:
            self.root = None
            self._fault(f"the store {root} is not used: {self.why_off}")

    def _fault(self, text: str) -> None:
        count("store", "faults")
        if not self._warned:
            self._warned = True
            log.warning("%s. Kernels are kept in memory only where it fails; TILERY_STORE names another folder.", text)

    def _path(self, key: Key) -> Path | None:
        digest = key.digest
        return self.root and self.root / key.kind / digest[:2] / digest[2:4] / digest

    def get(self, key: Key) -> bytes | None:
        """The payload of an entry that is whole and has exactly this key, else None."""
        payload = self._memory.get(key.digest)
        if payload is None:
            payload = self._read(key)
        count("store", "misses" if payload is None else "hits")
        return payload

    def _read(self, key: Key) -> bytes | None:
        path = self._path(key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fault(f"the store cannot read {path}: {error}")
            return None
        head, newline, payload = data.partition(b"\n")
        if head + newline == header(key, payload):
            return payload
        self._quarantine(path)
        return None

    def _quarantine(self, path: Path) -> None:
        """Move a bad entry aside, where `tilery doctor` finds it; the newest of a digest is kept."""
        count("store", "quarantined")
        try:
            folder = path.parents[3] / "quarantine"
            folder.mkdir(mode=0o700, exist_ok=True)
            os.replace(path, folder / path.name)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            self._fault(f"the store cannot move the broken entry {path}: {error}")

    def put(self, key: Key, payload: bytes) -> None:
        """Publish an entry: a temporary file, flushed to disk, renamed. A fault ends the writing of this process."""
        path = self._path(key)
        if path is None or not self._writable:
            self._memory[key.digest] = payload
            return
        try:
            self._publish(path, header(key, payload) + payload)
            count("store", "writes")
        except OSError as error:
            self._writable = False
            self._memory[key.digest] = payload
            self._fault(f"the store cannot write {path}: {error}")

    def _publish(self, path: Path, data: bytes) -> None:
        _make_private(path.parent)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def make(self, key: Key, maker: Callable[[], bytes]) -> bytes:
        """Make and publish an entry that `get` did not find. One maker at a time, across threads and processes.

        Waits for another maker until the deadline, then makes a private copy. What ``maker`` raises goes to the caller.
        """
        with self._flights.setdefault(key.digest, threading.Lock()), self._lock(key) as shared:
            # Whoever held the lock before may have published it meanwhile.
            payload = self._memory.get(key.digest)
            if payload is None and shared:
                payload = self._read(key)
            if payload is None:
                payload = maker()
                self.put(key, payload)
        return payload

    @contextmanager
    def _lock(self, key: Key) -> Iterator[bool]:
        """Hold the lock of a key's compile between processes; yields whether the entry may have come meanwhile.

        The kernel frees it when its holder dies. 4096 lock files at most: some keys share one.
        """
        if self.root is None or not self._writable:
            yield False
            return
        from filelock import FileLock, Timeout

        lock = FileLock(self.root / "locks" / f"{key.digest[:3]}.lock", timeout=self._deadline_s, mode=0o600)
        held = False
        try:
            _make_private(self.root / "locks")
            lock.acquire()
            held = True
        except Timeout:
            count("store", "deadlines")
        except (OSError, NotImplementedError) as error:
            self._fault(f"the store cannot lock {lock.lock_file}: {error}")
        try:
            yield True
        finally:
            if held:
                lock.release()

    def keep_failure(self, name: str, files: dict[str, str]) -> Path | None:
        """Keep the files of a failed compile under ``failed/<name>/`` for people; None where that is not possible."""
        if self.root is None:
            return None
        folder = self.root / "failed" / name
        try:
            _make_private(folder)
            for file, text in files.items():
                _make_private((folder / file).parent)
                (folder / file).write_text(text, encoding="utf-8")
        except OSError as error:
            self._fault(f"the store cannot keep {folder}: {error}")
            return None
        return folder


_stores: dict[tuple[Path | None, float], Store] = {}
_lock = threading.Lock()


def open_store(where: str | Path | None, deadline_s: float = 60.0) -> Store:
    """The store that a Policy asks for; the same object for the same folder."""
    root = user_root() if where == "user" else None if where is None else Path(where)
    with _lock:
        if (root, deadline_s) not in _stores:
            _stores[root, deadline_s] = Store(root, deadline_s)
        return _stores[root, deadline_s]
