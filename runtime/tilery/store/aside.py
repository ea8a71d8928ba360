"""What a level keeps beside its entries, for people to look at: broken entries and failed compiles."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from .level import Level, make_private, scan

QUARANTINE, FAILED = "quarantine", "failed"
KEPT = 16  # of each; the oldest goes first


def quarantine(level: Level, path: Path) -> None:
    """Move a broken entry aside; of a digest, the newest is kept.

    Raises:
        OSError: it cannot be moved.
    """
    folder = level.base / QUARANTINE
    make_private(folder)
    with suppress(FileNotFoundError):  # another process was faster
        os.replace(path, folder / path.name)
    _prune(folder)


def keep_failure(level: Level, name: str, files: dict[str, str]) -> Path:
    """Keep the files of a failed compile; returns their folder.

    Raises:
        OSError: they cannot be written.
    """
    folder = level.base / FAILED / name
    make_private(folder)
    for file, text in files.items():
        make_private((folder / file).parent)
        (folder / file).write_text(text, encoding="utf-8")
    _prune(folder.parent)
    return folder


def remove(path: Path) -> None:
    """Delete a file, or a folder with what is in it; links are not followed."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _prune(folder: Path) -> None:
    aged = []
    for item in scan(folder):
        with suppress(OSError):
            aged.append((item.stat(follow_symlinks=False).st_mtime_ns, item.path))
    for _, path in sorted(aged)[:-KEPT]:
        remove(Path(path))
