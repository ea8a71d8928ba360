"""tilery warm: files of problems, what is printed, and what a bad file says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.jit.test_prepare import compiler as compiler
from tilery import plan, policy, warmup
from tilery.asked import request
from tilery.cli import app
from tilery.pack import builtin
from tilery.policy import Policy
from tilery.requests import read

CSV = """\
# where these come from
m,n,k,layout,dtype,batch
64,64,64,tt,bf16,
512,512,512,tt,,3

100,7,5,nt,f32,1
"""
LINES = (
    '{"m": 64, "n": 64, "k": 64, "layout": "tt"}\n\n{"m": 5, "n": 6, "k": 7, "dtype": "f32", "activation": "relu"}\n'
)


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["warm", *map(str, arguments)])


def write(folder: Path, text: str) -> Path:
    path = folder / "problems of a model"
    path.write_text(text)
    return path


def test_csv(tmp_path: Path) -> None:
    assert read(write(tmp_path, CSV), "bf16") == [
        request(m=64, n=64, k=64, layout="tt", dtype="bf16"),
        request(m=512, n=512, k=512, layout="tt", dtype="bf16", batch=3),
        request(m=100, n=7, k=5, layout="nt", dtype="f32"),
    ]


def test_json_lines(tmp_path: Path) -> None:
    assert read(write(tmp_path, LINES), "f16") == [
        request(m=64, n=64, k=64, layout="tt", dtype="f16"),
        request(m=5, n=6, k=7, dtype="f32", activation="relu"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m,n,k,layuot\n1,2,3,nt\n", ["layuot", "did you mean 'layout'"]),
        ("m,n\n1,2\n", ["line 2", "k is missing"]),
        ("m,n,k\n1,2,x\n", ["line 2", "k is 'x', expected a whole number"]),
        ("m,n,k\n1,2,3\n1,-2,3\n", ["line 3", "n = -2"]),
        ("m,n,k,dtype\n1,2,3,bf61\n", ["line 2", "bf16"]),
        ("m,n,k,bias\n1,2,3,maybe\n", ["line 2", "bias is 'maybe', expected one of true, 1, false, 0"]),
        ('{"m": 1', ["line 1"]),
        ('{"m": 1, "n": 2, "k": 3}\n[1]\n', ["line 2", "expected an object"]),
    ],
)
def test_a_bad_file(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    result = run(path)
    assert result.exit_code == 2
    for word in (*words, path.name):
        assert word in result.output


def test_no_such_file(tmp_path: Path) -> None:
    assert run(tmp_path / "none").exit_code == 2


@pytest.fixture
def here(tmp_path: Path, compiler: list[str]) -> Any:
    policy.use(Policy(store=tmp_path / "store"))
    yield write(tmp_path, CSV)
    policy.use(None)
    plan.clear()


def test_warm_and_again(here: Path, compiler: list[str]) -> None:
    first = run(here, "--arch", "sm_90a", "--json", "--workers", 2)
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert len(report["results"]) == 3
    assert report["origins"]["nvrtc"] == len(compiler)
    made = len(compiler)
    again = run(here, "--arch", "sm_90a")
    assert again.exit_code == 0
    assert "3 problems" in again.stdout
    assert "store" in again.stdout
    assert len(compiler) == made


def test_a_problem_that_nothing_serves_makes_it_fail(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(builtin(), images={}, table={}, records={})
    monkeypatch.setattr(warmup, "builtin", lambda: bare)
    policy.use(Policy("off", store=None))
    result = run(here, "--arch", "sm_90a")
    assert result.exit_code == 1
    assert "failed" in result.stdout
