"""How good the choice is: time of the chosen variant over that of the best, from records that `tilery tune` made.

tilery tune --like held_out --dtype bf16 --dtype f16 --dtype f32 --jit --out benchmarks/results/held_out.jsonl
python benchmarks/regret.py benchmarks/results/held_out.jsonl --again benchmarks/results/held_out_again.jsonl
python benchmarks/regret.py --halves tuning/nvidia_h200.jsonl [--deals 6]

Measuring needs the GPU; this script does not: it asks the installed pack what it would choose, and reads what each
variant took. Its best is the best of what the pack has code for; ``all`` also counts what NVRTC would have to compile.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tilery.device import DeviceInfo
from tilery.dispatch import choose
from tilery.generator import fit, records
from tilery.generator.archs import HOST
from tilery.generator.ranking import regret
from tilery.generator.records import NOISE, Gpu, Key, Record, ranked, same_silicon
from tilery.jit import Toolchain
from tilery.lookup import coefficients, record_key
from tilery.pack import Pack, builtin
from tilery.policy import Policy
from tilery.problem import Problem
from tilery.tune import shapes

# The issue that asked for it set these: on shapes that were never tuned, and on those that were.
BOUNDS = {"geomean": 1.02, "p90": 1.06, "max": 1.25}
# The lists and dtypes that the issue names; the other records have random extremes, batches, int8 and tf32.
PUBLIC = ("deepbench_training", "hipblaslt", "llm", "odd", "split_k", "square")
PUBLIC_DTYPES = ("bf16", "f16", "f32")
TUNED_GEOMEAN = 1.01
MOST_FLIPS = 0.05
# Any NVRTC will do: the choice asks whether there is one, and what it compiles for.
NVRTC = Toolchain("13.0", "", (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121))


@dataclass(frozen=True)
class Choice:
    """A line of the CSV."""

    dtype: str
    layout: str
    align: int
    m: int
    n: int
    k: int
    batch: int
    tier: str
    chosen: str
    best: str
    us_chosen: float
    us_best: float
    regret: float
    regret_all: float

    def __str__(self) -> str:
        shape = f"{self.m}x{self.n}x{self.k}" + (f" b{self.batch}" if self.batch > 1 else "")
        return f"{self.regret:6.3f}  {self.dtype} {self.layout} {shape}: {self.tier} {self.chosen}, best {self.best}"


def problem_of(key: Key) -> Problem:
    """The Problem of a record without an epilogue."""
    tf32 = key.dtype == "tf32"
    dtype, precision = ("f32", "tf32") if tf32 else (key.dtype, "ieee")
    sizes = (key.m, key.n, key.k, key.batch)
    return Problem(key.op, *sizes, dtype, key.out_dtype, key.layout, key.align, precision)


def device_of(gpu: Gpu, pack: Pack) -> DeviceInfo:
    """The GPU that stands for the silicon of a record."""
    return next(arch.gpu for arch in pack.archs.values() if same_silicon(arch.gpu.gpu, gpu))


def measured(record: Record, pack: Pack) -> dict[str, float]:
    """Microseconds of the variants that are still as they were measured."""
    return {name: time.us for name, time in record.times.items() if pack.hashes.get(name, "").startswith(time.hash)}


def built(pack: Pack) -> set[str]:
    """The variants that have code for GPUs in the pack."""
    gpus = (images for arch, images in pack.images.items() if arch != HOST)
    return {name for images in gpus for image in images.values() for name in image.variants}


def choice(record: Record, pack: Pack, there: set[str]) -> Choice:
    """What the pack chooses for the problem of a record, and what that costs."""
    decision = choose(problem_of(record.key), device_of(record.gpu, pack), pack, Policy(), toolchain=lambda: NVRTC)
    us, chosen = measured(record, pack), decision.variant.name
    if chosen not in us:
        raise SystemExit(f"{record.place}: {chosen} is chosen and was not measured: tune again, with --jit")
    rivals = us if decision.source == "jit" else {name: time for name, time in us.items() if name in there}
    best = min(rivals, key=lambda name: rivals[name])
    k = record.key
    losses = (us[chosen] / us[best], us[chosen] / min(us.values()))
    shape = (k.dtype, k.layout, k.align, k.m, k.n, k.k, k.batch)
    return Choice(*shape, decision.tier, chosen, best, us[chosen], us[best], *losses)


def only(us: Mapping[str, float], there: set[str]) -> dict[str, float]:
    """The times of some variants."""
    return {name: time for name, time in us.items() if name in there}


def winners(taken: Iterable[Record], pack: Pack) -> dict[Key, str]:
    """The variant that a record of each problem would let serve: inside the noise that of the shipped model."""
    there, found = built(pack), {}
    for record in taken:
        if us := only(measured(record, pack), there):
            device = device_of(record.gpu, pack)
            known = {name: fit.Fit(c, 0, 0.0) for name, c in coefficients(pack, device).items()}
            default = fit.cheapest(record.key, us, pack.variants, pack.cost, device, fit.Fits(known))
            found[record.key] = ranked(us, default)[0]
    return found


class Report:
    """Lines to read, and whether all bounds hold."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ok = True

    def tell(self, text: str, ok: bool = True) -> None:
        self.lines.append(text)
        self.ok = self.ok and ok

    def regrets(self, title: str, losses: Sequence[float], bounds: Mapping[str, float] | None = None) -> None:
        """The statistics of some regrets, against bounds."""
        found, bounds = regret(losses), bounds or {}
        top = sum(loss <= 1 + NOISE for loss in losses) / len(losses)
        over = [
            f"{name} {getattr(found, name)} > {most}" for name, most in bounds.items() if getattr(found, name) > most
        ]
        text = f"{title:<28} {found.problems:4} problems: geomean {found.geomean:.4f}, P90 {found.p90:.3f}, "
        above = sum(loss > BOUNDS["max"] for loss in losses)
        text += f"max {found.max:.3f}, {above} above {BOUNDS['max']}, best or in the noise {top:.0%}"
        self.tell(
            text + (f"; OVER ITS BOUND: {', '.join(over)}" if over else "; within bounds" if bounds else ""), not over
        )


def choices(path: Path, pack: Pack, report: Report) -> list[Choice]:
    """What the pack chooses for each record of a file."""
    there = built(pack)
    rows = [choice(record, pack, there) for record in records.read_file(path)]
    for tier in sorted({row.tier for row in rows}):
        losses = [row.regret for row in rows if row.tier == tier]
        report.regrets(f"tier {tier}", losses, {"geomean": TUNED_GEOMEAN} if tier == "exact" else BOUNDS)
    for dtype in sorted({row.dtype for row in rows}):
        report.regrets(f"dtype {dtype}", [row.regret for row in rows if row.dtype == dtype])
    report.regrets("all", [row.regret for row in rows])
    report.regrets("all, against JIT variants too", [row.regret_all for row in rows])
    return rows


def flips(first: Path, again: Path, pack: Pack, report: Report) -> None:
    """In how many of the problems measured twice another variant would serve."""
    one, other = (winners(records.read_file(path), pack) for path in (first, again))
    both = one.keys() & other.keys()
    changed = sum(one[key] != other[key] for key in both)
    ok = changed <= MOST_FLIPS * len(both)
    report.tell(f"winners of two tunes differ in {changed} of {len(both)}: {changed / len(both):.1%}, bound 5 %", ok)


def halves(taken: Sequence[Record], pack: Pack, report: Report, deals: int) -> None:
    """The regret of each problem, chosen for by a model that was fitted to the other half of the (n, k) pairs.

    The pairs are dealt in order, and in so many random orders more.
    """
    there, device = built(pack), device_of(taken[0].gpu, pack)
    problems = {record.key: us for record in taken if (us := only(measured(record, pack), there))}
    resident = {name: time.resident for record in taken for name, time in record.times.items()}
    public = {record_key(problem) for problem in shapes.problems([], PUBLIC, PUBLIC_DTYPES)}

    alone = {key: us for key, us in problems.items() if key in public}

    def losses(asked: Mapping[Key, Mapping[str, float]], deal: int) -> dict[Key, float]:
        chosen = fit.held_out(asked, pack.variants, resident, pack.cost, device, folds=2, deal=deal)
        return {key: asked[key][name] / min(asked[key].values()) for key, name in chosen.items()}

    for deal in range(deals + 1):
        title, every = f"deal {deal}, " if deals else "halves, ", losses(problems, deal)
        report.regrets(f"{title}all records", list(every.values()), BOUNDS)
        report.regrets(f"{title}public lists", [loss for key, loss in every.items() if key in public], BOUNDS)
        report.regrets(f"{title}public lists alone", list(losses(alone, deal).values()), BOUNDS)


def write(path: Path, rows: Sequence[Choice], lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# command: {shlex.join(['python', *sys.argv])}\n")
        file.writelines(f"# {line}\n" for line in lines)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Choice)])
        writer.writerows([f"{v:.5g}" if isinstance(v, float) else v for v in astuple(row)] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="?", help="measured problems, of which the pack chooses")
    parser.add_argument("--again", type=Path, help="a second measurement of the same problems, for the winners' flips")
    parser.add_argument("--halves", type=Path, help="records whose halves predict each other")
    parser.add_argument("--deals", type=int, default=0, help="random halves more")
    parser.add_argument("--worst", type=int, default=10, help="how many of the worst choices are shown")
    parser.add_argument("--out", type=Path, help="the CSV to write")
    args = parser.parse_args()
    pack, report, rows = builtin(), Report(), []
    if args.records:
        rows = choices(args.records, pack, report)
        for row in sorted(rows, key=lambda row: -row.regret)[: args.worst]:
            print(row)
    if args.records and args.again:
        flips(args.records, args.again, pack, report)
    if args.halves:
        halves(list(records.read_file(args.halves)), pack, report, args.deals)
    print("\n".join(report.lines))
    if args.out:
        write(args.out, rows, report.lines)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
