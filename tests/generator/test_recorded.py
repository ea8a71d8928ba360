"""The choice against what was measured on an H200: the records of this repository, no GPU needed.

`benchmarks/results/held_out.jsonl` has problems whose (n, k) is in no record of `tuning/`.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from generator import fit, records, table
from generator.expand import expand, points
from generator.load import ROOT, load
from generator.ranking import Merged, Regret, Times, best, merge, regret
from generator.records import Key
from generator.render import content_hash

TUNING, RESULTS = ROOT / "tuning", ROOT / "benchmarks" / "results"
SPEC = load()
KNOWN = {point.variant.name: point.variant for point in points(SPEC)}
CORE = {variant.name for variant in expand(SPEC, "sm_90a").variants}
FALLBACK = frozenset(name for name in CORE if KNOWN[name].family == "gemm_naive")


@cache
def merged(*names: Path, fallback: frozenset[str] = frozenset()) -> Merged:
    """What records say of the variants of a wheel, as they are now."""
    hashes = {name: content_hash(variant) for name, variant in KNOWN.items()}
    taken = [record for path in names for record in records.read_file(path)]
    found = merge(taken, lambda gpu: CORE, hashes, fallback)
    assert found.dropped["of variants that have changed since"] == 0, "measure again: `tilery tune`"
    return found


def measured(*names: Path) -> dict[Key, Times]:
    """Times of the variants of a wheel, where it has another one than the fallback."""
    (times,) = merged(*names, fallback=FALLBACK).times.values()
    return {key: us for key, us in times.items() if us.keys() - FALLBACK}


def shipped() -> tuple[records.Gpu, fit.Fits]:
    ((gpu, fits),) = fit.read(TUNING).items()
    return gpu, fits


def regrets(times: dict[Key, Times], dtype: str) -> Regret:
    gpu, fits = shipped()
    model = table.chooser(SPEC, KNOWN, gpu, fits)
    chosen = {key: model(key, us) for key, us in times.items() if key.dtype == dtype}
    return regret([times[key][name] / min(times[key].values()) for key, name in chosen.items()])


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_problems_that_were_never_tuned(dtype: str) -> None:
    found = regrets(measured(RESULTS / "held_out.jsonl"), dtype)
    assert found.problems > 150
    assert found.geomean <= 1.02
    assert found.p90 <= 1.06
    assert found.max <= 1.25


PUBLIC = ("deepbench_training", "hipblaslt", "llm", "odd", "split_k", "square")


def public() -> set[tuple[int, int, int, str]]:
    """The rows of the public lists of shapes; none of them has a batch."""
    found = set()
    for name in PUBLIC:
        with (ROOT / "benchmarks" / "shapes" / f"{name}.csv").open() as file:
            found |= {(int(row["m"]), int(row["n"]), int(row["k"]), row["layout"]) for row in csv.DictReader(file)}
    return found


@pytest.mark.parametrize(("which", "least"), [("all", 6000), ("public", 1300)])
def test_halves_of_the_records_predict_each_other(which: str, least: int) -> None:
    """All of them, and those of the public lists in three dtypes, which then know of no other problem."""
    costs = {name: family.cost for name, family in SPEC.families.items()}
    rows, found = public(), merged(TUNING / "nvidia_h200.jsonl")
    ((gpu, every),) = found.times.items()
    times = {
        key: us
        for key, us in every.items()
        if which == "all" or ((key.m, key.n, key.k, key.layout) in rows and key.dtype in ("bf16", "f16", "f32"))
    }
    chosen = fit.held_out(times, KNOWN, found.resident[gpu], costs, table.device_of(SPEC, gpu), folds=2)
    losses = regret([times[key][name] / min(times[key].values()) for key, name in chosen.items()])
    assert losses.problems > least
    assert losses.geomean <= 1.02
    assert losses.p90 <= 1.06
    assert losses.max <= 1.25


def test_no_held_out_pair_was_tuned() -> None:
    tuned = {(key.n, key.k) for key in measured(TUNING / "nvidia_h200.jsonl")}
    held_out = {(key.n, key.k) for key in measured(RESULTS / "held_out.jsonl")}
    assert len(held_out) > 70
    assert not tuned & held_out


def test_two_tunes_agree() -> None:
    gpu, fits = shipped()
    model = table.chooser(SPEC, KNOWN, gpu, fits)
    first, again = (measured(RESULTS / name) for name in ("held_out.jsonl", "held_out_again.jsonl"))
    both = first.keys() & again.keys()
    changed = [key for key in both if best(key, first[key], model)[0] != best(key, again[key], model)[0]]
    assert len(both) > 500
    assert len(changed) <= 0.05 * len(both)


def test_tuned_problems_get_what_was_fastest() -> None:
    times = measured(TUNING / "nvidia_h200.jsonl")
    gpu, fits = shipped()
    model = table.chooser(SPEC, KNOWN, gpu, fits)
    found = regret([us[best(key, us, model)[0]] / min(us.values()) for key, us in times.items()])
    assert found.problems > 2500
    assert found.geomean <= 1.01
    assert found.max <= 1 + records.NOISE + 1e-9


def test_the_committed_coefficients_are_those_of_the_committed_records() -> None:
    """Of one family and dtype, as a fit of all takes long."""
    gpu, fits = shipped()
    costs = {name: family.cost for name, family in SPEC.families.items()}
    hashes = {name: content_hash(variant) for name, variant in KNOWN.items()}
    taken = records.read_file(TUNING / "nvidia_h200.jsonl")
    names = [name for name in KNOWN if name.startswith("gemm_mma_s8_")]
    found = merge(taken, lambda gpu: KNOWN.keys(), hashes)
    ((one, times),) = found.times.items()
    few = {name: KNOWN[name] for name in names}
    again = fit.fit(times, few, found.resident[one], costs, table.device_of(SPEC, gpu))
    assert again.keys() == {name for name in names if name in fits.variants}
    assert len(again) > 15
    for name, one in again.items():
        assert one.problems == fits.variants[name].problems
        assert one.coefficients == pytest.approx(fits.variants[name].coefficients, rel=0.05)
