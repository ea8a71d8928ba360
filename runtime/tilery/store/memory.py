"""Entries in memory, where there is no folder for them."""

from __future__ import annotations

from .bounds import Limits


class Memory:
    """Payloads by digest, within limits: the oldest go first, the newest stays whatever its size.

    Without a lock, which a fork might leave locked: each step is one operation of a dict.

    >>> memory = Memory(Limits(3, 10))
    >>> for name in ("a", "b", "c"):
    ...     memory.put(name, b"xx")
    >>> memory.get("b"), memory.get("c")
    (None, b'xx')
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._payloads: dict[str, bytes] = {}

    def get(self, digest: str) -> bytes | None:
        """A payload, or None."""
        return self._payloads.get(digest)

    def drop(self, digest: str) -> None:
        """Forget a payload, if it is there."""
        self._payloads.pop(digest, None)

    def put(self, digest: str, payload: bytes) -> None:
        """Keep a payload."""
        self._payloads[digest] = payload
        kept = list(self._payloads.items())
        size, count = sum(len(payload) for _, payload in kept), len(kept)
        for name, old in kept[:-1]:
            if size <= self._limits.bytes and count <= self._limits.entries:
                break
            size, count = size - len(old), count - 1
            self._payloads.pop(name, None)
