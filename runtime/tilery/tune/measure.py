"""How candidates are compared: checked first, one coarse pass over all, then the top few again, interleaved.

Power decides how fast large kernels run, and what runs first looks faster. So no candidate is measured alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ..errors import DriverError, first_line
from .buffers import Skip

# A graph takes about so long, so that starting it does not count, and holds at most so many launches.
GRAPH_US, MAX_LAUNCHES = 1000.0, 256
# Beyond this a graph no longer goes through all sets: such a problem sweeps the L2 cache itself.
LONG_GRAPH_US = 10_000.0
# Slower than the best by so much, a candidate is not measured further. The time of a single launch contains some
# microseconds of events and of cold caches.
HOPELESS, LAUNCH_US = 3.0, 15.0
COARSE_ROUNDS = 2
# Who is measured again.
FINAL, MOST_FINALISTS = 1.25, 6
ROUNDS, FEW_ROUNDS, LONG_ROUND_US = 7, 3, 1e5
# Rounds are added while the best times spread by more than FINE; beyond NOISY something else runs on the GPU.
FINE, NOISY, MOST_ROUNDS = 0.02, 0.10, 21
# Of the budget, what checking and the coarse pass may take.
CHECK_SHARE, COARSE_SHARE = 0.25, 0.3


class Measured(NamedTuple):
    """Microseconds of a call: the median, and the distance between the quartiles as a part of it.

    The spread is 0 for fewer than three rounds, as of a candidate that was dropped.
    """

    us: float
    spread: float = 0.0


class OverBudget(Skip):
    """It would take more time of the GPU than the budget allows."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "over the budget")


class Trial(Protocol):
    """The candidates of a problem on a device."""

    sets: int
    """Sets of operands, through which launches rotate."""

    def check(self, name: str) -> tuple[float, float]:
        """The error of one launch as a part of what is allowed, at most 1 if right; microseconds of that launch."""

    def prepare(self, names: Sequence[str], launches: int) -> None:
        """Make ready to replay so many launches of each."""

    def replay(self, names: Sequence[str], rounds: int) -> Mapping[str, Sequence[float]]:
        """Microseconds of one launch, round by round, interleaved."""


@dataclass
class Found:
    """What comparing the candidates of a problem gave.

    Attributes:
        times: by name, of all that were right and measured.
        wrong: by name, why a candidate may not serve.
        unmeasured: names for which the budget had no time.
        noisy: whether the best times spread so much that they say little.
        gpu_us: time of the GPU that it took, about.
    """

    times: dict[str, Measured] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    noisy: bool = False
    gpu_us: float = 0.0


def spread_of(rounds: Sequence[float]) -> float:
    """The distance between the quartiles, as a part of the median; 0 for fewer than three rounds.

    >>> spread_of([10.0, 10.0, 10.0]), spread_of([1.0, 2.0])
    (0.0, 0.0)
    """
    if len(rounds) < FEW_ROUNDS:
        return 0.0
    low, middle, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return (high - low) / middle


def launches_of(fastest_us: float, sets: int) -> int:
    """How many launches a graph holds.

    >>> launches_of(2.0, 128), launches_of(100.0, 3), launches_of(50_000.0, 3)
    (256, 10, 1)
    """
    through_all = sets if fastest_us * sets <= LONG_GRAPH_US else 1
    return min(MAX_LAUNCHES, max(through_all, round(GRAPH_US / fastest_us), 1))


class Comparison:
    """One comparison under way."""

    def __init__(self, trial: Trial, keep: str, budget_us: float) -> None:
        self.trial, self.keep, self.budget = trial, keep, budget_us
        self.found = Found()

    @property
    def left(self) -> float:
        """Microseconds of the budget that are left."""
        return self.budget - self.found.gpu_us

    def check(self, names: Sequence[str]) -> dict[str, float]:
        """Microseconds of one launch by name, of those that are right."""
        once: dict[str, float] = {}
        for index, name in enumerate(names):
            if self.found.gpu_us > CHECK_SHARE * self.budget and len(once) > 1:
                self.found.unmeasured = tuple(names[index:])
                break
            us = self._check(name)
            if us is not None:
                once[name] = us
        # The first launch of a kernel in a process can take longer than any other.
        for name in set(once) - set(hopeful(once, LAUNCH_US)):
            again = self._check(name)
            once[name] = min(once[name], again or once[name])
        return once

    def _check(self, name: str) -> float | None:
        try:
            error, us = self.trial.check(name)
        except DriverError as failure:
            if failure.call != "cuLaunchKernel":  # nothing in this process's context works any more
                advice = f"It happened in or after {name}, which `tilery verify` can look at by itself"
                raise DriverError(failure.call, failure.name, failure.text, advice) from failure
            self.found.wrong[name] = first_line(failure)
            return None
        self.found.gpu_us += us
        if not error <= 1:  # NaN is wrong too
            self.found.wrong[name] = f"its error is {error:.3g} times what is allowed"
            return None
        return us

    def coarse(self, once: Mapping[str, float]) -> tuple[dict[str, float], int]:
        """Microseconds of the hopeful ones in short graphs, and how many launches each graph holds."""
        names = hopeful(once, LAUNCH_US)
        while len(names) > 1 and self._coarse_us(names, once) > COARSE_SHARE * self.left:
            names.pop()
        launches = launches_of(min(once.values()), self.trial.sets)
        one_us = self._coarse_us(names, once)
        if launches * one_us > COARSE_SHARE * self.left:
            launches = int(COARSE_SHARE * self.left / one_us)
        if launches < 1:
            raise OverBudget(f"one pass takes {one_us / 1e3:.1f} ms, and the budget has {self.left / 1e3:.1f} ms left")
        self.trial.prepare(names, launches)
        rounds = self._replay(names, COARSE_ROUNDS, launches)
        return {name: min(us) for name, us in rounds.items()}, launches

    def _coarse_us(self, names: Sequence[str], once: Mapping[str, float]) -> float:
        """Microseconds that the coarse pass takes for each launch of a graph; one is replayed in front."""
        return COARSE_ROUNDS * sum(once[name] for name in names) + once[names[0]]

    def final(self, coarse: Mapping[str, float], launches: int) -> dict[str, Measured]:
        """Median and spread of the best."""
        names = finalists(coarse, self.keep)
        while len(names) > 1 and self._rounds(sum(coarse[name] for name in names) * launches) < FEW_ROUNDS:
            names.pop()
        rounds: dict[str, list[float]] = {name: [] for name in names}
        while True:
            count = self._rounds(sum(coarse[name] for name in names) * launches)
            if count < FEW_ROUNDS and any(rounds.values()):
                break
            if count < FEW_ROUNDS:
                raise OverBudget(f"{len(names)} candidates are close, and the budget has {self.left / 1e3:.1f} ms left")
            for name, us in self._replay(names, count, launches).items():
                rounds[name] += us
            best = min(rounds, key=lambda name: statistics.median(rounds[name]))
            if spread_of(rounds[best]) <= FINE or len(rounds[best]) >= MOST_ROUNDS or count < ROUNDS:
                break
        return {name: Measured(statistics.median(us), spread_of(us)) for name, us in rounds.items()}

    def _rounds(self, round_us: float) -> int:
        wanted = FEW_ROUNDS if round_us > LONG_ROUND_US else ROUNDS
        # One more is replayed in front.
        return wanted if self.left == math.inf else min(wanted, int(self.left / round_us) - 1)

    def _replay(self, names: Sequence[str], rounds: int, launches: int) -> Mapping[str, Sequence[float]]:
        taken = self.trial.replay(names, rounds)
        in_front = taken[names[0]][0]
        self.found.gpu_us += launches * (in_front + sum(sum(us) for us in taken.values()))
        return taken


def hopeful(times: Mapping[str, float], more_us: float = 0.0) -> list[str]:
    """The names that are not much slower than the best, fastest first."""
    limit = HOPELESS * min(times.values()) + more_us if times else 0.0
    return sorted((name for name, us in times.items() if us <= limit), key=lambda name: (times[name], name))


def finalists(coarse: Mapping[str, float], keep: str) -> list[str]:
    """Those that are close to the best, at most `MOST_FINALISTS`, and ``keep`` where it is close too."""
    limit = FINAL * min(coarse.values())
    close = sorted((name for name, us in coarse.items() if us <= limit), key=lambda name: (coarse[name], name))
    names = close[:MOST_FINALISTS]
    return names if keep in names or keep not in close else [*names[:-1], keep]


def compare(trial: Trial, names: Sequence[str], keep: str = "", budget_us: float = math.inf) -> Found:
    """Check and time the candidates of one problem.

    A candidate whose result is wrong is never timed. One that was dropped has the time that dropped it.

    Args:
        trial: the candidates on a device.
        names: of the candidates, the most promising first.
        keep: the default, which is measured as carefully as the best wherever it is close to them.
        budget_us: time of the GPU that may be taken.

    Raises:
        OverBudget: the budget has no time for a comparison.
        DriverError: a kernel's fault.
    """
    comparison = Comparison(trial, keep, budget_us)
    once = comparison.check(names)
    if not once:
        return comparison.found
    coarse, launches = comparison.coarse(once)
    final = comparison.final(coarse, launches)
    if _is_noisy(final) and comparison.left == math.inf:
        final = comparison.final(coarse, launches)
    found = comparison.found
    found.noisy = _is_noisy(final)
    found.times = {name: Measured(us) for name, us in once.items()}
    found.times |= {name: Measured(us) for name, us in coarse.items()} | final
    return found


def _is_noisy(final: Mapping[str, Measured]) -> bool:
    return min(final.values()).spread > NOISY
