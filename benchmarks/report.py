"""What a benchmark leaves behind: a CSV with the circumstances in comments, and a summary to read."""

from __future__ import annotations

import csv
import math
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import torch

import tilery
from tilery.device import DeviceInfo

SHOWN = 5


@dataclass(frozen=True)
class Row:
    """A line of the CSV; README.md beside this file says what the columns mean."""

    file: str
    m: int
    n: int
    k: int
    layout: str
    dtype: str
    variant: str
    tier: str
    us_tilery: float
    us_torch: float | None
    ratio: float | None
    tflops: float
    spread: float

    def __str__(self) -> str:
        torch_us = f"{self.us_torch:10.2f}" if self.us_torch else "         -"
        ratio = f"{self.ratio:6.3f}" if self.ratio else "     -"
        shape = f"{self.m}x{self.n}x{self.k} {self.layout}"
        return f"{self.file:<18} {shape:<24} {self.us_tilery:10.2f} {torch_us} {ratio}  {self.tier:<8} {self.variant}"


def command() -> str:
    return shlex.join(["python", *sys.argv])


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def circumstances(gpu: DeviceInfo) -> dict[str, str]:
    return {
        "gpu": str(gpu),
        "driver": driver(),
        "versions": f"tilery {tilery.__version__}, torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"python {platform.python_version()}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
    }


class Table:
    """The CSV, complete up to the last row that was measured."""

    def __init__(self, path: Path | None, gpu: DeviceInfo) -> None:
        self.file: IO[str] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("w", encoding="utf-8", newline="")
            for name, value in circumstances(gpu).items():
                self.comment(f"{name}: {value}")
            csv.writer(self.file, lineterminator="\n").writerow(Row.__dataclass_fields__)

    def add(self, row: Row) -> None:
        if self.file is not None:
            values = [f"{v:.6g}" if isinstance(v, float) else v for v in asdict(row).values()]
            csv.writer(self.file, lineterminator="\n").writerow(values)
            self.file.flush()

    def comment(self, text: str) -> None:
        if self.file is not None:
            self.file.write(f"# {text}\n")
            self.file.flush()


def geomean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _listed(title: str, rows: Iterable[Row]) -> list[str]:
    return [f"  {title}", *(f"    {row}" for row in rows)]


def summary(rows: Sequence[Row]) -> list[str]:
    """Lines to read: the geometric mean of each file, the worst and the best rows."""
    lines = []
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.file, row.dtype), []).append(row)
    for (file, dtype), group in groups.items():
        ratios = [row.ratio for row in group if row.ratio]
        if ratios:
            lines.append(f"{file} {dtype}: torch / tilery {geomean(ratios):.3f} geometric mean of {len(ratios)} shapes")
    compared = sorted((row for row in rows if row.ratio), key=lambda row: row.ratio or 0.0)
    if compared:
        lines += _listed("worst", compared[:SHOWN]) + _listed("best", compared[: -SHOWN - 1 : -1])
    return lines
