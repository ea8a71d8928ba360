"""TuningRecords: ``tuning/<device>.jsonl`` written, read, checked, and ranked.

Each line stands alone: one problem on one GPU, with what was measured of each variant::

    {"schema": 3, "gpu": "NVIDIA H200, 9.0, 132 SMs, 60 MiB L2, 4917 GB/s", "toolchain": "13.0", "driver": "580.95",
     "clock_mhz": 1980, "op": "gemm", "dtype": "bf16", "layout": "nt", "align": 16, "m": 1, "n": 4096, "k": 4096,
     "batch": 1, "out_dtype": "bf16", "epilogue": "",
     "times": {"gemm_mma_bf16_nt_64x64x64_w2x2_s3_a16": [12.3, 0.01, "0123456789ab", 3]}}     (in one line)

A time is microseconds, spread (interquartile range over median), the first digits of the variant's content hash, and
how many of its blocks an SM holds at once. It is of the kernel that was measured, and of no later one of the same name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .errors import TableError, nearest

SCHEMA = 3
HASH_DIGITS = 12
# Times that differ by less are equal: medians of one kernel differ so much from run to run.
NOISE = 0.01
# Two devices are of one silicon where bandwidths differ by less: boards and tools round them differently.
BANDWIDTH_TOLERANCE = 0.1
_FORM = re.compile(r"(.+), (\d+)\.(\d+), (\d+) SMs, (\d+) MiB L2, (\d+) GB/s")


class Gpu(NamedTuple):
    """What a measurement depends on of a GPU. The host device is a Gpu too, of capability 0.0.

    Attributes:
        name: the driver's; for people, see `same_silicon`.
        cc: compute capability.
        sms: SMs that are visible: fewer in a MIG slice.
        l2_mib, bandwidth_gbs: L2 cache in MiB, memory bandwidth in 10**9 bytes per second.

    >>> str(Gpu.parse("NVIDIA H200, 9.0, 132 SMs, 60 MiB L2, 4917 GB/s"))
    'NVIDIA H200, 9.0, 132 SMs, 60 MiB L2, 4917 GB/s'
    """

    name: str
    cc: tuple[int, int]
    sms: int
    l2_mib: int
    bandwidth_gbs: int

    def __str__(self) -> str:
        cc = f"{self.cc[0]}.{self.cc[1]}"
        return f"{self.name}, {cc}, {self.sms} SMs, {self.l2_mib} MiB L2, {self.bandwidth_gbs} GB/s"

    @classmethod
    def parse(cls, text: str) -> Gpu:
        """The Gpu that ``str()`` gave; ValueError for another text."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not like 'NVIDIA H200, 9.0, 132 SMs, 60 MiB L2, 4917 GB/s'")
        name, *numbers = match.groups()
        major, minor, sms, l2, bandwidth = map(int, numbers)
        return cls(name, (major, minor), sms, l2, bandwidth)

    @property
    def is_host(self) -> bool:
        """Whether it is the CPU."""
        return self.cc == (0, 0)


def same_silicon(a: Gpu, b: Gpu) -> bool:
    """Whether what was measured on one holds for the other: equal but for the product name.

    >>> h200 = Gpu("NVIDIA H200", (9, 0), 132, 60, 4917)
    >>> same_silicon(h200, h200._replace(name="NVIDIA H200 NVL")), same_silicon(h200, h200._replace(sms=60))
    (True, False)
    """
    near = abs(a.bandwidth_gbs - b.bandwidth_gbs) <= BANDWIDTH_TOLERANCE * max(a.bandwidth_gbs, b.bandwidth_gbs)
    return (a.cc, a.sms, a.l2_mib) == (b.cc, b.sms, b.l2_mib) and near


class Key(NamedTuple):
    """The problem of a record; ``dtype`` is the one computed in, ``epilogue`` is as `epilogue_of` gives it."""

    op: str
    dtype: str
    layout: str
    align: int
    m: int
    n: int
    k: int
    batch: int
    out_dtype: str
    epilogue: str


def epilogue_of(accumulate: bool, bias: bool, activation: str) -> str:
    """What is done to the sums, as a record's key has it; "" for nothing.

    >>> epilogue_of(True, False, "gelu")
    'c+gelu'
    """
    parts = ["c"] * accumulate + ["bias"] * bias + [activation] * (activation != "none")
    return "+".join(parts)


class Time(NamedTuple):
    """What was measured of a variant: microseconds, spread, the first `HASH_DIGITS` of its content hash, and the blocks
    that an SM holds at once."""

    us: float
    spread: float
    hash: str
    resident: int


@dataclass(frozen=True, slots=True)
class Record:
    """Times by variant for one problem on one GPU.

    Attributes:
        place: file and line, or where else it comes from.
        gpu: where it was measured.
        toolchain: version of CUDA that compiled the variants.
        driver: the driver's version.
        clock_mhz: clock of the SMs meanwhile, 0 where it is not known.
        key: the problem.
        times: by variant.
    """

    place: str
    gpu: Gpu
    toolchain: str
    driver: str
    clock_mhz: int
    key: Key
    times: Mapping[str, Time]


def ranked(times: Mapping[str, float], default: str = "") -> tuple[str, ...]:
    """Names by time. Inside the noise of the best the default wins, then the name: so two tunes agree.

    >>> ranked({"b": 10.0, "a": 10.05, "c": 12.0}), ranked({"b": 10.0, "a": 10.5}), ranked({"b": 10.0, "a": 10.05}, "b")
    (('a', 'b', 'c'), ('b', 'a'), ('b', 'a'))
    """
    least = min(times.values()) * (1 + NOISE)
    return tuple(sorted(times, key=lambda name: (max(times[name], least), name != default, name)))


def line(record: Record) -> str:
    """A Record as its line, without the line's end; the fastest variants first."""
    times = sorted(record.times.items(), key=lambda item: (item[1].us, item[0]))
    data = {
        "schema": SCHEMA,
        "gpu": str(record.gpu),
        "toolchain": record.toolchain,
        "driver": record.driver,
        "clock_mhz": record.clock_mhz,
        **record.key._asdict(),
        "times": {name: [float(f"{t.us:.4g}"), round(t.spread, 3), t.hash, t.resident] for name, t in times},
    }
    return json.dumps(data)


def read(folder: Path) -> list[Record]:
    """Every record of every ``*.jsonl`` in a folder, in the order of names and lines."""
    if not folder.is_dir():
        raise TableError(f"{folder}: no such folder of tuning records")
    return [record for path in sorted(folder.glob("*.jsonl")) for record in read_file(path)]


def read_file(path: Path) -> Iterator[Record]:
    """The records of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: cannot be read: {error}") from None
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield parse(f"{path}:{number}", text)


_TEXTS = ("gpu", "toolchain", "driver", "op", "dtype", "layout", "out_dtype", "epilogue")
_NUMBERS = ("schema", "clock_mhz", "align", "m", "n", "k", "batch")


def parse(place: str, text: str) -> Record:
    """The Record of a line; TableError, with ``place``, for anything wrong in it."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise TableError(f"{place}: is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TableError(f"{place}: is not a JSON object")
    if data.get("schema") != SCHEMA:
        found = data.get("schema")
        raise TableError(
            f"{place}: schema is {found!r}; this generator reads {SCHEMA}: measure again with `tilery tune`"
        )
    _check(place, data)
    try:
        gpu = Gpu.parse(data["gpu"])
    except ValueError as error:
        raise TableError(f"{place}: gpu: {error}") from None
    key = Key(**{name: data[name] for name in Key._fields})
    times = _times(place, data["times"])
    return Record(place, gpu, data["toolchain"], data["driver"], data["clock_mhz"], key, times)


def _check(place: str, data: Mapping[str, Any]) -> None:
    valid = [*_TEXTS, *_NUMBERS, "times"]
    for name in data:
        if name not in valid:
            raise TableError(f"{place}: unknown key '{name}'; {nearest(name, valid)}")
    for name in valid:
        if name not in data:
            raise TableError(f"{place}: missing key '{name}'; given: {', '.join(data)}")
    for name in _TEXTS:
        if not isinstance(data[name], str):
            raise TableError(f"{place}: {name} is {data[name]!r}, not a text")
    for name in _NUMBERS:
        if type(data[name]) is not int or data[name] < 0:
            raise TableError(f"{place}: {name} is {data[name]!r}, not a size")


def _times(place: str, times: Any) -> dict[str, Time]:
    if not isinstance(times, dict) or not times:
        raise TableError(f"{place}: times is {times!r}, not an object of variant names and times")
    return {name: _time(f"{place}: times.{name}", value) for name, value in times.items()}


def _time(place: str, value: Any) -> Time:
    if not isinstance(value, list) or len(value) != len(Time._fields):
        raise TableError(f"{place} is {value!r}, not [microseconds, spread, hash, blocks]")
    us, spread, digits, resident = value
    if type(us) not in (int, float) or not 0 < us < math.inf:
        raise TableError(f"{place}: {us!r} is not a positive number of microseconds")
    if type(spread) not in (int, float) or not 0 <= spread < math.inf:
        raise TableError(f"{place}: {spread!r} is not a spread")
    if not isinstance(digits, str) or not re.fullmatch(f"[0-9a-f]{{{HASH_DIGITS}}}", digits):
        raise TableError(f"{place}: {digits!r} is not the first {HASH_DIGITS} hex digits of a content hash")
    if type(resident) is not int or resident < 1:
        raise TableError(f"{place}: {resident!r} is not a number of blocks that an SM holds")
    return Time(us, spread, digits, resident)
