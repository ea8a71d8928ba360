"""``tilery demo`` without a GPU: what it shows, and that a wrong result makes it fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilery import image, ops, policy, reference
from tilery.cli import check, demo, matrix, problems
from tilery.cli.problems import DemoProblem, Operands
from tilery.device import representative
from tilery.dispatch import choose
from tilery.pack import builtin
from tilery.policy import Policy

CASES = [
    DemoProblem("half", 33, 65, 40, "f16", "nn", bias=True, activation="gelu"),
    DemoProblem("brain", 17, 30, 29, "bf16", "nt"),
    DemoProblem("single", 20, 31, 64, "f32", "tn", precision="tf32"),
    DemoProblem("int", 21, 31, 64, "s8", "nt", bias=True),
    DemoProblem("not in the table", 64, 64, 64, "bf16", "tt", uncovered=True),
]


@pytest.fixture
def few(monkeypatch, no_gpu):
    """Small problems and no GPU."""
    monkeypatch.setattr(problems, "load", lambda: CASES)


def covered_archs():
    return {name for name, images in builtin().images.items() if images} or set(builtin().archs)


def test_a_real_process_runs_the_real_problems(spawn, tmp_path):
    done = spawn("demo", "--json", "--seed", "7")
    data = json.loads(done.stdout)
    assert (done.returncode, done.stderr, data["ok"], data["seed"], data["gpu"]) == (0, "", True, 7, None)
    assert data["reason"]
    assert {row["arch"] for row in data["covered"]} == covered_archs()
    names = {row["name"] for row in data["results"]}
    assert {"Llama 3 8B qkv", "Llama 3 8B o_proj", "odd sizes", "float32", "float32 as tf32", "int8"} < names
    assert all(row["ok"] and 0 <= row["error"] <= 1 and row["elements"] > 0 for row in data["results"])
    assert len(data["decisions"]) == len(problems.load()) * len({row["gpu"]["name"] for row in data["covered"]})
    compiled = data["compiled"]
    assert compiled["variant"].split("_")[3] == "tt"
    assert compiled["compiled"] is True
    assert Path(compiled["path"]).is_relative_to(tmp_path / "store")
    assert Path(compiled["path"]).stat().st_size > compiled["bytes"] > 1000
    assert b"\x7fELF" in Path(compiled["path"]).read_bytes()
    again = json.loads(spawn("demo", "--json", "--seed", "7").stdout)
    assert again["compiled"]["compiled"] is False
    assert [row["error"] for row in again["results"]] == [row["error"] for row in data["results"]]


def test_text_says_first_that_there_is_no_gpu_and_shows_everything(run, few):
    result = run("demo")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "No NVIDIA GPU was found: this test hides them."
    assert all(any(line.startswith(f" {arch} ") for line in lines) for arch in covered_archs())
    assert all(sum(str(case) in line for line in lines) >= 2 for case in CASES)
    assert "5 of 5 results are within the componentwise bound of float64." in result.stdout
    assert "random data of seed " in result.stdout
    assert "FAIL" not in result.stdout


def test_decisions_are_those_of_choose(run, few):
    data = json.loads(run("demo", "--json").stdout)
    archs = {representative(arch).name: arch for arch in covered_archs()}
    assert {row["gpu"] for row in data["decisions"]} == set(archs)
    for row in data["decisions"]:
        case = next(case for case in CASES if case.name == row["name"])
        expected = choose(case.request(), representative(archs[row["gpu"]]), builtin(), policy.current())
        assert (row["variant"], row["tier"], row["arch"]) == (expected.variant.name, expected.tier, expected.arch)
        assert (row["us"], row["basis"]) == (expected.us, expected.basis)


def test_each_run_has_a_new_seed(run, few):
    assert json.loads(run("demo", "--json").stdout)["seed"] != json.loads(run("demo", "--json").stdout)["seed"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_wrong_element_fails_the_demo(run, few, monkeypatch, case):
    right = ops.gemm

    def wrong(a, b, **options):
        result = right(a, b, **options)
        out = result.bits if isinstance(result, matrix.Matrix) else result
        if out.shape == (case.m, case.n):
            bits = out.dtype.itemsize * 8
            out.view(f"u{out.dtype.itemsize}")[-1, -1] ^= 1 << (bits - 2)  # the exponent's highest
        return result

    monkeypatch.setattr(ops, "gemm", wrong)
    result = run("demo", "--json")
    data = json.loads(result.stdout)
    assert (result.exit_code, data["ok"]) == (1, False)
    assert [row["name"] for row in data["results"] if not row["ok"]] == [case.name]


def test_a_sabotaged_product_fails_in_words(run, few, monkeypatch):
    right = ops.gemm
    monkeypatch.setattr(ops, "gemm", lambda a, b, **options: right(a, b, alpha=2, **options))
    result = run("demo")
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "times what rounding allows" in result.stdout


def test_an_error_in_one_problem_leaves_the_others(run, few, monkeypatch):
    gemm = ops.gemm

    def fail(a, b, **options):
        if getattr(a, "dtype", None) == np.int8:
            raise policy.UnknownName("dtype", "s8", ["f32"])
        return gemm(a, b, **options)

    monkeypatch.setattr(ops, "gemm", fail)
    result = run("demo", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["results"]}
    assert result.exit_code == 1
    assert rows["int"]["fault"].startswith("unknown dtype 's8'")
    assert all(row["ok"] for name, row in rows.items() if name != "int")


def test_without_jit_nothing_is_compiled(run, few):
    policy.use(Policy(jit="off", store=None))
    result = run("demo", "--json")
    data = json.loads(result.stdout)
    assert data["compiled"]["fault"] == "the policy is jit='off'"
    assert all(row["source"] in ("image", None) for row in data["decisions"])
    # A pack without images serves nothing then, and says so.
    assert result.exit_code == (0 if any(builtin().images.values()) else 1)


def test_a_wrong_variable_is_bad_input(spawn):
    done = spawn("demo", TILERY_JIT="of")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'off'" in done.stderr


def test_the_best_covered_arch_comes_first():
    rows = demo.covered(builtin())
    assert {row.arch for row in rows} == covered_archs()
    *gpus, last = rows
    assert last.arch == "host"
    assert image.is_sass(rows[0].arch) or not any(image.is_sass(row.arch) for row in gpus)
    for row in rows:
        assert row.images == len(builtin().images.get(row.arch, {}))


def test_problems_are_the_layers_of_the_model():
    found = {(case.name.split()[-1], case.m, case.n, case.k) for case in problems.load() if "Llama" in case.name}
    layers = [
        ("qkv", 4096 + 2 * 8 * 128, 4096),
        ("o_proj", 4096, 4096),
        ("gate_up", 2 * 14336, 4096),
        ("down", 4096, 14336),
    ]
    assert found == {(name, m, n, k) for name, n, k in layers for m in (1, 16, 512)}
    assert sum(case.uncovered for case in problems.load()) == 1


@pytest.mark.parametrize("case", problems.load(), ids=str)
def test_a_problem_is_what_gemm_makes_of_its_arrays(case):
    problem = case.request()
    assert (problem.m, problem.n, problem.k, problem.batch) == (case.m, case.n, case.k, 1)
    assert (problem.dtype, problem.layout, problem.precision) == (case.dtype, case.layout, case.precision)
    assert (problem.bias, problem.activation) == (case.bias, case.activation or "none")
    assert problem.align == (2 if case.name == "odd sizes" else 16)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_random_floats_are_signed_and_of_like_size(dtype):
    values = reference.decode(problems._random(np.random.default_rng(1), (200, 300), dtype))
    assert 0.0625 <= np.abs(values).min() < 0.0626
    assert 0.99 < np.abs(values).max() < 1
    assert abs(values.mean()) < 0.01


@pytest.mark.parametrize("corner", [(0, 0), (0, -1), (-1, 0), (-1, -1)])
@pytest.mark.parametrize("sizes", [(40, 50, 30), (300, 900, 8000)], ids=["whole", "sampled"])
def test_a_wrong_corner_is_always_seen(corner, sizes):
    case = DemoProblem("corner", *sizes, "f32", "tt")
    rng = np.random.default_rng(3)
    data = case.data(rng)
    got = (data.a.T.astype(np.float64) @ data.b.T.astype(np.float64)).astype(np.float32)
    right = check.compare(case, data, got, rng)
    assert right.ok
    assert right.elements == (got.size if sizes[0] == 40 else check.SAMPLED_ROWS * check.SAMPLED_COLUMNS)
    got[corner] = np.nan
    assert check.compare(case, data, got, rng).ratio == np.inf


def test_compare_knows_bias_and_activation():
    case = DemoProblem("bias", 2, 3, 1, "f32", "nn", bias=True, activation="relu")
    data = Operands(np.float32([[1], [-1]]), np.float32([[1, 2, 3]]), np.float32([0, -5, 0]))
    right = np.float32([[1, 0, 3], [0, 0, 0]])
    rng = np.random.default_rng(0)
    assert check.compare(case, data, right, rng) == (0.0, 6)
    assert not check.compare(case, data, right + np.float32(1e-3), rng).ok


def test_gemm_takes_bf16_bits_in_host_memory():
    matrix.register()
    one = matrix.Matrix((2, 2), "bf16", np.full((2, 2), 0x3F80, np.uint16))
    assert ops.gemm(one, one).bits.tolist() == [[0x4000] * 2] * 2
