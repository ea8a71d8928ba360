"""A warm store as one file: a plain tar of entries with a manifest of their digests, which any store can take in."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from ..errors import InvalidInput
from .bounds import Limits
from .entry import MAX_BYTES, BadEntry, parse
from .key import KINDS, SCHEMA
from .level import Entry, Level
from .maintain import fault
from .publish import publish

T = TypeVar("T")

FORMAT = 1
_MANIFEST = "manifest.json"
_MAX_MANIFEST = 64 << 20
_NAME = re.compile(rf"({'|'.join(KINDS)})/([0-9a-f]{{64}})")
_UNREADABLE = (tarfile.TarError, EOFError, ValueError, OverflowError)
_AGAIN = "Export the store again, or copy the file again."


class Exported(NamedTuple):
    """What an export wrote, and the broken entries that it left out."""

    entries: int
    bytes: int
    skipped: list[str]


@dataclass
class Imported:
    """What an import did: names of the entries that are new, already there, and bad with the reason."""

    added: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)


def name_of(entry: Entry) -> str:
    """An entry's name in an archive."""
    return f"{entry.kind}/{entry.digest}"


def export(level: Level, entries: Iterable[Entry], file: Path) -> Exported:
    """Write the whole entries of a level to one file, which appears when it is complete. Equal stores give equal bytes.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as out:
            done = _write(level, sorted(entries), out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return done


def _write(level: Level, entries: Iterable[Entry], out: IO[bytes]) -> Exported:
    rows, skipped = [], []
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for entry in entries:
            try:
                data, _ = level.read(entry.path)
                parse(data)
            except FileNotFoundError:
                continue  # evicted meanwhile
            except (BadEntry, OSError) as error:
                skipped.append(f"{name_of(entry)}: {error}")
                continue
            _add(tar, name_of(entry), data)
            rows.append({"name": name_of(entry), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        # The last member, so that an entry that is evicted meanwhile is not promised, and a cut-off file is recognised.
        manifest = {"format": FORMAT, "schema": SCHEMA, "entries": rows}
        _add(tar, _MANIFEST, json.dumps(manifest, indent=1).encode())
    return Exported(len(rows), sum(int(str(row["bytes"])) for row in rows), skipped)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    tar.addfile(info, io.BytesIO(data))


def take_in(level: Level, file: Path, limits: Limits, dry_run: bool = False) -> Imported:
    """Publish the entries of an archive that are whole and not there yet. Nothing is unpacked by its path.

    Raises:
        InvalidInput: the file is no archive of this version, or is cut off.
        OSError: it cannot be read, or an entry cannot be written.
    """
    done = Imported()
    with _guarded(file, lambda: tarfile.open(file, "r:")) as tar:
        members = {member.name: member for member in _guarded(file, tar.getmembers)}
        rows = _manifest(tar, members.pop(_MANIFEST, None), file)
        for name, row in rows.items():
            try:
                data = _entry(tar, name, row, members.pop(name, None))
                if len(data) > limits.low.bytes:
                    raise BadEntry(f"its {len(data)} bytes exceed the store's bound")
            except BadEntry as error:
                done.bad[name] = str(error)
                continue
            _keep(level, name, data, done, dry_run)
    done.bad |= dict.fromkeys(members, "the manifest does not list it")
    return done


def _keep(level: Level, name: str, data: bytes, done: Imported, dry_run: bool) -> None:
    kind, digest = name.split("/")
    path = level.path(kind, digest)
    if path.exists() and not fault(level, Entry(kind, digest, path.parent, 0, 0.0)):
        done.present.append(name)
        return
    if not dry_run:
        publish(path, data)
    done.added.append(name)


def _guarded(file: Path, read: Callable[[], T]) -> T:
    """What reading the archive gives; its faults in words."""
    try:
        return read()
    except (*_UNREADABLE, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
    except OSError as error:
        if error.errno != errno.EINVAL:  # tarfile seeks to where a damaged header points
            raise
        why = str(error)
    raise InvalidInput(f"{file} is no whole archive of a store: {why}. {_AGAIN}")


def _manifest(tar: tarfile.TarFile, member: tarfile.TarInfo | None, file: Path) -> dict[str, dict[str, Any]]:
    """The rows of the manifest, by name."""
    if member is None or not member.isreg() or member.size > _MAX_MANIFEST:
        raise InvalidInput(f"{file} is no whole archive of a store: it has no {_MANIFEST}. {_AGAIN}")
    made = _guarded(file, lambda: json.loads(_content(tar, member)))
    if not isinstance(made, dict) or (made.get("format"), made.get("schema")) != (FORMAT, SCHEMA):
        found = {key: made.get(key) for key in ("format", "schema")} if isinstance(made, dict) else type(made).__name__
        raise InvalidInput(
            f"{file} is not for this version of tilery: its manifest has {found}, and this version reads format "
            f"{FORMAT} with schema {SCHEMA}. Export the store with this version."
        )
    rows = made.get("entries")
    return {str(row.get("name")): row for row in rows if isinstance(row, dict)} if isinstance(rows, list) else {}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    return stream.read() if stream else b""


def _entry(tar: tarfile.TarFile, name: str, row: dict[str, Any], member: tarfile.TarInfo | None) -> bytes:
    """The bytes of an entry that is what its name and the manifest say."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise BadEntry("it has no entry's name")
    if member is None:
        raise BadEntry("it is missing")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not 0 <= member.size <= MAX_BYTES:
        raise BadEntry("it is not a file of an entry's size")
    try:
        data = _content(tar, member)
    except _UNREADABLE as error:
        raise BadEntry(f"it cannot be read: {error}") from None
    if hashlib.sha256(data).hexdigest() != row.get("sha256"):
        raise BadEntry("its checksum is not the manifest's")
    key, _ = parse(data)
    if (key.kind, key.digest) != match.groups():
        raise BadEntry("it is the entry of another key")
    return data
