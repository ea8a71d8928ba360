"""Trace files, read: what was served, how often, and the counters, over all processes that wrote one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .device import DeviceInfo
from .errors import InvalidInput, TileryError
from .problem import Problem
from .stats import Served, report


class Row(NamedTuple):
    """What served a Problem on a device; equal GPUs of a machine are one."""

    problem: Problem
    device: DeviceInfo
    variant: str
    tier: str


@dataclass
class Seen:
    """What became of a Row: calls and Plans of all processes, and what happened because no image fits, or ""."""

    calls: int = 0
    plans: int = 0
    miss: str = ""


@dataclass
class Contents:
    """A trace.

    Attributes:
        rows: what was served, in the order in which it was first seen.
        counts: the counters, as `stats` has them.
        processes: how many processes wrote it.
        unreadable: lines that are no event, as one that a full disk cut off.
    """

    rows: dict[Row, Seen] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    processes: int = 0
    unreadable: int = 0

    @property
    def problems(self) -> dict[Problem, int]:
        """Calls of each Problem, the most called first, then in the order in which they were first seen."""
        calls: Counter[Problem] = Counter()
        for row, seen in self.rows.items():
            calls[row.problem] += seen.calls
        return dict(calls.most_common())

    def report(self) -> dict[str, Any]:
        """As `tilery.stats` gives it, with ``processes``, ``problems`` and ``unreadable`` lines."""
        served = [Served(row.problem, row.tier, seen.calls, seen.miss, seen.plans) for row, seen in self.rows.items()]
        about = {"processes": self.processes, "problems": len(self.problems), "unreadable": self.unreadable}
        return about | report(served, self.counts)


def is_trace(line: str) -> bool:
    """Whether a line is one of a trace."""
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and "event" in found


def read(file: Path) -> Contents:
    """A trace with its predecessor ``FILE.1``, if there is one. Lines that are no event are counted and passed over.

    Raises:
        InvalidInput: it cannot be read, or no line of it is an event.
    """
    reading = _Reading()
    for path in (file.with_name(f"{file.name}.1"), file):
        for line in _lines(path, needed=path is file):
            try:
                reading.take(json.loads(line))
            except (ValueError, TypeError, KeyError, TileryError):
                reading.contents.unreadable += 1
    if not reading.processes:
        raise InvalidInput(f"{file} has no event of a trace: TILERY_TRACE={file} writes one, see docs/observability.md")
    return reading.result()


def _lines(path: Path, needed: bool) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from (line for line in lines if line.strip())
    except FileNotFoundError as error:
        if needed:
            raise InvalidInput(f"{path} cannot be read: {error}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None


class _Reading:
    """Events are cumulative per process: the largest value of each counts, however many lines are lost."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.processes: set[str] = set()
        self._calls: dict[tuple[str, Row], int] = {}
        self._counts: dict[tuple[str, str, str], float] = {}

    def take(self, event: dict[str, Any]) -> None:
        process = event["process"]
        if event["event"] in ("plan", "swap", "calls"):
            self._take_row(process, event)
        elif event["event"] == "count":
            key = (process, event["group"], event["name"])
            self._counts[key] = max(self._counts.get(key, 0), event["value"])
        self.processes.add(process)

    def _take_row(self, process: str, event: dict[str, Any]) -> None:
        device = DeviceInfo(**event["device"] | {"cc": tuple(event["device"]["cc"]), "ordinal": None})
        row = Row(Problem(**event["problem"]), device, event["variant"], event["tier"])
        key = (process, row)
        calls = max(self._calls.get(key, 0), event.get("calls", 0))
        seen = self.contents.rows.setdefault(row, Seen())
        seen.plans += key not in self._calls
        seen.miss = event["miss"]
        self._calls[key] = calls

    def result(self) -> Contents:
        for (_, row), calls in self._calls.items():
            self.contents.rows[row].calls += calls
        for (_, group, name), value in self._counts.items():
            self.contents.counts[group, name] += value  # type: ignore[assignment]  # seconds are counted too
        self.contents.processes = len(self.processes)
        return self.contents
