"""The fewest variants that keep the regret of measured problems under a bound, and what each one dropped costs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .ranking import Regret, Times, regret
from .variant import Variant


@dataclass(frozen=True, slots=True)
class Drop:
    """A variant left out, and the regret of all measured problems without it and those dropped before."""

    name: str
    bytes: int
    regret: Regret


@dataclass(frozen=True, slots=True)
class Selection:
    """What was kept and dropped.

    Attributes:
        kept: names, in order.
        drops: in the order of dropping, the cheapest first.
        unmeasured: names that no record has: kept, as nothing is known of them.
        bytes: size of what is kept.
        regret: of what is kept, or None where nothing was measured.
    """

    kept: tuple[str, ...]
    drops: tuple[Drop, ...]
    unmeasured: tuple[str, ...]
    bytes: int
    regret: Regret | None


def select(
    variants: Mapping[str, Variant],
    problems: Sequence[Times],
    sizes: Mapping[str, int],
    most_regret: float,
    most_bytes: float = math.inf,
    needed: Iterable[str] = (),
) -> Selection:
    """Drop the variant that costs least, again and again, while regret stays within bounds or size does not.

    Greedy: each drop is the best one then, not part of the best set. The last variant of a dtype, layout and alignment
    stays, so that what was covered is covered.

    Args:
        variants: what may be kept or dropped, by name.
        problems: microseconds by variant of each measured problem.
        sizes: bytes by name.
        most_regret: bound on the geometric mean of time over the best time among all variants.
        most_bytes: bound on the size; where both cannot be kept, this one is.
        needed: names that are never dropped.
    """
    measured = [{n: us for n, us in times.items() if n in variants} for times in problems]
    measured = [times for times in measured if times]
    kept, known = set(variants), {name for times in measured for name in times}
    best = [min(times.values()) for times in measured]
    drops: list[Drop] = []
    while True:
        alone = _alone(variants, kept) | set(needed)
        options = [(_regrets(measured, best, kept - {name}), name) for name in sorted(kept & known - alone)]
        options = [(found, name) for found, name in options if found]
        if not options:
            break
        found, name = min(options, key=lambda option: (math.fsum(map(math.log, option[0])), -sizes[option[1]]))
        after = regret(found)
        if after.geomean > most_regret and sum(sizes[n] for n in kept) <= most_bytes:
            break
        kept.discard(name)
        drops.append(Drop(name, sizes[name], after))
    left = _regrets(measured, best, kept)
    return Selection(
        tuple(sorted(kept)),
        tuple(drops),
        tuple(sorted(kept - known)),
        sum(sizes[name] for name in kept),
        regret(left) if left else None,
    )


def sizes(variants: Iterable[Variant], images: Path | None) -> dict[str, int]:
    """Bytes by name: an equal share of the variant's image files, 0 where there are none."""
    groups: dict[str, list[str]] = defaultdict(list)
    for variant in variants:
        groups[variant.image].append(variant.name)
    found: dict[str, int] = {}
    for image, names in groups.items():
        files = images.glob(f"*/{image}.fatbin") if images else ()
        found |= dict.fromkeys(names, sum(file.stat().st_size for file in files) // len(names))
    return found


def _alone(variants: Mapping[str, Variant], kept: Iterable[str]) -> set[str]:
    """The kept variants that are the last of their dtype, layout and alignment."""
    groups: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name in kept:
        variant = variants[name]
        groups[variant.dtype, variant.layout, variant.align].append(name)
    return {names[0] for names in groups.values() if len(names) == 1}


def _regrets(measured: Sequence[Times], best: Sequence[float], kept: set[str]) -> list[float]:
    """The regret of each problem; [] where one is left without a measured variant."""
    found = [min((us for n, us in times.items() if n in kept), default=math.inf) for times in measured]
    return [] if math.inf in found else [us / least for us, least in zip(found, best, strict=True)]
