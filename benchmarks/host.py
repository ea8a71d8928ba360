"""How long the host device takes for one product, without and with the checks; see README.md beside this file.

python benchmarks/host.py --out benchmarks/results/host.csv
python benchmarks/host.py --size 512 --variant gemm_mma_bf16_nt_64x64x128_w2x2_s3_a16
"""

from __future__ import annotations

import argparse
import csv
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tilery.cli.debug import find
from tilery.generator.expand import expand
from tilery.generator.load import load
from tilery.generator.render import render
from tilery.host import Library, compile, compiler
from tilery.host.device import cores
from tilery.pack import builtin
from tilery.problem import OUT_DTYPES
from tilery.trial import Case, Epilogue, Shape, fit, input_dtype

COLUMNS = ("variant", "m", "n", "k", "compile_s", "ms_plain", "ms_plain_one_core", "ms_check", "ms_check_one_core")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", nargs="+", help="names; default: the largest tile of every family and dtype")
    parser.add_argument("--size", type=int, default=256, help="m, n and k")
    parser.add_argument("--rounds", type=int, default=5, help="launches, of which the median counts")
    parser.add_argument("--out", type=Path, help="the CSV to write")
    return parser.parse_args()


def default_variants() -> list[str]:
    """The core variant of the largest tile of each family and dtype; of those, aligned ones of layout nt first."""
    best: dict[tuple[str, str], tuple[tuple[int, bool, int], str]] = {}
    for v in expand(load(), None).variants:
        rank = (v.align, v.layout == "nt", v["tile"][0] * v["tile"][1])
        best[v.family, v.dtype] = max(best.get((v.family, v.dtype), ((0, False, 0), "")), (rank, v.name))
    return [name for _, name in best.values()]


def milliseconds(case: Case, library: Library, rounds: int, **how: int) -> float:
    case.run(library, **how)  # makes the stacks
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        case.run(library, **how)
        times.append(time.perf_counter() - started)
    assert case.error() <= 1, case.variant.name
    return round(1e3 * median(times), 2)


def measure(name: str, size: int, rounds: int, folder: Path) -> list[object]:
    variant = find(name)
    case = Case(variant, fit(variant, Shape(size, size, size)), Epilogue(OUT_DTYPES[input_dtype(variant)][0]))
    row: list[object] = [name, *case.shape[:3]]
    for check in (False, True):
        source, out = {name: render(variant)}, folder / f"{name}-{check}" / "kernel.so"
        started = time.perf_counter()
        library = Library(compile(source, out, check=check))
        if not check:
            row.append(round(time.perf_counter() - started, 2))
        row += [milliseconds(case, library, rounds), milliseconds(case, library, rounds, workers=1)]
    return row


def head() -> Iterator[str]:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    yield f"# {cpu.partition(':')[2].strip() or platform.machine()}, {cores()} cores"
    yield f"# tilery {builtin().version}, {compiler.find().version}, Python {platform.python_version()}"
    yield f"# python benchmarks/host.py {shlex.join(sys.argv[1:])}".rstrip()


def main() -> None:
    args = arguments()
    lines = [*head()]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        print(*lines, ",".join(COLUMNS), sep="\n")
        for name in args.variant or default_variants():
            rows.append(measure(name, args.size, args.rounds, Path(folder)))
            print(*rows[-1], sep=",", flush=True)
    if args.out:
        with args.out.open("w", newline="") as file:
            file.writelines(f"{line}\n" for line in lines)
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
