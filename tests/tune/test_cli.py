"""``tilery tune`` with a made-up session."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ran

from tests.runtime.simulated import H200
from tilery import device, policy
from tilery.asked import request
from tilery.cli import app
from tilery.policy import Policy
from tilery.problem import Problem
from tilery.tune import parallel, shapes
from tilery.tune.measure import Measured
from tilery.tune.result import Report, Result

CSV = "m,n,k,layout,dtype\n64,64,64,nt,\n128,64,64,nn,f32\n"
LINES = '{"problem": {"m": 8, "n": 16, "k": 32, "dtype": "f16", "layout": "nt"}}\n'


class Sessions:
    """What the command asks for, and what it gets."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.status = "measured"
        self.made: Callable[[Problem], Result] = self.result

    def result(self, problem: Problem) -> Result:
        times = {"old": Measured(10.0, 0.01), "new": Measured(4.0, 0.02)}
        return Result(problem, self.status, "" if self.status == "measured" else "why", "old", "new", times)

    def __call__(
        self, problems: Any, numbers: Any, jit: Any, out: Any, store: Any, progress: Any, *rest: Any
    ) -> Report:
        self.asked = {"problems": problems, "devices": numbers, "jit": jit, "out": out, "store": store, "rest": rest}
        results = tuple(self.made(problem) for problem in problems)
        for result in results:
            progress(result)
        return Report("a GPU", results, len(problems), 1.5, {"slow": "too many registers"}, ("a note",))


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sessions]:
    made = Sessions()
    monkeypatch.setattr(parallel, "tune_all", made)
    monkeypatch.setattr(device, "devices", lambda: (replace(H200, ordinal=0), replace(H200, ordinal=1)))
    policy.use(Policy(store=tmp_path / "store"))
    yield made
    policy.use(None)


def run(*arguments: Any) -> Ran:
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def write(folder: Path, text: str, name: str = "shapes of a model") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_file(sessions: Sessions, tmp_path: Path) -> None:
    done = run(write(tmp_path, CSV))
    assert done.exit_code == 0, done.output
    assert sessions.asked["problems"] == [
        request(m=64, n=64, k=64, dtype="bf16", layout="nt"),
        request(m=128, n=64, k=64, dtype="f32", layout="nn"),
    ]
    assert (sessions.asked["devices"], sessions.asked["out"], sessions.asked["jit"]) == ([0], None, False)
    assert sessions.asked["store"].root == tmp_path / "store"
    for word in ("2 of 2 problems", "2.50", "old", "new", "too many registers", "a note"):
        assert word in done.stdout


def test_dtypes_are_for_rows_that_do_not_say(sessions: Sessions, tmp_path: Path) -> None:
    run(write(tmp_path, CSV), "--dtype", "tf32", "--dtype", "s8")
    assert sessions.asked["problems"] == [
        request(m=64, n=64, k=64, dtype="f32", layout="nt", precision="tf32"),
        request(m=128, n=64, k=64, dtype="f32", layout="nn"),
        request(m=64, n=64, k=64, dtype="s8", layout="nt"),
    ]


def test_json_lines(sessions: Sessions, tmp_path: Path) -> None:
    done = run(write(tmp_path, LINES))
    assert done.exit_code == 0, done.output
    assert sessions.asked["problems"] == [request(m=8, n=16, k=32, dtype="f16", layout="nt")]


def test_options(sessions: Sessions, tmp_path: Path) -> None:
    out = tmp_path / "h200.jsonl"
    run(write(tmp_path, CSV), "--out", out, "--all-devices", "--jit", "--seconds", 7, "--specialise", 2)
    assert sessions.asked["devices"] == [0, 1]
    assert (sessions.asked["out"], sessions.asked["store"], sessions.asked["jit"]) == (out, None, True)
    assert sessions.asked["rest"] == (7.0, 2)
    run(write(tmp_path, CSV), "--out", out, "--store", "--device", 1, "--device", 0)
    assert sessions.asked["devices"] == [1, 0]
    assert sessions.asked["store"] is not None


def test_json(sessions: Sessions, tmp_path: Path) -> None:
    done = run(write(tmp_path, CSV), "--json")
    report = json.loads(done.stdout)
    assert report["counts"] == {"measured": 2}
    assert report["results"][0]["times"]["new"] == {"us": 4.0, "spread": 0.02}
    assert report["results"][0]["gain"] == 2.5


@pytest.mark.parametrize("status", ["failed", "noisy", "skipped"])
def test_what_was_not_measured_is_told(sessions: Sessions, tmp_path: Path, status: str) -> None:
    sessions.status = status
    done = run(write(tmp_path, CSV))
    assert done.exit_code == (1 if status == "failed" else 0)
    assert f"{status}: why" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["nothing to tune", "--like", "llm"]),
        (["--like", "lm"], ["list of shapes", "llm"]),
        (["--like", "llm", "--dtype", "bf61"], ["bf16"]),
        (["--like", "llm", "--op", "gem"], ["gemm"]),
        (["--like", "llm", "--no-store"], ["--out"]),
        (["--like", "llm", "--device", "0", "--all-devices"], ["contradict"]),
    ],
)
def test_bad_input(sessions: Sessions, arguments: list[str], words: list[str]) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    for word in words:
        assert word in done.output
    assert sessions.asked == {}


def test_no_gpu(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "devices", lambda: ())
    monkeypatch.setattr(device, "why_none", lambda: "no NVIDIA driver on this machine")
    done = run("--like", "llm")
    assert done.exit_code == 2
    for word in ("no NVIDIA driver", "--out FILE", "machine with the GPU"):
        assert word in done.output


def test_no_store(sessions: Sessions, tmp_path: Path) -> None:
    policy.use(Policy(store=None))
    done = run("--like", "llm")
    assert done.exit_code == 2
    assert "--out FILE" in done.output
    assert run("--like", "llm", "--out", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("name", shapes.names())
def test_the_lists_that_come_with_tilery(sessions: Sessions, name: str) -> None:
    run("--like", name, "--dtype", "f16")
    with (shapes.folder() / f"{name}.csv").open() as file:
        rows = [{"m": int(r["m"]), "n": int(r["n"]), "k": int(r["k"])} for r in csv.DictReader(file)]
    asked = sessions.asked["problems"]
    assert {(p.m, p.n, p.k) for p in asked} == {tuple(row.values()) for row in rows}
    assert {p.dtype for p in asked} == {"f16"}
    assert len(set(asked)) == len(asked)


def test_there_are_lists() -> None:
    assert {"llm", "odd", "square"} <= set(shapes.names())
