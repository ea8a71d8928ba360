"""``tilery explain --from-trace``: what served the problems of a trace, and what would now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.runtime import simulated
from tests.runtime.simulated import DEVICES, H200, NO_NVRTC, NVRTC, problem
from tests.runtime.world import STREAM, Params, World
from tilery import pack as packs
from tilery import plan, policy, trace
from tilery.cli import app
from tilery.cli import explain as command
from tilery.decision import problem_text
from tilery.dispatch import choose
from tilery.plan import plan_for
from tilery.policy import Policy

NAIVE = "gemm_naive_bf16_any_16x16x1"


@pytest.fixture
def seen(world: World, file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of three problems, of which one was served by two variants; then the policy is the default again."""
    monkeypatch.setattr(packs, "builtin", simulated.pack)
    monkeypatch.setattr(command, "builtin", simulated.pack)
    policy.use(Policy(trace=file, jit="off"))
    for times, changes in ((3, {"m": 16}), (5, {"layout": "tt"}), (1, {})):
        made = plan_for(problem(**changes), 0)
        for _ in range(times):
            made.launch(Params(), STREAM)
    with policy.scope(force_variant=NAIVE):
        plan_for(problem(m=16), 0).launch(Params(), STREAM)
    trace.flush()
    policy.use(Policy())
    return file


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_then_and_now(seen: Path) -> None:
    result = run("--from-trace", seen, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows = {row["text"]: row for row in found["problems"]}
    assert [row["calls"] for row in found["problems"]] == [5, 4, 1]
    model = choose(problem(m=16), H200, simulated.pack(), Policy(), {}, lambda: NVRTC)
    wide = choose(problem(layout="tt"), H200, simulated.pack(), Policy(), {}, lambda: NVRTC)
    assert rows[problem_text(problem(m=16))]["then"] == [
        {"variant": model.variant.name, "tier": "model", "calls": 3},
        {"variant": NAIVE, "tier": "forced", "calls": 1},
    ]
    row = rows[problem_text(problem(layout="tt"))]
    assert row["then"] == [{"variant": NAIVE, "tier": "fallback", "calls": 5}]
    assert (row["now"]["variant"], row["now"]["tier"]) == (wide.variant.name, "jit")
    assert (row["now"]["us"], row["now"]["basis"], row["error"]) == (wide.us, "predicted", "")
    assert row["device"]["name"] == H200.name
    assert found["tiers"] == {
        "then": {"model": 4, "forced": 1, "fallback": 5},
        "now": {"jit": 5, "model": 5},
    }
    assert found["left_out"] == 0


def test_the_text(seen: Path) -> None:
    text = run("--from-trace", seen, "--top", "2").stdout
    lines = [line.strip() for line in text.splitlines()]
    assert any(line.startswith("5 ") and "layout tt" in line and f"{NAIVE} (fallback)" in line for line in lines)
    assert any(NAIVE in line and "(forced)" in line for line in lines)
    assert "... and 1 more: --top 3" in text
    assert [line.split() for line in lines if line.startswith("fallback")] == [["fallback", "5", "0"]]
    assert [line.split() for line in lines if line.startswith("jit")] == [["jit", "0", "5"]]


def test_top(seen: Path) -> None:
    found = json.loads(run("--from-trace", seen, "--top", "1", "--json").stdout)
    assert (len(found["problems"]), found["left_out"]) == (1, 2)
    assert sum(found["tiers"]["now"].values()) == 10  # of all


def test_for_another_gpu(seen: Path) -> None:
    found = json.loads(run("--from-trace", seen, "--arch", "compute_75", "--json").stdout)
    now = {row["now"]["tier"] for row in found["problems"]}
    expected = choose(problem(), DEVICES[7, 5], simulated.pack(), Policy(), {}, lambda: NVRTC)
    assert expected.tier in now
    assert found["problems"][0]["device"]["name"] == H200.name  # where it was


def test_what_nothing_serves_now(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.choose, "__defaults__", ({}, lambda: NO_NVRTC))
    policy.use(Policy(jit="require"))
    found = json.loads(run("--from-trace", seen, "--json").stdout)
    row = found["problems"][0]
    assert row["now"] is None
    assert row["error"].startswith("nothing can serve gemm m=512 n=512 k=512 bf16")
    assert found["tiers"]["now"] == {"nothing": 5, "model": 5}
    assert "nothing can serve" in run("--from-trace", seen).stdout


def test_a_missing_file(tmp_path: Path) -> None:
    result = run("--from-trace", tmp_path / "none")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be read" in result.stderr
