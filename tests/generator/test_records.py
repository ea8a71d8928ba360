from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator import records
from generator.errors import TableError
from generator.records import Gpu, Key, Record, Time, line, parse, ranked

NEW = Gpu("New", (9, 0), 132, 60, 4800)
DATA: dict[str, Any] = {
    "schema": 3,
    "gpu": str(NEW),
    "toolchain": "13.0",
    "driver": "580.95",
    "clock_mhz": 1980,
    **{"op": "gemm", "dtype": "bf16", "layout": "nt", "align": 16, "m": 8, "n": 64, "k": 64, "batch": 1},
    **{"out_dtype": "bf16", "epilogue": ""},
    "times": {"a": [1.5, 0.01, "0123456789ab", 4]},
}


def test_read(tmp_path: Path) -> None:
    lines = [DATA, DATA | {"m": 9}]
    (tmp_path / "new.jsonl").write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    first, second = records.read(tmp_path)
    assert first.gpu == NEW
    assert first.key == Key("gemm", "bf16", "nt", 16, 8, 64, 64, 1, "bf16", "")
    assert first.times == {"a": Time(1.5, 0.01, "0123456789ab", 4)}
    assert (first.toolchain, first.driver, first.clock_mhz) == ("13.0", "580.95", 1980)
    assert second.place == f"{tmp_path / 'new.jsonl'}:3"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ({}, "schema is None; this generator reads 3: measure again with `tilery tune`"),
        (DATA | {"schema": 2}, "schema is 2; this generator reads 3"),
        (DATA | {"laiout": "nt"}, "unknown key 'laiout'; nearest: layout"),
        ({"schema": 3, "op": "gemm"}, "missing key 'gpu'; given: schema, op"),
        (DATA | {"m": "8"}, "m is '8', not a size"),
        (DATA | {"m": -1}, "m is -1, not a size"),
        (DATA | {"m": True}, "m is True, not a size"),
        (DATA | {"dtype": 16}, "dtype is 16, not a text"),
        (DATA | {"gpu": "NVIDIA H200"}, "gpu: 'NVIDIA H200' is not like"),
        (DATA | {"times": {}}, "times is {}, not an object"),
        (DATA | {"times": [1]}, r"times is \[1\], not an object"),
        (DATA | {"times": {"a": 1.5}}, r"times.a is 1.5, not \[microseconds, spread, hash, blocks\]"),
        (DATA | {"times": {"a": [0, 0, "0" * 12, 1]}}, "times.a: 0 is not a positive number"),
        (DATA | {"times": {"a": [float("nan"), 0, "0" * 12, 1]}}, "times.a: nan is not a positive number"),
        (DATA | {"times": {"a": ["1", 0, "0" * 12, 1]}}, "times.a: '1' is not a positive number"),
        (DATA | {"times": {"a": [1, -1, "0" * 12, 1]}}, "times.a: -1 is not a spread"),
        (DATA | {"times": {"a": [1, 0, "0" * 11, 1]}}, "times.a: '00000000000' is not the first 12 hex digits"),
        (DATA | {"times": {"a": [1, 0, "G" * 12, 1]}}, "times.a: .* is not the first 12 hex digits"),
        (DATA | {"times": {"a": [1, 0, "0" * 12, 0]}}, "times.a: 0 is not a number of blocks"),
        (DATA | {"times": {"a": [1, 0, "0" * 12, 2.5]}}, "times.a: 2.5 is not a number of blocks"),
    ],
)
def test_faults_name_the_place(data: Any, message: str) -> None:
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(TableError, match=f"^here: {message}"):
        parse("here", text)


def test_no_folder_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such folder"):
        records.read(tmp_path / "none")
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(TableError, match=r"x.jsonl: cannot be read"):
        records.read(tmp_path)


_names = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=20)
_sizes = st.integers(0, 2**31 - 1)
_gpus = st.builds(Gpu, _names, st.tuples(st.integers(0, 20), st.integers(0, 9)), _sizes, _sizes, _sizes)
_keys = st.builds(Key, _names, _names, _names, _sizes, _sizes, _sizes, _sizes, _sizes, _names, st.just("") | _names)
_us = st.integers(1, 10**8).map(lambda n: float(f"{n / 1e4:.4g}"))
_times = st.builds(
    Time,
    _us,
    st.integers(0, 1000).map(lambda n: n / 1000),
    st.text("0123456789abcdef", min_size=12, max_size=12),
    st.integers(1, 32),
)


@given(
    st.builds(
        Record, st.just("here"), _gpus, _names, _names, _sizes, _keys, st.dictionaries(_names, _times, min_size=1)
    )
)
def test_a_line_says_all_of_a_record(record: Record) -> None:
    text = line(record)
    assert "\n" not in text
    assert parse("here", text) == record
    assert line(parse("here", text)) == text


@pytest.mark.parametrize(
    ("changes", "same"),
    [({"name": "Old"}, True), ({"bandwidth_gbs": 4400}, True), ({"bandwidth_gbs": 3350}, False)]
    + [(change, False) for change in ({"cc": (9, 1)}, {"sms": 131}, {"l2_mib": 50})],
)
def test_same_silicon(changes: dict[str, Any], same: bool) -> None:
    assert records.same_silicon(NEW, NEW._replace(**changes)) is same
    assert records.same_silicon(NEW._replace(**changes), NEW) is same


_rankable = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 1e4), min_size=1)


@given(_rankable, st.sampled_from("abcdef"), st.randoms())
def test_the_first_is_within_the_noise_of_the_best_and_the_default_where_it_is_too(
    times: dict[str, float], default: str, random: Any
) -> None:
    order = ranked(times, default)
    assert sorted(order) == sorted(times)
    limit = min(times.values()) * (1 + records.NOISE)
    assert times[order[0]] <= limit
    assert (times.get(default, limit + 1) <= limit) <= (order[0] == default)
    shuffled = dict(random.sample(list(times.items()), len(times)))
    assert ranked(shuffled, default) == order


def test_beyond_the_noise_time_decides() -> None:
    assert ranked({"c": 3.0, "b": 2.0, "a": 9.0}, "a") == ("b", "c", "a")


def test_examples() -> None:
    assert doctest.testmod(records).failed == 0
