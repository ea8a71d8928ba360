"""Key: what an entry depends on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SCHEMA = 1
KINDS = ("binary", "record", "toolchain")


@dataclass(frozen=True, slots=True)
class Key:
    """What an entry depends on: named fields, in order. The kind is one of `KINDS`: it names a folder."""

    kind: str
    fields: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"an entry's kind is one of {', '.join(KINDS)}, not {self.kind!r}")

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
