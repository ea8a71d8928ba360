"""Publishing an entry, so that a reader sees the whole of it or nothing, whenever the writer is killed."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from .level import make_private

# Somebody cleaned the folder under us, or a network file system lost its handle.
_PASSING = (errno.ENOENT, errno.ESTALE, errno.EBUSY)
_ATTEMPTS = 5


def publish(path: Path, data: bytes) -> None:
    """Write a temporary file beside ``path``, flush it to disk, rename it, flush the folder.

    Raises:
        OSError: it could not be written. Nothing is left behind.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _publish(path, data)
        except OSError as error:
            if error.errno not in _PASSING or attempt == _ATTEMPTS - 1:
                raise


def _publish(path: Path, data: bytes) -> None:
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        _write(temporary, data)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that flush no folders
            raise
    finally:
        os.close(fd)
