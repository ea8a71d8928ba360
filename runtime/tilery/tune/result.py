"""What tuning gave: one Result for each problem, and the Report of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..decision import problem_text
from ..problem import Problem
from .measure import Measured

STATUSES = ("measured", "kept", "noisy", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one problem.

    Attributes:
        problem: what was asked.
        status: ``measured`` (there is a new record), ``kept`` (an earlier record still holds), ``noisy`` (times spread
            so much that they do not outweigh the default: no record), ``skipped`` or ``failed``.
        reason: why there is no new record, or "".
        default: the variant that served before.
        best: the variant that will serve, or "".
        times: by variant, of all that were right.
        wrong: by variant, why it may not serve.
        specialised: by variant, of kernels with sizes and strides as constants; they are in no record.
        seconds: what it took.
        gpu_ms: time of the GPU that it took, about.
    """

    problem: Problem
    status: str
    reason: str = ""
    default: str = ""
    best: str = ""
    times: Mapping[str, Measured] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)
    specialised: Mapping[str, Measured] = field(default_factory=dict)
    seconds: float = 0.0
    gpu_ms: float = 0.0

    @property
    def gain(self) -> float:
        """Time of the default over time of the best, 1.0 where one of them was not measured."""
        if self.best in self.times and self.default in self.times:
            return self.times[self.default].us / self.times[self.best].us
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        found = asdict(self)
        for key in ("times", "specialised"):
            found[key] = {name: one._asdict() for name, one in getattr(self, key).items()}
        return found | {"gain": self.gain}


@dataclass(frozen=True, slots=True)
class Report:
    """What became of all problems. ``str()`` tells it in words.

    Attributes:
        gpu: name of the GPU.
        results: in the order in which they were measured; without those that were not reached.
        asked: how many different problems there were.
        seconds: from begin to end.
        uncompiled: by variant, why NVRTC could not compile it.
        notes: what the user should know, e.g. that the GPU could not be locked.
    """

    gpu: str
    results: tuple[Result, ...]
    asked: int
    seconds: float
    uncompiled: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Problems by status."""
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def left(self) -> int:
        """Problems that were not reached."""
        return self.asked - len(self.results)

    @property
    def wrong(self) -> dict[str, int]:
        """By variant, on how many problems its result was wrong."""
        return dict(Counter(name for result in self.results for name in result.wrong))

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "gpu": self.gpu,
            "asked": self.asked,
            "left": self.left,
            "seconds": self.seconds,
            "counts": self.counts,
            "wrong": self.wrong,
            "uncompiled": dict(self.uncompiled),
            "notes": list(self.notes),
            "results": [result.to_dict() for result in self.results],
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        lines = [f"{len(self.results)} of {self.asked} problems in {self.seconds:.1f} s: {counts or 'none'}"]
        changed = [result for result in self.results if result.status == "measured" and result.best != result.default]
        if changed:
            most = max(result.gain for result in changed)
            lines.append(f"{len(changed)} get another variant, at most {most:.2f} times as fast")
        for result in self.results:
            if result.status in ("noisy", "skipped", "failed"):
                lines.append(f"  {problem_text(result.problem)}: {result.status}: {result.reason}")
        lines += [f"  wrong on {count} problems, never timed there: {name}" for name, count in self.wrong.items()]
        lines += [f"  not compiled: {name}: {why}" for name, why in self.uncompiled.items()]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"{self.left} problems are left: run the same again to go on"] if self.left else []
        return "\n".join(lines)
