"""tilery.gemm beside torch.mm on the files of shapes/, in one interleaved run; see README.md beside this file.

python benchmarks/gemm.py --dtype bf16 --shapes llm odd square --out benchmarks/results/bf16.csv
python benchmarks/gemm.py --dtype bf16 --shapes llm --variants all --records tuning/nvidia_h200.jsonl
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import Arrays, Call, Set, Shape, Skip, Times, compare, error, read_shapes
from report import Records, Row, Table, choice, summary

import tilery
from tilery import device, image, jit, policy
from tilery.arrays import adapter_for
from tilery.decision import Decision
from tilery.errors import TileryError
from tilery.generator.records import Key
from tilery.generator.variant import Variant
from tilery.operands import Options, Views, prepare
from tilery.pack import builtin
from tilery.plan import plan_for
from tilery.problem import Problem
from tilery.requirements import REQUIREMENTS, compute_dtype, features

SHAPES = Path(__file__).resolve().parent / "shapes"
DTYPES = ("bf16", "f16", "f32", "tf32", "s8")
ROUNDS, ROUNDS_OF_MANY = 7, 5
# The fallback variant takes part only where it can win.
FALLBACK_FLOPS = 1e9


def arguments() -> argparse.Namespace:
    files = sorted(path.stem for path in SHAPES.glob("*.csv"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bf16"], help="of A and B; s8 writes int32")
    parser.add_argument("--shapes", nargs="+", choices=files, default=files, help="files of shapes/")
    parser.add_argument("--layout", nargs="+", choices=["nn", "nt", "tn", "tt"], help="leave out rows of other layouts")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="measure only every N-th row of each file")
    parser.add_argument(
        "--variants",
        choices=["chosen", "built", "all"],
        default="chosen",
        help="also measure every variant that fits and has an image, or every one that fits (compiled by NVRTC)",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop in time, with what there is")
    parser.add_argument("--out", type=Path, help="the CSV to write")
    parser.add_argument("--records", type=Path, help="the TuningRecords to write or add to; with --variants")
    found = parser.parse_args()
    if found.records and found.variants == "chosen":
        parser.error("--records needs the times of several variants: add --variants built or all")
    return found


def rows_of(args: argparse.Namespace) -> list[tuple[str, str, Shape]]:
    """(dtype, file, shape) of all that is asked for, in the order given."""
    shapes = {file: dict.fromkeys(read_shapes(SHAPES / f"{file}.csv")[:: args.every]) for file in args.shapes}
    rows = [(dtype, file, shape) for dtype in args.dtype for file in args.shapes for shape in shapes[file]]
    return [row for row in rows if args.layout is None or row[2].layout in args.layout]


def problem_of(arrays: Set, precision: str) -> Problem:
    """The Problem into which the runtime turns the call."""
    view = adapter_for(arrays.a, "a").view
    views = Views(view(arrays.a, "a"), view(arrays.b, "b"), None, None, view(arrays.out, "out"))
    problem = prepare(views, Options(False, False, None, None, precision, False)).problem
    assert problem is not None, "shapes are not empty"
    return problem


def fitting(problem: Problem, kind: str) -> Iterator[Variant]:
    """The variants of the pack that can serve a problem on this GPU."""
    pack, gpu = builtin(), device.info(0)
    present = features(pack, image.order(pack.archs, gpu.cc))
    small = 2.0 * problem.m * problem.n * problem.k <= FALLBACK_FLOPS
    for variant in pack.variants.values():
        fits = not any(rule(variant, problem, gpu, present) for rule in REQUIREMENTS)
        if fits and (small or variant.family != pack.fallback[problem.op]) and (kind == "all" or built(variant)):
            yield variant


def built(variant: Variant) -> bool:
    """Whether an image of the pack holds the variant for this GPU."""
    pack = builtin()
    return any(pack.image_of(arch, variant) for arch in image.order(pack.images, device.info(0).cc))


def compile_ahead(dtypes: Sequence[str]) -> None:
    """Compile what has no image on all cores at once; what fails shows its error when it is measured."""
    pack = builtin()
    target = jit.target(device.info(0).cc, pack.archs, jit.toolchain())
    missing = [v for v in pack.variants.values() if v.dtype in dtypes and not built(v)]

    def compile_one(variant: Variant) -> None:
        with suppress(TileryError):
            jit.compile_variant(variant, str(target))

    if target is not None and missing:
        print(f"compiling {len(missing)} variants without an image ...", flush=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, missing))


def ours(precision: str, settings: policy.Policy) -> Call:
    """The public call, under a policy of its own."""

    def call(arrays: Set) -> None:
        policy.use(settings)
        tilery.gemm(arrays.a, arrays.b, out=arrays.out, precision=precision)

    return call


def theirs(arrays: Set) -> None:
    multiply = torch._int_mm if arrays.a.dtype is torch.int8 else torch.mm
    multiply(arrays.a, arrays.b, out=arrays.out)


def brief(failure: Exception) -> str:
    """The beginning of an error's message."""
    return str(failure).partition("\n")[0][:200]


class Wrong(Exception):
    """A result that is not right, and is therefore not timed."""


class Bench:
    """Everything of one dtype, row after row."""

    def __init__(self, dtype: str, kind: str) -> None:
        self.dtype, self.kind = dtype, kind
        self.precision = "tf32" if dtype == "tf32" else "ieee"
        self.arrays = Arrays(dtype)
        self.stream = torch.cuda.Stream()
        self.base = policy.current()
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"

    def measure(self, shape: Shape) -> tuple[Problem, Decision, dict[str, Times]]:
        """Times by variant, and of ``torch``; Skip where there are none.

        Raises:
            Wrong: the chosen variant computes something else.
        """
        sets = self.arrays.sets(shape)
        torch.cuda.synchronize()  # the arrays were made on another stream
        with torch.cuda.stream(self.stream):
            try:
                return self._measure(sets)
            finally:
                policy.use(self.base)
                torch.cuda.synchronize()

    def _measure(self, sets: list[Set]) -> tuple[Problem, Decision, dict[str, Times]]:
        problem = problem_of(sets[0], self.precision)
        decision = plan_for(problem, 0).decision
        chosen = decision.variant.name
        calls = {chosen: ours(self.precision, self.base)}
        if self.kind != "chosen":
            names = [variant.name for variant in fitting(problem, self.kind) if variant.name != chosen]
            calls |= {name: ours(self.precision, replace(self.base, force_variant=name)) for name in names}
        calls = {name: call for name, call in calls.items() if self._right(name, call, sets[0], name == chosen)}
        keep = [chosen]
        if self._torch_takes(sets[0]):
            calls["torch"] = theirs
            keep.append("torch")
        rounds = ROUNDS if len(calls) <= 2 else ROUNDS_OF_MANY
        return problem, decision, compare(calls, sets, keep, rounds)

    def _right(self, name: str, call: Call, arrays: Set, needed: bool) -> bool:
        try:
            found = error(call, arrays, self.dtype, self.arrays.out_dtype)
            reason = f"error {found:.3g} times what is allowed" if found > 1 else ""
        except TileryError as failure:
            reason = brief(failure)
        if reason and needed:
            raise Wrong(f"{name}: {reason}")
        if reason:
            print(f"left out {name}: {reason}", flush=True)
        return not reason

    def _torch_takes(self, arrays: Set) -> bool:
        try:
            theirs(arrays)
        except RuntimeError as failure:  # torch._int_mm has limits of size and layout
            print(f"torch does not take it: {brief(failure)}", flush=True)
            return False
        return True


def row_of(file: str, dtype: str, shape: Shape, decision: Decision, times: dict[str, Times]) -> Row:
    mine = times[decision.variant.name]
    other = times["torch"].median if "torch" in times else None
    return Row(
        file=file,
        m=shape.m,
        n=shape.n,
        k=shape.k,
        layout=shape.layout,
        dtype=dtype,
        variant=decision.variant.name,
        tier=decision.tier,
        us_tilery=mine.median,
        us_torch=other,
        ratio=other / mine.median if other else None,
        tflops=shape.flops / mine.median / 1e6,
        spread=mine.spread,
    )


def key_of(problem: Problem) -> Key:
    p = problem
    return Key(p.op, compute_dtype(p), p.layout, p.align, p.m, p.n, p.k, p.batch)


class Run:
    """One run of the script: what was found so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.table = Table(args.out, device.info(0))
        self.records = Records(args.records, device.info(0)) if args.records else None
        self.rows: list[Row] = []
        self.losses: list[tuple[float, str]] = []
        self.wrong = 0

    def one(self, bench: Bench, file: str, shape: Shape) -> None:
        try:
            problem, decision, times = bench.measure(shape)
        except Skip as reason:
            print(f"{file} {shape} {bench.dtype} skipped: {reason}", flush=True)
            return
        except (Wrong, TileryError, torch.OutOfMemoryError) as failure:
            self.wrong += not isinstance(failure, torch.OutOfMemoryError)
            print(f"{file} {shape} {bench.dtype} failed: {brief(failure)}", flush=True)
            return
        row = row_of(file, bench.dtype, shape, decision, times)
        self.rows.append(row)
        self.table.add(row)
        us = {name: found.median for name, found in times.items() if name != "torch"}
        best = min(us, key=lambda name: us[name])
        if len(us) > 1:
            self.losses.append((row.us_tilery / us[best], f"{shape} {bench.dtype}: {row.variant}, best {best}"))
        if self.records is not None:
            self.records.add(key_of(problem), us)
        print(f"{row}{f'  best {best} {us[best]:.2f}' if best != row.variant else ''}", flush=True)

    def close(self, left: int) -> int:
        lines = summary(self.rows) + choice(self.losses)
        lines += [f"time is up: {left} rows were not measured"] if left else []
        for line in lines:
            print(line)
            self.table.comment(line)
        return 1 if self.wrong else 0


def main() -> int:
    args = arguments()
    deadline = time.monotonic() + args.seconds
    if not device.devices() or not torch.cuda.is_available():
        raise SystemExit(f"no GPU to measure on: {device.why_none() or 'torch finds none'}")
    asked = rows_of(args)
    run = Run(args)
    if args.variants == "all":
        compile_ahead(["f32", *args.dtype] if "tf32" in args.dtype else args.dtype)
    bench: Any = None
    for i, (dtype, file, shape) in enumerate(asked):
        if time.monotonic() > deadline:
            return run.close(len(asked) - i)
        if bench is None or bench.dtype != dtype:
            bench = None  # frees the arrays of the last dtype
            bench = Bench(dtype, args.variants)
        run.one(bench, file, shape)
    return run.close(0)


if __name__ == "__main__":
    sys.exit(main())
