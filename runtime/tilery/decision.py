"""Decision: what was chosen, by which tier, and why nothing else was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .device import DeviceInfo
from .generator.variant import Variant
from .problem import Problem

SHOWN_RANKS = 5
SHOWN_NAMES = 2


class Rejection(NamedTuple):
    """A variant that was not chosen, and why."""

    name: str
    reason: str


def summary(rejections: Iterable[Rejection]) -> list[str]:
    """Rejections by reason, the commonest first, one line each, so that hundreds stay readable.

    >>> summary([Rejection("x", "too large"), Rejection("y", "too large")])
    ['2 x too large: x, y']
    """
    groups: dict[str, list[str]] = {}
    for name, reason in rejections:
        groups.setdefault(reason, []).append(name)
    lines = []
    for reason, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        more = f", ... and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        lines.append(f"{len(names)} x {reason}: {', '.join(names[:SHOWN_NAMES])}{more}")
    return lines


def problem_text(problem: Problem) -> str:
    """A Problem in one line.

    >>> problem_text(Problem("gemm", 64, 32, 16, 1, "bf16", "f32", "nt", 16, bias=True))
    'gemm m=64 n=32 k=16 bf16 -> f32, layout nt, aligned to 16 bytes, + bias'
    """
    p = problem
    parts = [f"{p.op} m={p.m} n={p.n} k={p.k}{f' batch={p.batch}' if p.batch != 1 else ''} {p.dtype} -> {p.out_dtype}"]
    parts += [f"layout {p.layout}", f"aligned to {p.align} bytes"]
    parts += [f"precision {p.precision}"] if p.precision != "ieee" else []
    parts += ["+ beta * c"] if p.accumulate else []
    parts += ["+ bias"] if p.bias else []
    parts += [p.activation] if p.activation != "none" else []
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice. ``str()`` tells it in words.

    Attributes:
        problem: what was asked.
        device: for which GPU.
        variant: what serves it.
        tier: which tier answered: forced, exact, bucket, model, portable, jit or fallback.
        arch: the arch of the code that runs.
        source: where the code comes from: ``image`` or ``jit``.
        reason: why the tier answered so.
        silent: (tier, reason) of each tier that was asked before and did not answer.
        rejections: the variants that cannot serve, with a reason each.
        ranked: (name, predicted microseconds) of the tier's candidates, best first.
        pending: the variant that will serve once it is compiled in the background, or "".
        miss: what happens because no image fits, or "".
    """

    problem: Problem
    device: DeviceInfo
    variant: Variant
    tier: str
    arch: str
    source: str
    reason: str
    silent: tuple[tuple[str, str], ...]
    rejections: tuple[Rejection, ...]
    ranked: tuple[tuple[str, float], ...]
    pending: str = ""
    miss: str = ""

    @property
    def predicted_us(self) -> float:
        """Predicted time of the chosen variant."""
        return self.ranked[0][1]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "problem": asdict(self.problem),
            "device": self.device.to_dict(),
            "variant": self.variant.name,
            "tier": self.tier,
            "arch": self.arch,
            "source": self.source,
            "predicted_us": self.predicted_us,
            "pending": self.pending,
            "miss": self.miss,
            "tiers": [{"tier": tier, "reason": reason} for tier, reason in (*self.silent, (self.tier, self.reason))],
            "ranked": [{"name": name, "predicted_us": time} for name, time in self.ranked],
            "rejections": [rejection._asdict() for rejection in self.rejections],
        }

    def __str__(self) -> str:
        lines = [problem_text(self.problem), f"on {self.device}", f"-> {self.variant.name}"]
        compiler = "the C++ compiler" if self.device.is_host else "NVRTC"
        origin = f"compiled by {compiler} for" if self.source == "jit" else "from the image of"
        lines += [f"   {origin} {self.arch}, predicted {self.predicted_us:.1f} us"]
        lines += [f"   no image fits: {self.miss}"] if self.miss else []
        lines += ["", "tiers"]
        lines += [f"  {tier:<9} {reason}" for tier, reason in self.silent]
        lines += [f"  {self.tier:<9} answers: {self.reason}", "", "ranked"]
        lines += [f"  {time:>9.1f} us  {name}" for name, time in self.ranked[:SHOWN_RANKS]]
        lines += [f"  ... and {len(self.ranked) - SHOWN_RANKS} more"] if len(self.ranked) > SHOWN_RANKS else []
        lines += ["", "rejected"] if self.rejections else []
        lines += [f"  {line}" for line in summary(self.rejections)]
        return "\n".join(lines)
