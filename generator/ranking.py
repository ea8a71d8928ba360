"""TuningRecords to what the table holds: exact rankings, buckets that measurement bears out, and the regret of each.

Regret is the time of what would be chosen over the time of the best that was measured, at least 1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .bucket import bucket
from .records import NOISE, Gpu, Key, Record, ranked, same_silicon

# Names in a row of the table. The first serves; the others stand by for an image that cannot be loaded.
KEPT = 4
# A bucket serves where so many of its problems were measured, and the choice of the others is good for each of them.
LEAST_PROBLEMS = 3
WORST_TRANSFER = 1.06

Times = Mapping[str, float]
"""Microseconds by variant."""
Choice = Callable[[Key, Collection[str]], str]
"""What the cost model would choose among some variants for a problem."""


class Row(NamedTuple):
    """A row of the table: a bucket of problems on a GPU, and the variants for it, best first."""

    op: str
    dtype: str
    layout: str
    align: int
    bucket_m: int
    bucket_n: int
    bucket_k: int
    gpu: str
    names: tuple[str, ...]


class Regret(NamedTuple):
    """Regrets of some problems: geometric mean, 90th percentile, maximum."""

    problems: int
    geomean: float
    p90: float
    max: float


@dataclass(slots=True)
class Merged:
    """What records say of the variants of a build.

    Attributes:
        times: by GPU and problem.
        resident: by GPU, blocks of a variant that an SM holds at once.
        dropped: how many times were left out, by reason.
    """

    times: dict[Gpu, dict[Key, dict[str, float]]] = field(default_factory=dict)
    resident: dict[Gpu, dict[str, int]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)


def merge(
    records: Iterable[Record],
    available: Callable[[Gpu], Collection[str]],
    hashes: Mapping[str, str],
    fallback: Collection[str] = (),
) -> Merged:
    """Times of the variants that a build has, as they are now; each other time is dropped and counted by its reason.

    Args:
        records: a variant that is measured twice for a problem keeps the later time. GPUs of one silicon are one.
        available: the variants that the build has for a GPU.
        hashes: content hash of every declared variant. A time of another content is of another kernel.
        fallback: variants that count alone only where they beat all that was measured beside them: elsewhere the cost
            model or the JIT has something better than the one that is left.
    """
    merged = Merged()
    for record in records:
        gpu = next((one for one in merged.times if same_silicon(one, record.gpu)), record.gpu)
        there, kept = available(gpu), {}
        for name, time in record.times.items():
            if name not in hashes:
                merged.dropped["of variants that nothing declares"] += 1
            elif not hashes[name].startswith(time.hash):
                merged.dropped["of variants that have changed since"] += 1
            elif name not in there:
                merged.dropped["of variants that this build does not have"] += 1
            else:
                kept[name] = time.us
                merged.resident.setdefault(gpu, {})[name] = time.resident
        if kept.keys() - fallback or min(kept.values(), default=0.0) == min(t.us for t in record.times.values()):
            merged.times.setdefault(gpu, {}).setdefault(record.key, {}).update(kept)
        elif kept:
            merged.dropped["of a fallback that was not the fastest and would stand alone"] += len(kept)
    return merged


def exact(times: Mapping[Key, Times], model: Choice) -> dict[Key, tuple[tuple[str, float], ...]]:
    """The ranking of each problem with its times; inside the noise what the model would choose anyway wins."""
    return {key: tuple((name, us[name]) for name in best(key, us, model)) for key, us in sorted(times.items())}


def best(key: Key, us: Times, model: Choice) -> tuple[str, ...]:
    """The names that a row keeps, best first."""
    return ranked(us, model(key, us))[:KEPT]


def buckets(gpu: Gpu, times: Mapping[Key, Times], model: Choice) -> tuple[list[Row], Regret | None]:
    """The buckets that serve a GPU, and their transfer regret: each problem served by what the others of it say.

    A bucket serves only where that is nowhere bad, and on the whole better than the model by more than the noise.
    """
    groups: dict[tuple[Any, ...], list[tuple[Key, Times]]] = defaultdict(list)
    for key, us in sorted(times.items()):
        groups[(*key[:4], *map(bucket, (key.m, key.n, key.k)))].append((key, us))
    rows, regrets = [], []
    for pattern, group in sorted(groups.items()):
        transfer = _transfer([us for _, us in group])
        by_model = [us[model(key, us)] / min(us.values()) for key, us in group]
        better = math.prod(transfer) * (1 + NOISE) ** len(group) < math.prod(by_model)
        if transfer and max(transfer) <= WORST_TRANSFER and better:
            rows.append(Row._make((*pattern, str(gpu), ranked_over([us for _, us in group]))))
            regrets += transfer
    return rows, regret(regrets) if regrets else None


def _transfer(group: Sequence[Times]) -> list[float]:
    """The regret of each problem of a bucket, chosen for by the others; [] where too little was measured."""
    if len(group) < LEAST_PROBLEMS:
        return []
    found = []
    for i, us in enumerate(group):
        names = [name for name in ranked_over([*group[:i], *group[i + 1 :]]) if name in us]
        if not names:
            return []
        found.append(us[names[0]] / min(us.values()))
    return found


def ranked_over(group: Sequence[Times]) -> tuple[str, ...]:
    """Names measured on every problem, by the geometric mean of time over the problem's best time."""
    common = set.intersection(*(set(us) for us in group))
    slowdown = {name: math.fsum(math.log(us[name] / min(us.values())) for us in group) for name in common}
    return tuple(sorted(common, key=lambda name: (slowdown[name], name))[:KEPT])


def regret(values: Sequence[float]) -> Regret:
    """The statistics of some regrets.

    >>> regret([1.0, 1.0, 1.21])
    Regret(problems=3, geomean=1.0656, p90=1.21, max=1.21)
    """
    ordered = sorted(values)
    mean = math.exp(math.fsum(map(math.log, ordered)) / len(ordered))
    p90 = ordered[max(0, math.ceil(0.9 * len(ordered)) - 1)]
    return Regret(len(ordered), round(mean, 4), round(p90, 4), round(ordered[-1], 4))
