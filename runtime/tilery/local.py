"""What the tuner measured on this machine: one TuningRecord per Problem and GPU, in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .generator import records
from .generator.errors import TableError
from .generator.records import Gpu, Record, Time
from .lookup import record_key
from .stats import count
from .store import Key, Store, store_for

if TYPE_CHECKING:
    from .pack import Pack
    from .policy import Policy
    from .problem import Problem

METHOD = 1
"""Version of how the tuner measures: times of another one are not compared with those of this one."""


def store_of(settings: Policy) -> Store:
    """Where a policy looks for records: with tune='read_only' only in the seeds, so that all ranks choose alike."""
    return store_for(replace(settings, store=None) if settings.tune == "read_only" else settings)


def key(gpu: Gpu, problem: records.Key) -> Key:
    """The store's key of a record. The product name is not in it, the silicon is."""
    silicon = str(gpu._replace(name="gpu"))
    fields = tuple((name, str(value)) for name, value in problem._asdict().items())
    return Key("record", (("schema", str(records.SCHEMA)), ("method", str(METHOD)), ("gpu", silicon), *fields))


def put(store: Store, record: Record, pack: Pack) -> None:
    """Keep a record. Times of other variants that this machine measured before stay, where their kernels do."""

    def merged(payload: bytes | None) -> bytes:
        before = _parse(payload)
        times = {**_holding(before, pack), **record.times} if before else record.times
        line: str = records.line(replace(record, times=times))
        return line.encode()

    store.change(key(record.gpu, record.key), merged)


def times(store: Store, problem: Problem, gpu: Gpu, pack: Pack) -> Mapping[str, float]:
    """Microseconds by variant that this machine measured for a Problem; {} where it measured nothing.

    Times of variants that the pack no longer has, or whose kernel has changed, are dropped one by one, and counted.
    """
    record = _parse(store.look(key(gpu, record_key(problem))))
    if record is None:
        return {}
    found = _holding(record, pack)
    if dropped := len(record.times) - len(found):
        count("records", "dropped", dropped)
    return {name: time.us for name, time in found.items()}


def _parse(payload: bytes | None) -> Record | None:
    """The record of an entry; None where there is none, or where it cannot be read, which is counted."""
    if payload is None:
        return None
    try:
        return records.parse("a record in the store", payload.decode("utf-8", "replace"))
    except TableError:
        count("records", "unreadable")
        return None


def _holding(record: Record, pack: Pack) -> dict[str, Time]:
    return {name: time for name, time in record.times.items() if holds(pack, name, time.hash)}


def holds(pack: Pack, name: str, digits: str) -> bool:
    """Whether a variant's kernel is still the one that was measured."""
    return pack.hashes.get(name, "").startswith(digits)
