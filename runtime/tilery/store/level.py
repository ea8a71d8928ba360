"""Level: one folder of entries, the user's or a seed. Reading it, and deciding whether it may be trusted.

An entry is ``v<schema>/<kind>/<2 hex>/<digest>`` below the root, so that versions of tilery whose entries differ can
share a root. Beside the kinds lie ``quarantine``, ``failed`` and ``locks``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .entry import MAX_BYTES, BadEntry
from .key import KINDS, SCHEMA, Key

# O_NONBLOCK: a FIFO in an entry's place must not stop the process.
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{64}\.\d+\.[0-9a-f]+\.tmp")


class Entry(NamedTuple):
    """A file in an entry's place; nothing has been verified.

    Attributes:
        kind, digest: of its key.
        shard: the folder that it lies in.
        bytes: its size.
        used: when it was last used, in seconds since the epoch, give or take an hour.
    """

    kind: str
    digest: str
    shard: Path
    bytes: int
    used: float

    @property
    def path(self) -> Path:
        """The file."""
        return self.shard / self.digest


def make_private(folder: Path) -> None:
    """Like ``mkdir -p -m 700``: `Path.mkdir` gives only the last folder the mode."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def scan(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where it is a link, cannot be read or has just gone."""
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return []


class Level:
    """A folder of entries.

    Attributes:
        root: the folder that people name.
        base: where this version of tilery keeps its entries.
    """

    def __init__(self, root: Path, owners: frozenset[int]) -> None:
        self.root = root
        self.base = root / f"v{SCHEMA}"
        self._owners = owners

    @classmethod
    def seed(cls, root: Path) -> Level:
        """A level that others may have filled: it may also belong to root. It is never written.

        Raises:
            OSError: it must not be used; the text says why.
        """
        if not root.is_absolute():
            raise OSError("the path is not absolute")
        level = cls(root, frozenset({os.geteuid(), 0}))
        level._trust(root)
        if os.path.lexists(level.base):
            level._trust(level.base)
        return level

    @classmethod
    def own(cls, root: Path) -> Level:
        """The user's own level; made where it is not there.

        Raises:
            OSError: it cannot be made or must not be used; the text says why.
        """
        if not root.is_absolute():
            raise OSError("the path is not absolute; is HOME missing?")
        level = cls(root, frozenset({os.geteuid()}))
        try:
            make_private(root)
            level._trust(root)
            make_private(level.base)
            level._trust(level.base)
        except FileExistsError as error:
            raise OSError(f"{error.filename} is not a folder") from None
        return level

    def _trust(self, folder: Path) -> None:
        state = folder.lstat()
        if stat.S_ISLNK(state.st_mode):
            raise OSError(f"{folder} is a symbolic link to {os.readlink(folder)}; name the folder itself")
        if not stat.S_ISDIR(state.st_mode):
            raise OSError(f"{folder} is not a folder")
        if why := self._suspect(state):
            raise OSError(f"{folder}: {why}")

    def _suspect(self, state: os.stat_result) -> str:
        """Why something must not be trusted, "" where it may."""
        if state.st_uid not in self._owners:
            return f"it belongs to user {state.st_uid}, not to {' or '.join(map(str, sorted(self._owners)))}"
        if state.st_mode & 0o022:
            return f"others can write it (mode {stat.S_IMODE(state.st_mode):o}); `chmod go-w` makes it usable"
        return ""

    def path(self, kind: str, digest: str) -> Path:
        """Where an entry is or would be."""
        return self.base / kind / digest[:2] / digest

    def path_of(self, key: Key) -> Path:
        """Where the entry of a key is or would be."""
        return self.path(key.kind, key.digest)

    def read(self, path: Path, most: int = MAX_BYTES) -> tuple[bytes, float]:
        """The bytes of an entry's file, ``most`` of them, and when it was last used.

        Raises:
            BadEntry: what is there is no file, or not one to be trusted.
            OSError: it is not there or cannot be read.
        """
        try:
            file = open(os.open(path, _OPEN), "rb", buffering=0)  # noqa: SIM115  # closed below
        except IsADirectoryError:
            raise BadEntry("it is a folder") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadEntry("it is a symbolic link") from None
            raise
        with file:
            state = os.fstat(file.fileno())
            why = self._suspect(state) if stat.S_ISREG(state.st_mode) else "it is not a file"
            if why or state.st_size > MAX_BYTES:
                raise BadEntry(why or f"it has {state.st_size} bytes")
            return (file.readall() if most >= state.st_size else file.read(most)) or b"", state.st_mtime

    def entries(self) -> Iterator[Entry]:
        """All that lies in an entry's place, in no order."""
        for kind, shard in self.shards():
            for item in scan(shard):
                if _DIGEST.fullmatch(item.name):
                    with suppress(OSError):  # it has just gone
                        state = item.stat(follow_symlinks=False)
                        yield Entry(kind, item.name, shard, state.st_size, state.st_mtime)

    def leftovers(self) -> Iterator[tuple[Path, float]]:
        """Temporary files, of writers that work now or were killed, with the time of the last write."""
        for _, shard in self.shards():
            for item in scan(shard):
                if _TEMPORARY.fullmatch(item.name):
                    with suppress(OSError):
                        yield Path(item.path), item.stat(follow_symlinks=False).st_mtime

    def shards(self) -> Iterator[tuple[str, Path]]:
        """Each folder that holds entries, with their kind. Links are not followed."""
        for kind in KINDS:
            for item in scan(self.base / kind):
                if item.is_dir(follow_symlinks=False):
                    yield kind, Path(item.path)
