"""Where records go, and which problems need no measuring any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .. import local
from ..errors import InvalidInput
from ..generator.errors import TableError
from ..generator.records import Gpu, Key, Record, Time, line, parse, same_silicon
from ..lookup import record_key
from ..pack import Pack
from ..problem import Problem
from ..store import Store

log = logging.getLogger(__name__)

Keep = Callable[[Record], None]


class Book:
    """The records of one GPU that are there, and those that come.

    Args:
        gpu: the GPU.
        pack: whose variants are measured.
        known: the records of a file, also of other GPUs; None where there is no file.
        store: where else there must be a record for a problem to need no measuring, or None.
        keep: called with each new record.
    """

    def __init__(self, gpu: Gpu, pack: Pack, known: Iterable[Record] | None, store: Store | None, keep: Keep) -> None:
        self._gpu, self._pack, self._store, self._keep = gpu, pack, store, keep
        self._known: dict[Key, dict[str, Time]] | None = None if known is None else {}
        for record in known or ():
            if same_silicon(record.gpu, gpu) and self._known is not None:
                self._known.setdefault(record.key, {}).update(record.times)

    def holds(self, problem: Problem, wanted: Mapping[str, str]) -> bool:
        """Whether there is a time of every candidate as it is now, wherever records go.

        Args:
            problem: the problem.
            wanted: by candidate, the first digits of its content hash.
        """
        places: list[Mapping[str, object]] = []
        if self._known is not None:
            times = self._known.get(record_key(problem), {})
            places.append({name: time for name, time in times.items() if wanted.get(name) == time.hash})
        if self._store is not None:
            places.append(local.times(self._store, problem, self._gpu, self._pack))
        return bool(places) and all(wanted.keys() <= place.keys() for place in places)

    def add(self, record: Record) -> None:
        """Keep a record."""
        self._keep(record)


def keeper(out: Path | None, store: Store | None, pack: Pack) -> Keep:
    """Writes a record as a line of a file, and into a store beside what holds there for the pack."""

    def keep(record: Record) -> None:
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(line(record) + "\n")
        if store is not None:
            local.put(store, record, pack)

    return keep


def read(path: Path) -> list[Record]:
    """The records of a file that may not exist yet; a last line that was cut off is taken away.

    Raises:
        InvalidInput: it cannot be read, or is something else.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be used for records: {error}") from None
    whole, newline, rest = text.rpartition("\n")
    try:
        records = [parse(f"{path}:{number}", line) for number, line in enumerate(whole.splitlines(), 1) if line.strip()]
    except TableError as error:
        raise InvalidInput(f"{error}. Name another file, or delete the line") from None
    if rest:
        log.warning("%s: the last line was cut off, and is measured again", path)
        path.write_text(whole + newline, encoding="utf-8")
    return records
