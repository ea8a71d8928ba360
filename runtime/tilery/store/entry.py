"""The bytes of an entry: a line of JSON with the whole key, size and checksum, then the payload."""

from __future__ import annotations

import hashlib
import json

from .key import SCHEMA, Key

MAX_BYTES = 256 << 20  # of an entry: ten times the largest cubin seen; more on reading is a broken file
_MAX_HEADER = 64 << 10


class BadEntry(ValueError):
    """A file in an entry's place that is not that entry; says why."""


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


def payload_of(data: bytes, key: Key) -> bytes:
    """The payload of an entry.

    Raises:
        BadEntry: the entry is damaged, or has another key.
    """
    head, newline, payload = data.partition(b"\n")
    if head + newline != header(key, payload):
        raise BadEntry("header, key, size or checksum is not what it must be")
    return payload


def parse(data: bytes) -> tuple[Key, bytes]:
    """Key and payload of an entry whose key nobody knows yet.

    Raises:
        BadEntry: it is not an entry, or a damaged one.
    """
    key = key_of(data)
    return key, payload_of(data, key)


def key_of(data: bytes) -> Key:
    """The key that the first line states; the payload may be missing, and is not looked at.

    Raises:
        BadEntry: there is no such line.
    """
    head, newline, _ = data[:_MAX_HEADER].partition(b"\n")
    if not newline:
        raise BadEntry("it has no header")
    try:
        row = json.loads(head)
        key = Key(row["kind"], tuple((name, value) for name, value in row["key"]))
        _ = key.digest  # fails where a field is no text
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadEntry(f"its header cannot be read: {type(error).__name__}") from None
    return key
