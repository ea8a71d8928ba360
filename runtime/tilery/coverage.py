"""Coverage: which tier serves each Problem of a list on a GPU, without data, a launch or a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from . import plan
from .decision import Decision
from .device import DeviceInfo
from .dispatch import TIERS
from .errors import UnsupportedProblem
from .host import plan as host
from .lookup import of_silicon
from .pack import Pack
from .policy import Policy
from .problem import Problem

NONE = "none"
"""In place of a tier where nothing can serve a Problem: always a failure."""

ADVICE = {
    "bucket": "`tilery tune` measures it, which makes it exact",
    "model": "`tilery tune` measures it, which makes it exact",
    "portable": "install from source with this GPU's arch in TILERY_ARCHS: the driver compiles PTX at first use",
    "jit": "`tilery warm` compiles it before traffic; a row of variants.toml and a build make it an image",
    "fallback": "add a variant that fits to variants.toml and build, or allow the JIT (TILERY_JIT=auto)",
    NONE: "see the reasons; `tilery explain` has all of them",
}

Regret = Mapping[str, float]


class Served(NamedTuple):
    """What serves one Problem.

    Attributes:
        problem: what is asked.
        times: how often it is in the list.
        tier: that answers, or ``none``.
        variant, source, us, basis: of the Decision; nothing where there is none. ``basis`` says how the time is known.
        reason: why the tier answered so, and what no image means for it; or why nothing can serve.
    """

    problem: Problem
    times: int
    tier: str
    variant: str = ""
    source: str = ""
    us: float | None = None
    basis: str = ""
    reason: str = ""

    @property
    def advice(self) -> str:
        """What would bring it to a better tier, or ""."""
        return ADVICE.get(self.tier, "")

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return self._asdict() | {"problem": asdict(self.problem), "advice": self.advice}


class Row(NamedTuple):
    """What one tier serves.

    Attributes:
        tier: its name.
        problems: different Problems.
        share: part of the list, repeated Problems counted each time.
        regret: how much longer than the best the tier's choices are expected to take (``geomean``, ``p90``, ``max``,
            1.0 for none), as the pack declares it for this GPU; empty where it does not.
    """

    tier: str
    problems: int
    share: float
    regret: Regret


@dataclass(frozen=True, slots=True)
class Report:
    """The coverage of a list of Problems on a GPU.

    Attributes:
        device: the GPU.
        served: one for each different Problem, in the list's order.
        tiers: those that serve anything, best first.
    """

    device: DeviceInfo
    served: tuple[Served, ...]
    tiers: tuple[Row, ...]

    def failing(self, tiers: Collection[str]) -> tuple[Served, ...]:
        """The Problems that one of these tiers serves, or nothing at all."""
        return tuple(one for one in self.served if one.tier in tiers or one.tier == NONE)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "device": self.device.to_dict(),
            "tiers": [row._asdict() | {"regret": dict(row.regret)} for row in self.tiers],
            "problems": [one.to_dict() for one in self.served],
        }


def cover(problems: Iterable[Problem], gpu: DeviceInfo, pack: Pack, settings: Policy) -> Report:
    """Decide for each Problem as its first call would.

    Args:
        problems: in any order; repeated ones count.
        gpu: present, or described.
        pack: what can serve.
        settings: the policy of the calls.

    Raises:
        UnknownName: the policy forces a variant that does not fit.
    """
    counts = Counter(problems)
    served = tuple(_served(problem, times, gpu, pack, settings) for problem, times in counts.items())
    total = counts.total()
    regret = of_silicon(pack.regret, gpu) or {}
    rows = []
    for tier in (*TIERS, NONE):
        found = [one for one in served if one.tier == tier]
        if found:
            rows.append(Row(tier, len(found), sum(one.times for one in found) / total, regret.get(tier, {})))
    return Report(gpu, served, tuple(rows))


def _served(problem: Problem, times: int, gpu: DeviceInfo, pack: Pack, settings: Policy) -> Served:
    try:
        found = _decide(problem, gpu, pack, settings)
    except UnsupportedProblem as error:
        return Served(problem, times, NONE, reason="; ".join(error.reasons) or str(error))
    reason = f"{found.reason}; {found.miss}" if found.miss else found.reason
    if found.tier == "fallback":
        reason = f"{reason}; {found.silent[-1][1]}"  # why the tier before, the JIT, did not answer
    return Served(problem, times, found.tier, found.variant.name, found.source, found.us, found.basis, reason)


def _decide(problem: Problem, gpu: DeviceInfo, pack: Pack, settings: Policy) -> Decision:
    return host.decide(problem, pack, settings) if gpu.is_host else plan.decide(problem, gpu, pack, settings)
