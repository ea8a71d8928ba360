"""What a GEMM costs that no image covers: compiled, from the store, from the memo, and while it is compiled.

python benchmarks/jit.py --peers --out benchmarks/results/jit.csv

Each figure is of fresh processes, see README.md beside this file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from report import circumstances

from tilery import device

PROBES = Path(__file__).with_name("jit_probes.py")
TIMEOUT_S = 100


@dataclass(frozen=True)
class Row:
    """A line of the CSV."""

    what: str
    value: float
    unit: str
    bound: str = ""
    ok: str = ""

    def __str__(self) -> str:
        verdict = f"{self.bound:>10}  {self.ok}" if self.bound else ""
        return f"{self.what:<58} {self.value:10.3f} {self.unit:<6} {verdict}"


def at_most(what: str, value: float, unit: str, most: float) -> Row:
    return Row(what, value, unit, f"<= {most:g}", "yes" if value <= most else "NO")


def probe(name: str, folder: Path) -> dict[str, Any]:
    """What one fresh process found."""
    began = time.perf_counter()
    command = [sys.executable, str(PROBES), name, str(folder)]
    # NVRTC keeps what it compiles in the driver's cache, and a cold figure must be cold.
    env = os.environ | {"CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=env)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    print(f"{name:<10} {time.perf_counter() - began:6.1f} s", flush=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def middle(found: list[dict[str, Any]], key: str) -> float:
    return median(one[key] for one in found)


def ours(place: Path, repeats: int) -> tuple[list[Row], float]:
    """The rows of tilery, and the milliseconds of an uncovered first result."""
    cold = [probe("first", place / f"store{i}") for i in range(repeats)]
    warm = [probe("first", place / f"store{i}") for i in range(repeats)]
    assert all(one["origins"]["nvrtc"] == 2 for one in cold), "the store was not empty"
    assert all(one["origins"]["store"] == 2 for one in warm), "the store was not used"
    nvrtc = probe("parallel", place / "none")
    memo = probe("memo", place / "store0")
    during = probe("during", place / "background")
    hit, first = middle(warm, "second_ms"), middle(cold, "ms")
    rows = [
        at_most("uncovered GEMM, empty store: NVRTC", middle(cold, "compile_ms") / 1e3, "s", 0.5),
        Row("the same, whole first call", first / 1e3, "s"),
        at_most("a second one in the process: NVRTC", middle(cold, "second_compile_ms") / 1e3, "s", 0.5),
        Row("a second one in the process, whole call", middle(cold, "second_ms") / 1e3, "s"),
        at_most("warm store, fresh process: whole first call", middle(warm, "ms"), "ms", 5),
        Row("loading NVRTC, which the warm start is spared", nvrtc["load_ms"], "ms"),
        at_most("warm store, second kernel: whole first call", hit, "ms", 5),
        at_most("warm store / NVRTC, second kernels", hit / middle(cold, "second_compile_ms"), "x", 1 / 50),
        Row("host time of a call, kernel of NVRTC", memo["jit_us"], "us"),
        Row("host time of a call, kernel of an image", memo["image_us"], "us"),
        at_most("NVRTC's / image's", memo["jit_us"] / memo["image_us"], "x", 1.05),
        Row("8 compilations at once / 1", nvrtc["eight_s"] / nvrtc["one_s"], "x"),
    ]
    assert during["swaps"] == len(during["rounds"]), "a compilation in the background failed"
    rows += [
        Row(
            "calls during a background compile, least of the rounds",
            min(one["calls"] for one in during["rounds"]),
            "calls",
        ),
        Row("their p50 / p50 without", middle(during["rounds"], "p50_ratio"), "x"),
        at_most("their p99 / p99 without", middle(during["rounds"], "p99_ratio"), "x", 1.5),
        Row("the longest of them", max(one["max_ms"] for one in during["rounds"]), "ms"),
    ]
    return rows, first


PEERS = {
    "Triton, empty cache": ("triton", "triton"),
    "Triton, warm cache": ("triton", "triton"),
    "Inductor, empty cache": ("inductor", "inductor"),
    "Inductor max-autotune, empty cache": ("autotune", "autotune"),
}
"""Name of each peer's first call, its probe and the folder of its cache."""


def peer(name: str, place: Path, first_ms: float) -> list[Row]:
    """A peer's first call, and how many of tilery's it takes."""
    kind, folder = PEERS[name]
    ms = probe(kind, place / folder)["ms"]
    return [Row(f"{name}: whole first call", ms / 1e3, "s"), Row(f"{name} / tilery, empty store", ms / first_ms, "x")]


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {name}: {value}\n" for name, value in circumstances(device.info(0)).items())
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) | {"value": f"{row.value:.4g}"} for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="fresh processes of each figure that needs one")
    parser.add_argument("--peers", action="store_true", help="also measure Triton and Inductor")
    parser.add_argument("--out", type=Path, help="the CSV to write")
    args = parser.parse_args()
    rows: list[Row] = []

    def keep(found: list[Row]) -> None:
        """Shown and written at once, so that what was measured is there if a peer does not end."""
        rows.extend(found)
        for row in found:
            print(row, flush=True)
        if args.out:
            write(args.out, rows)

    with tempfile.TemporaryDirectory(prefix="tilery-bench-") as folder:
        found, first_ms = ours(Path(folder), args.repeats)
        keep(found)
        for name in PEERS if args.peers else ():
            keep(peer(name, Path(folder), first_ms))
    return 1 if any(row.ok == "NO" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
