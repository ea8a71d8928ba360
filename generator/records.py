"""TuningRecords: ``tuning/<device>.jsonl`` read, checked, and turned into rankings.

The first line is a header; every other line is one problem with the measured microseconds of each variant::

    {"schema": 1, "gpu": "NVIDIA H200", "driver": "580.95", "command": "..."}
    {"op": "gemm", "m": 1, "n": 4096, "k": 4096, "batch": 1, "dtype": "bf16", "layout": "nt", "align": 16,
     "us": {"gemm_mma_bf16_nt_64x64x64_w2x2_s3_a16": 12.3}}        (in one line)
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .bucket import bucket
from .errors import TableError, nearest

SCHEMA = 1
# Names in a row of the table. The first serves; the others stand by for an image that cannot be loaded.
KEPT = 4
_KEYS = {"op": str, "dtype": str, "layout": str, "align": int, "m": int, "n": int, "k": int, "batch": int}


class Key(NamedTuple):
    """The problem of a record."""

    op: str
    dtype: str
    layout: str
    align: int
    m: int
    n: int
    k: int
    batch: int


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


@dataclass(frozen=True, slots=True)
class Record:
    """Measured microseconds by variant for one problem on one GPU; ``place`` is the file and line."""

    place: str
    gpu: str
    key: Key
    us: Mapping[str, float]

    @property
    def on_host(self) -> bool:
        """Whether it was measured on the host device."""
        return is_host(self.gpu)


Exact = dict[str, dict[Key, dict[str, float]]]


def is_host(gpu: str) -> bool:
    """Whether a device's name is that of the host device, as `host CPU (8 cores)`.

    >>> is_host("host CPU (8 cores)"), is_host("NVIDIA H200")
    (True, False)
    """
    return gpu.startswith("host CPU")


def read(folder: Path) -> list[Record]:
    """Every record of every ``*.jsonl`` in a folder, in the order of names and lines."""
    if not folder.is_dir():
        raise TableError(f"{folder}: no such folder of tuning records")
    return [record for path in sorted(folder.glob("*.jsonl")) for record in _read_file(path)]


def merge(
    records: Iterable[Record], available: Collection[str], declared: Collection[str], fallback: Collection[str] = ()
) -> tuple[Exact, int]:
    """Times by GPU and problem, of the available variants only; the second value counts the times left out.

    A variant that is measured twice for a problem keeps the later time. A name that is not even declared is an error.
    A fallback variant counts only where it beat all that was measured beside it: elsewhere, when those are not
    available, the cost model or the JIT has something better than the one that is left.
    """
    exact: Exact = defaultdict(dict)
    dropped = 0
    for record in records:
        best = min(record.us.values())
        for name, us in record.us.items():
            if name in available and (name not in fallback or us == best):
                exact[record.gpu].setdefault(record.key, {})[name] = us
            elif name in declared:
                dropped += 1
            else:
                raise TableError(
                    f"{record.place}: us: no tier of variants.toml has '{name}'; {nearest(name, declared)}; "
                    "measure again, or delete the entry"
                )
    return dict(exact), dropped


def ranked(us: Mapping[str, float]) -> tuple[str, ...]:
    """The fastest names by time; equal times by name."""
    return tuple(sorted(us, key=lambda name: (us[name], name))[:KEPT])


def rows(exact: Exact) -> list[Row]:
    """The table: per GPU and bucket, the variants measured on all its problems by the mean of their slowdowns.

    Where several GPUs have a bucket, a row for GPU ``*`` ranks over all of them.
    """
    groups: dict[tuple[Any, ...], dict[str, list[Mapping[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for gpu, problems in exact.items():
        for key, us in problems.items():
            groups[(*key[:4], *map(bucket, (key.m, key.n, key.k)))][gpu].append(us)
    table = []
    for pattern, by_gpu in sorted(groups.items()):
        lists = sorted(by_gpu.items())
        gpus = [measured for gpu, measured in lists if not is_host(gpu)]
        if len(gpus) > 1:
            lists.append(("*", [us for measured in gpus for us in measured]))
        table += [Row._make((*pattern, gpu, names)) for gpu, measured in lists if (names := _ranked_over(measured))]
    return table


def _ranked_over(measured: list[Mapping[str, float]]) -> tuple[str, ...]:
    """Names measured on every problem, by the geometric mean of time over the problem's best time."""
    common = set.intersection(*(set(us) for us in measured))
    return ranked({name: math.fsum(math.log(us[name] / min(us.values())) for us in measured) for name in common})


def _read_file(path: Path) -> list[Record]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None
    parsed = [(f"{path}:{i}", _object(f"{path}:{i}", line)) for i, line in enumerate(lines, 1) if line.strip()]
    if not parsed:
        raise TableError(f"{path}: is empty; the first line is a header with schema and gpu")
    place, header = parsed[0]
    if header.get("schema") != SCHEMA or not isinstance(header.get("gpu"), str) or header["gpu"] in ("", "*"):
        raise TableError(f"{place}: the first line must be a header with schema {SCHEMA} and the name of the gpu")
    return [_record(place, header["gpu"], data) for place, data in parsed[1:]]


def _object(place: str, line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise TableError(f"{place}: is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TableError(f"{place}: is not a JSON object")
    return data


def _record(place: str, gpu: str, data: dict[str, Any]) -> Record:
    valid = [*_KEYS, "us"]
    for name in data:
        if name not in valid:
            raise TableError(f"{place}: unknown key '{name}'; {nearest(name, valid)}")
    for name in valid:
        if name not in data:
            raise TableError(f"{place}: missing key '{name}'; given: {', '.join(data)}")
    for name, kind in _KEYS.items():
        if type(data[name]) is not kind or (kind is int and data[name] < 0):
            raise TableError(f"{place}: {name} is {data[name]!r}, not {'a text' if kind is str else 'a size'}")
    return Record(place, gpu, Key(**{name: data[name] for name in _KEYS}), _times(place, data["us"]))


def _times(place: str, us: Any) -> dict[str, float]:
    if not isinstance(us, dict) or not us:
        raise TableError(f"{place}: us is {us!r}, not an object of variant names and microseconds")
    for name, time in us.items():
        if type(time) not in (int, float) or not 0 < time < math.inf:
            raise TableError(f"{place}: us.{name} is {time!r}, not a positive number of microseconds")
    return us
