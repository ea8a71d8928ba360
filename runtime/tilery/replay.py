"""Replay: a trace explained. What served each Problem then, and what would serve it now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from .decision import Decision, problem_text
from .device import DeviceInfo
from .errors import TileryError, first_line
from .problem import Problem
from .trace_file import Contents


class Then(NamedTuple):
    """What served a Problem, and how often."""

    variant: str
    tier: str
    calls: int


@dataclass
class Replayed:
    """One Problem of a trace on a device.

    Attributes:
        problem, device: what was asked, and where.
        then: what served it, the most called first.
        now: what would serve it now, or None.
        error: why nothing would, or "".
    """

    problem: Problem
    device: DeviceInfo
    then: list[Then] = field(default_factory=list)
    now: Decision | None = None
    error: str = ""

    @property
    def calls(self) -> int:
        """Calls of it."""
        return sum(then.calls for then in self.then)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        keys = ("tier", "us", "basis", "reason")
        now = self.now and {"variant": self.now.variant.name} | {key: getattr(self.now, key) for key in keys}
        return {
            "problem": asdict(self.problem),
            "text": problem_text(self.problem),
            "device": self.device.to_dict(),
            "calls": self.calls,
            "then": [then._asdict() for then in self.then],
            "now": now,
            "error": self.error,
        }


def replay(contents: Contents, decide: Callable[[Problem, DeviceInfo], Decision]) -> list[Replayed]:
    """Each Problem and device of a trace, the most called first.

    Args:
        contents: the trace.
        decide: what would serve a Problem on a device now; what it raises becomes the ``error`` of that one.
    """
    found: dict[tuple[Problem, DeviceInfo], Replayed] = {}
    for row, seen in contents.rows.items():
        one = found.setdefault((row.problem, row.device), Replayed(row.problem, row.device))
        one.then.append(Then(row.variant, row.tier, seen.calls))
    for one in found.values():
        one.then.sort(key=lambda then: -then.calls)
        try:
            one.now = decide(one.problem, one.device)
        except TileryError as error:
            one.error = first_line(error)
    return sorted(found.values(), key=lambda one: -one.calls)


def by_tier(replayed: Sequence[Replayed]) -> dict[str, dict[str, int]]:
    """Calls by tier: ``then``, and ``now`` if the same calls came again."""
    then: Counter[str] = Counter()
    now: Counter[str] = Counter()
    for one in replayed:
        then.update({served.tier: 0 for served in one.then})
        for served in one.then:
            then[served.tier] += served.calls
        now[one.now.tier if one.now else "nothing"] += one.calls
    return {"then": dict(then), "now": dict(now)}
