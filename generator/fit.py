"""Coefficients of the cost model from TuningRecords, and the file that keeps them: ``tuning/<device>.cost.json``."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import cost
from .cost import Coefficients
from .errors import TableError
from .ranking import Regret, Times
from .records import Gpu, Key
from .variant import Variant
from .work import BYTES, Device, Work, work

SCHEMA = 1
# Fewer problems than this say less about a variant than its family's row.
LEAST_PROBLEMS = 6
# A coefficient that the records do not determine stays near its prior: standard deviations of logarithms. Nearer where
# the prior is that of variants with the same Config, which differ in layout, alignment, or the kind of 16-bit float.
PRIOR_SPREAD = (0.5, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5, 1.5, 1.0, 0.1, 0.7)
TWINS_SPREAD = 0.4
PRIOR_WEIGHT = 0.05
# Beyond this error, in logarithms, a time counts linearly: outliers must not bend the model.
LINEAR_FROM = 0.3
# A variant that is far from the best of a problem is never chosen there: its time matters less.
FAR, FAR_WEIGHT = 1.5, 0.5
COLUMNS = [*Coefficients._fields, "problems", "error"]
STEPS, DAMPING, ENOUGH = 60, 1e-2, 1e-7
DIFFERENCE = 1e-4

# Parts into which (n, k) pairs are dealt to find the regret: each is predicted from the others.
FOLDS = 5

Costs = Mapping[str, Mapping[str, Any]]
"""The families' rows of variants.toml."""
Resident = Mapping[str, int]
"""Blocks of a variant that an SM holds at once, by its name."""
Point = tuple[Work, float, float]
"""Work, measured microseconds, weight."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A variant's coefficients on a GPU, from so many problems; ``error`` is the mean relative error of its times."""

    coefficients: Coefficients
    problems: int
    error: float


@dataclass(frozen=True, slots=True)
class Fits:
    """What was fitted of a GPU; ``regret`` is that of choosing by it for an (n, k) that was held out."""

    variants: Mapping[str, Fit] = field(default_factory=dict)
    regret: Regret | None = None

    def coefficients(self, name: str) -> Coefficients | None:
        """Those of a variant, or None where it was not fitted."""
        found = self.variants.get(name)
        return found.coefficients if found else None


def fit(
    problems: Mapping[Key, Times], variants: Mapping[str, Variant], resident: Resident, costs: Costs, device: Device
) -> dict[str, Fit]:
    """Fit each variant that was measured often enough, or of whose twins some were.

    Args:
        problems: measured on one GPU.
        variants: by name; times of others are left out.
        resident: where the driver said it; of other variants it is estimated.
        costs: the families' rows of variants.toml, the prior.
        device: the GPU.
    """
    prior = {
        name: _held(cost.assumed(variant, costs[variant.family], device), resident.get(name))
        for name, variant in variants.items()
    }
    points: dict[str, list[Point]] = {}
    for key, times in sorted(problems.items()):
        best = min(times.values())
        for name, us in times.items():
            if name in variants:
                weight = 1.0 if us < FAR * best else FAR_WEIGHT
                todo = work(variants[name], key, device, prior[name].resident)
                points.setdefault(name, []).append((todo, us, weight))
    alone = {
        name: _fit(found, prior[name], PRIOR_SPREAD, device)
        for name, found in sorted(points.items())
        if len(found) >= LEAST_PROBLEMS
    }
    near = [spread * TWINS_SPREAD for spread in PRIOR_SPREAD]
    fitted = dict(alone)
    for name in sorted(points):
        twins = [one for other, one in alone.items() if other != name and _twins(variants[other], variants[name])]
        if twins:
            fitted[name] = _fit(points[name], _held(_mean(twins), prior[name].resident), near, device)
    return dict(sorted(fitted.items()))


def _held(c: Coefficients, resident: int | None) -> Coefficients:
    return c if resident is None else c._replace(resident=resident)


def _twins(a: Variant, b: Variant) -> bool:
    return (a.family, a.config, BYTES[a.dtype]) == (b.family, b.config, BYTES[b.dtype])


def _mean(fits: Sequence[Fit]) -> Coefficients:
    """The geometric mean of coefficients, each counted as often as problems were measured."""
    total = sum(one.problems for one in fits)
    columns = zip(*(one.coefficients for one in fits), strict=True)
    weights = [one.problems / total for one in fits]
    logs = [sum(w * math.log(value) for w, value in zip(weights, column, strict=True)) for column in columns]
    return Coefficients._make(map(math.exp, logs))


def _fit(points: Sequence[Point], prior: Coefficients, spreads: Sequence[float], device: Device) -> Fit:
    """Damped least squares (Levenberg 1944, Marquardt 1963) on the logarithms of coefficients and times."""
    import numpy as np

    start, spread = np.log(np.array(prior[:-1])), np.array(spreads)
    works, times, weights = zip(*points, strict=True)
    columns: list[Any] = [np.array(column, float) for column in zip(*works, strict=True)]
    all_work = Work(*columns)
    measured, weight = np.log(np.array(times)), np.array(weights)

    def off(c: Coefficients) -> Any:
        return np.log(cost.time_us(all_work, device, c)) - measured

    def errors(logs: Any) -> Any:
        """Beyond `LINEAR_FROM` the square of an error grows linearly (Huber 1964)."""
        found = off(Coefficients._make((*np.exp(logs), prior.resident)))
        beyond = np.sqrt(np.maximum(2 * LINEAR_FROM * abs(found) - LINEAR_FROM**2, 0))
        bent = np.where(abs(found) <= LINEAR_FROM, found, np.sign(found) * beyond)
        return np.concatenate([weight * bent, (logs - start) / spread * PRIOR_WEIGHT])

    logs, damping = start, DAMPING
    residual = errors(logs)
    for _ in range(STEPS):
        slopes = np.stack([errors(logs + DIFFERENCE * axis) - residual for axis in np.eye(len(logs))], 1) / DIFFERENCE
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(logs)), -slopes.T @ residual)
        tried = logs + np.clip(step, -1, 1)
        found = errors(tried)
        gained = residual @ residual - found @ found
        damping = damping / 3 if gained > 0 else damping * 4
        if gained > 0:
            logs, residual = tried, found
        if 0 < gained < ENOUGH or damping > 1e6:
            break
    c = Coefficients._make((*(float(f"{value:.4g}") for value in np.exp(logs)), prior.resident))
    return Fit(c, len(points), round(float(np.expm1(abs(off(c)).mean())), 4))


def held_out(
    problems: Mapping[Key, Times],
    variants: Mapping[str, Variant],
    resident: Resident,
    costs: Costs,
    device: Device,
    folds: int = FOLDS,
    deal: int = 0,
) -> dict[Key, str]:
    """For each problem, the variant that a model chooses that was fitted without any problem of its (n, k).

    The pairs are dealt in order, or, with another ``deal`` than 0, in a random order of that number.
    """
    pairs = sorted({(key.n, key.k) for key in problems})
    if deal:
        random.Random(deal).shuffle(pairs)
    part = {pair: i % folds for i, pair in enumerate(pairs)}
    found: dict[Key, str] = {}
    for fold in range(folds):
        others = {key: times for key, times in problems.items() if part[key.n, key.k] != fold}
        fitted = Fits(fit(others, variants, resident, costs, device))
        for key in problems.keys() - others.keys():
            found[key] = cheapest(key, problems[key], variants, costs, device, fitted)
    return found


def cheapest(
    key: Key, names: Iterable[str], variants: Mapping[str, Variant], costs: Costs, device: Device, fitted: Fits
) -> str:
    """The variant that the model chooses for a problem, ranked as the runtime ranks."""

    def rank(variant: Variant) -> tuple[float, int, str]:
        us = cost.predict(variant, key, device, costs[variant.family], fitted.coefficients(variant.name))
        return us, -variant.align, variant.name

    def held(variant: Variant) -> int:
        return cost.resident(variant, device, fitted.coefficients(variant.name))

    return min(cost.contenders((variants[name] for name in names), held), key=rank).name


def dump(gpu: Gpu, fits: Fits) -> str:
    """The text of a file of coefficients: one line per variant."""
    head = {"schema": SCHEMA, "gpu": str(gpu), "columns": COLUMNS, "regret": fits.regret and fits.regret._asdict()}
    rows = {name: [*one.coefficients, one.problems, one.error] for name, one in fits.variants.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    return json.dumps(head)[:-1] + ', "variants": {\n' + ",\n".join(lines) + "\n}}\n"


def read(folder: Path) -> dict[Gpu, Fits]:
    """The coefficients in a folder of TuningRecords, by GPU."""
    found: dict[Gpu, Fits] = {}
    for path in sorted(folder.glob("*.cost.json")):
        gpu, fits = _parse(path)
        if gpu in found:
            raise TableError(f"{path}: another file has coefficients of {gpu} too; delete one")
        found[gpu] = fits
    return found


def _parse(path: Path) -> tuple[Gpu, Fits]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA or data["columns"] != COLUMNS:
            raise ValueError(f"schema {data['schema']} with columns {data['columns']} is not what this generator reads")
        variants = {name: _row(row) for name, row in data["variants"].items()}
        return Gpu.parse(data["gpu"]), Fits(variants, data["regret"] and Regret(**data["regret"]))
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path}: {error!r}; fit again with `python -m generator fit`") from None


def _row(row: Sequence[Any]) -> Fit:
    *values, problems, error = row
    if len(row) != len(COLUMNS) or not all(0 < value < math.inf for value in (*values, problems)):
        raise ValueError(f"{row} is not a row of {len(COLUMNS)} positive numbers")
    *fitted, resident = values
    return Fit(Coefficients._make((*map(float, fitted), int(resident))), problems, error)
