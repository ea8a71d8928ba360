"""tilery.gemm beside torch.mm on the files of shapes/, in one interleaved run; see README.md beside this file.

python benchmarks/gemm.py --dtype bf16 --shapes llm odd square --out benchmarks/results/bf16.csv
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measure import Arrays, Call, Set, Shape, Skip, Times, compare, error, read_shapes
from report import Row, Table, summary

import tilery
from tilery import device
from tilery.arrays import adapter_for
from tilery.decision import Decision
from tilery.errors import TileryError
from tilery.operands import Options, Views, prepare
from tilery.plan import plan_for
from tilery.problem import Problem

SHAPES = Path(__file__).resolve().parent / "shapes"
DTYPES = ("bf16", "f16", "f32", "tf32", "s8")
ROUNDS = 7


def arguments() -> argparse.Namespace:
    files = sorted(path.stem for path in SHAPES.glob("*.csv"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bf16"], help="of A and B; s8 writes int32")
    parser.add_argument("--shapes", nargs="+", choices=files, default=files, help="files of shapes/")
    parser.add_argument("--layout", nargs="+", choices=["nn", "nt", "tn", "tt"], help="leave out rows of other layouts")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="measure only every N-th row of each file")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop in time, with what there is")
    parser.add_argument("--out", type=Path, help="the CSV to write")
    return parser.parse_args()


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


def ours(precision: str) -> Call:
    """The public call."""
    return lambda arrays: tilery.gemm(arrays.a, arrays.b, out=arrays.out, precision=precision)


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

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.precision = "tf32" if dtype == "tf32" else "ieee"
        self.arrays = Arrays(dtype)
        self.stream = torch.cuda.Stream()
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"

    def measure(self, shape: Shape) -> tuple[Decision, dict[str, Times]]:
        """The Decision, its variant's times, and those of ``torch``; Skip where there are none.

        Raises:
            Wrong: the chosen variant computes something else.
        """
        sets = self.arrays.sets(shape)
        torch.cuda.synchronize()  # the arrays were made on another stream
        with torch.cuda.stream(self.stream):
            try:
                return self._measure(sets)
            finally:
                torch.cuda.synchronize()

    def _measure(self, sets: list[Set]) -> tuple[Decision, dict[str, Times]]:
        problem = problem_of(sets[0], self.precision)
        decision = plan_for(problem, 0).decision
        chosen = decision.variant.name
        calls = {chosen: ours(self.precision)}
        found = error(calls[chosen], sets[0], self.dtype, self.arrays.out_dtype)
        if found > 1:
            raise Wrong(f"{chosen}: error {found:.3g} times what is allowed")
        if self._torch_takes(sets[0]):
            calls["torch"] = theirs
        return decision, compare(calls, sets, ROUNDS)

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


class Run:
    """One run of the script: what was found so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.table = Table(args.out, device.info(0))
        self.rows: list[Row] = []
        self.wrong = 0

    def one(self, bench: Bench, file: str, shape: Shape) -> None:
        try:
            decision, times = bench.measure(shape)
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
        print(row, flush=True)

    def close(self, left: int) -> int:
        lines = summary(self.rows)
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
    bench: Any = None
    for i, (dtype, file, shape) in enumerate(asked):
        if time.monotonic() > deadline:
            return run.close(len(asked) - i)
        if bench is None or bench.dtype != dtype:
            bench = None  # frees the arrays of the last dtype
            bench = Bench(dtype)
        run.one(bench, file, shape)
    return run.close(0)


if __name__ == "__main__":
    sys.exit(main())
