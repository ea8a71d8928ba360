"""``tilery explain`` against the choice that the runtime makes."""

from __future__ import annotations

import json

import pytest

import tilery
from tilery.advice import explained
from tilery.cli import explain as command
from tilery.device import representative
from tilery.dispatch import choose
from tilery.pack import builtin
from tilery.policy import current
from tilery.problem import Problem

QKV = ["--m", "512", "--n", "6144", "--k", "4096", "--dtype", "bf16", "--layout", "nt", "--arch", "sm_90a"]
ODD = ["--m", "333", "--n", "777", "--k", "555", "--dtype", "float32", "--arch", "compute_75", "--align", "4"]
FULL = ["--batch", "3", "--out-dtype", "f32", "--bias", "--activation", "gelu", "--accumulate"]
TF32 = ["--m", "64", "--n", "64", "--k", "64", "--dtype", "f32", "--precision", "tf32", "--arch", "sm_80"]


@pytest.mark.parametrize(
    ("args", "arch", "problem"),
    [
        (QKV, "sm_90a", Problem("gemm", 512, 6144, 4096, 1, "bf16", "bf16", "nt", 16)),
        (ODD, "compute_75", Problem("gemm", 333, 777, 555, 1, "f32", "f32", "nn", 4)),
        (
            QKV + FULL,
            "sm_90a",
            Problem("gemm", 512, 6144, 4096, 3, "bf16", "f32", "nt", 16, "ieee", True, "gelu", True),
        ),
        (TF32, "sm_80", Problem("gemm", 64, 64, 64, 1, "f32", "f32", "nn", 16, "tf32")),
    ],
)
def test_json_is_what_choose_decides(run, args, arch, problem):
    result = run("explain", "gemm", "--json", *args)
    expected = choose(problem, representative(arch), builtin(), current())
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    advice = [one._asdict() for one in explained(problem, representative(arch)).advice]
    assert found == json.loads(json.dumps(expected.to_dict() | {"advice": advice}))
    assert found["variant"] == expected.variant.name


def test_text_is_the_decision_in_words(run):
    decision = tilery.explain("gemm", m=512, n=6144, k=4096, dtype="bf16", layout="nt", arch="sm_90a")
    assert run("explain", "gemm", *QKV).stdout == f"{decision}\n"


def test_a_real_process(spawn):
    done = spawn("explain", "gemm", "--json", *QKV)
    decision = tilery.explain("gemm", m=512, n=6144, k=4096, dtype="bf16", layout="nt", arch="sm_90a")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["variant"] == decision.variant.name


def test_every_argument_of_the_function_is_an_option():
    import inspect

    wanted = set(inspect.signature(tilery.explain).parameters)
    assert set(inspect.signature(command.explain).parameters) == wanted | {"context", "from_trace", "top", "json"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["--arch", "sm_90"], "did you mean 'sm_90a'"),
        (["--dtype", "bf17"], "did you mean 'bf16'"),
        (["--layout", "nm"], "'nn'? Known: any"),
        (["--activation", "rleu"], "did you mean 'relu'"),
        (["--m", "-1"], "m = -1 is out of range"),
        (["--k", str(2**31)], f"k = {2**31} is out of range"),
        (["--precision", "tf32"], "precision='tf32' is for f32 inputs"),
    ],
)
def test_bad_input(run, change, text):
    result = run("explain", "gemm", *QKV, *change)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr


def test_an_unknown_op_and_a_missing_size(run):
    assert "did you mean 'gemm'" in run("explain", "gem", *QKV).stderr
    result = run("explain", "gemm", "--m", "5")
    assert result.exit_code == 2
    assert "--n" in result.stderr


def test_without_arch_and_gpu_it_decides_for_the_cpu(run, no_gpu):
    result = run("explain", "gemm", *QKV[:-2], "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["device"]["cc"] == [0, 0]
