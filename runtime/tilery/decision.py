"""Decision: what was chosen, by which tier, and why nothing else was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .device import DeviceInfo
from .generator.variant import Variant
from .problem import Problem, bucket
from .requirements import compute_dtype

SHOWN_RANKS = 5
SHOWN_NAMES = 2


class Rejection(NamedTuple):
    """A variant that was not chosen, and why."""

    name: str
    reason: str


class Ranked(NamedTuple):
    """A candidate of the tier that answered: microseconds, and whether they are ``measured`` or ``predicted``."""

    name: str
    us: float
    basis: str = "predicted"

    def __str__(self) -> str:
        return f"{self.basis} {self.us:.1f} us"


class Advice(NamedTuple):
    """A change that would give another answer, and what that would be."""

    change: str
    effect: str


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
        ranked: the tier's candidates with their times, best first.
        pending: the variant that will serve once it is compiled in the background, or "".
        miss: what happens because no image fits, or "".
        advice: what would change the answer; only `tilery.explain` asks.
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
    ranked: tuple[Ranked, ...]
    pending: str = ""
    miss: str = ""
    advice: tuple[Advice, ...] = ()

    @property
    def us(self) -> float:
        """Time of the chosen variant; `basis` says how it is known."""
        return self.ranked[0].us

    @property
    def basis(self) -> str:
        """Whether the time of the chosen variant is ``measured`` or ``predicted``."""
        return self.ranked[0].basis

    @property
    def key(self) -> str:
        """What records and table rows are looked up by, beside the sizes."""
        p = self.problem
        return f"{p.op} {compute_dtype(p)} {p.layout}, align {p.align}"

    @property
    def bucket(self) -> str:
        """The sizes in a row of the table, m x n x k."""
        p = self.problem
        return "x".join(str(bucket(size)) for size in (p.m, p.n, p.k))

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "problem": asdict(self.problem),
            "device": self.device.to_dict(),
            "variant": self.variant.name,
            "tier": self.tier,
            "arch": self.arch,
            "source": self.source,
            "us": self.us,
            "basis": self.basis,
            "key": self.key,
            "bucket": self.bucket,
            "pending": self.pending,
            "miss": self.miss,
            "tiers": [{"tier": tier, "reason": reason} for tier, reason in (*self.silent, (self.tier, self.reason))],
            "ranked": [candidate._asdict() for candidate in self.ranked],
            "rejections": [rejection._asdict() for rejection in self.rejections],
            "advice": [advice._asdict() for advice in self.advice],
        }

    def __str__(self) -> str:
        lines = [problem_text(self.problem), f"on {self.device}", f"-> {self.variant.name}"]
        compiler = "the C++ compiler" if self.device.is_host else "NVRTC"
        origin = f"compiled by {compiler} for" if self.source == "jit" else "from the image of"
        lines += [f"   {origin} {self.arch}, {self.ranked[0]}", f"   key {self.key}; bucket {self.bucket}"]
        lines += [f"   no image fits: {self.miss}"] if self.miss else []
        lines += ["", "tiers"]
        lines += [f"  {tier:<9} {reason}" for tier, reason in self.silent]
        lines += [f"  {self.tier:<9} answers: {self.reason}", "", "ranked"]
        lines += [f"  {us:>9.1f} us  {basis:<9}  {name}" for name, us, basis in self.ranked[:SHOWN_RANKS]]
        lines += [f"  ... and {len(self.ranked) - SHOWN_RANKS} more"] if len(self.ranked) > SHOWN_RANKS else []
        lines += ["", "rejected"] if self.rejections else []
        lines += [f"  {line}" for line in summary(self.rejections)]
        lines += ["", "would change it"] if self.advice else []
        lines += [f"  {change}: {effect}" for change, effect in self.advice]
        return "\n".join(lines)
