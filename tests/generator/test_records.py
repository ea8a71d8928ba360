from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator import records
from generator.errors import TableError
from generator.records import Key

HEADER = {"schema": 1, "gpu": "New", "driver": "1.2", "command": "x"}
PROBLEM = {"op": "gemm", "m": 8, "n": 64, "k": 64, "batch": 1, "dtype": "bf16", "layout": "nt", "align": 16}


def write(folder: Path, *lines: Any, name: str = "new.jsonl") -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / name).write_text(text)
    return folder


def problem(us: Any, **changes: Any) -> dict[str, Any]:
    return PROBLEM | {"us": us} | changes


def exact(*problems: tuple[dict[str, Any], dict[str, float]]) -> dict[Key, dict[str, float]]:
    return {Key(**(PROBLEM | changes)): us for changes, us in problems}


def test_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "tuning", HEADER, problem({"a": 2, "b": 1.5}), "", problem({"a": 1}, m=9))
    first, second = records.read(folder)
    assert first.gpu == "New"
    assert first.key == Key("gemm", "bf16", "nt", 16, 8, 64, 64, 1)
    assert first.us == {"a": 2, "b": 1.5}
    assert second.place == f"{folder / 'new.jsonl'}:4"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "is empty; the first line is a header"),
        ([problem({"a": 1})], ":1: the first line must be a header"),
        ([HEADER | {"schema": 2}], ":1: the first line must be a header with schema 1"),
        ([HEADER | {"gpu": "*"}], ":1: the first line must be a header"),
        ([HEADER, "{"], ":2: is not JSON"),
        ([HEADER, "[]"], ":2: is not a JSON object"),
        ([HEADER, problem({"a": 1}, laiout="nt")], ":2: unknown key 'laiout'; nearest: layout"),
        ([HEADER, {"op": "gemm", "us": {"a": 1}}], ":2: missing key 'dtype'; given: op, us"),
        ([HEADER, problem({"a": 1}, m="8")], ":2: m is '8', not a size"),
        ([HEADER, problem({"a": 1}, m=-1)], ":2: m is -1, not a size"),
        ([HEADER, problem({"a": 1}, m=True)], ":2: m is True, not a size"),
        ([HEADER, problem({"a": 1}, dtype=16)], ":2: dtype is 16, not a text"),
        ([HEADER, problem({})], ":2: us is {}, not an object"),
        ([HEADER, problem([1])], r":2: us is \[1\], not an object"),
        ([HEADER, problem({"a": 0})], ":2: us.a is 0, not a positive number"),
        ([HEADER, '{"us": NaN}'], ":2: missing key"),
        ([HEADER, problem({"a": float("nan")})], ":2: us.a is nan, not a positive number"),
        ([HEADER, problem({"a": "1"})], ":2: us.a is '1', not a positive number"),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, lines: list[Any], message: str) -> None:
    with pytest.raises(TableError, match=f"new.jsonl.*{message}"):
        records.read(write(tmp_path / "tuning", *lines))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such folder"):
        records.read(tmp_path / "none")


def test_merge(tmp_path: Path) -> None:
    write(tmp_path / "tuning", HEADER, problem({"a": 2, "b": 3, "other": 1}), name="1.jsonl")
    write(tmp_path / "tuning", HEADER, problem({"a": 4}), name="2.jsonl")
    write(tmp_path / "tuning", HEADER | {"gpu": "Old"}, problem({"other": 1}), name="3.jsonl")
    merged, dropped = records.merge(records.read(tmp_path / "tuning"), {"a", "b"}, {"a", "b", "other"})
    assert merged == {"New": exact(({}, {"a": 4, "b": 3}))}
    assert dropped == 2


def test_merge_of_a_name_that_nothing_declares(tmp_path: Path) -> None:
    folder = write(tmp_path / "tuning", HEADER, problem({"gemm_x": 2}))
    with pytest.raises(TableError, match=r"new.jsonl:2: us: no tier .* has 'gemm_x'; nearest: gemm_y"):
        records.merge(records.read(folder), {"gemm_y"}, {"gemm_y"})


def test_the_fallback_counts_only_where_it_beat_all_that_was_measured(tmp_path: Path) -> None:
    """Else it would stand alone, and answer, wherever the faster ones are not in the build."""
    slow, fast = problem({"gemm_y": 2.0, "naive": 90.0}), problem({"gemm_y": 2.0, "naive": 1.0}, m=1)
    folder = write(tmp_path / "tuning", HEADER, slow, fast)
    merged, dropped = records.merge(records.read(folder), {"naive"}, {"gemm_y", "naive"}, {"naive"})
    assert merged == {"New": exact(({"m": 1}, {"naive": 1.0}))}
    assert dropped == 3
    merged, _ = records.merge(records.read(folder), {"gemm_y", "naive"}, {"gemm_y", "naive"}, {"naive"})
    assert merged == {"New": exact(({}, {"gemm_y": 2.0}), ({"m": 1}, {"gemm_y": 2.0, "naive": 1.0}))}


def test_rank_in_a_bucket_is_by_the_mean_slowdown() -> None:
    # a: 1 and 4 times the best (mean 2); b: 3 and 1 (mean 1.73), although a is faster in sum
    measured = exact(({"m": 7}, {"a": 10, "b": 30}), ({"m": 8}, {"a": 4, "b": 1}))
    (row,) = records.rows({"New": measured})
    assert row == ("gemm", "bf16", "nt", 16, 8, 64, 64, "New", ("b", "a"))


def test_rank_only_of_what_was_measured_on_all() -> None:
    measured = exact(({"m": 7}, {"a": 1, "b": 2, "c": 3}), ({"m": 8}, {"b": 2, "c": 1, "d": 1}))
    (row,) = records.rows({"New": measured})
    assert row.names == ("c", "b")
    assert records.rows({"New": exact(({"m": 7}, {"a": 1}), ({"m": 8}, {"b": 1}))}) == []


def test_buckets_keep_dtype_layout_and_align_apart() -> None:
    changes = [{}, {"dtype": "f16"}, {"layout": "nn"}, {"align": 1}, {"m": 9}, {"n": 65}, {"k": 65}, {"m": 0}]
    rows = records.rows({"New": exact(*((change, {"a": 1.0}) for change in changes))})
    assert len(rows) == len(changes)
    assert [row.bucket_m for row in rows if row.bucket_m not in (8, 16)] == [0]


def test_a_row_for_every_gpu_where_several_were_measured() -> None:
    rows = records.rows({"New": exact(({}, {"a": 1, "b": 3})), "Old": exact(({}, {"a": 2, "b": 1}))})
    assert [(row.gpu, row.names) for row in rows] == [("New", ("a", "b")), ("Old", ("b", "a")), ("*", ("a", "b"))]


def test_equal_times_rank_by_name() -> None:
    assert records.ranked({"b": 1, "a": 1, "c": 0.5}) == ("c", "a", "b")


_times = st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 1e4), min_size=1)
_problems = st.dictionaries(st.tuples(st.integers(0, 20), st.integers(1, 3)), _times, min_size=1, max_size=8)


@given(_problems, st.randoms())
def test_rows_do_not_depend_on_order(problems: dict[tuple[int, int], dict[str, float]], random: Any) -> None:
    listed = [({"m": m, "batch": batch}, us) for (m, batch), us in problems.items()]
    shuffled = random.sample(listed, len(listed))
    rows = records.rows({"New": exact(*listed)})
    assert rows == records.rows({"New": exact(*shuffled)})
    assert len({row[:8] for row in rows}) == len(rows)
