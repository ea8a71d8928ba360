"""`tilery coverage`: tiers and shares of a list of problems, the pack's regret, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.simulated import DEVICES, H200, NO_NVRTC, NVRTC, pack, problem
from tilery import coverage, device, plan, policy
from tilery.cli import coverage as command
from tilery.coverage import NONE, cover
from tilery.dispatch import TIERS
from tilery.policy import Policy

Run = Callable[..., Any]
REGRET = {"model": {"problems": 40, "geomean": 1.02, "p90": 1.05, "max": 1.31}}
COVERED, UNCOVERED, ODD = problem(), problem(layout="tt"), problem(layout="any", align=2)
LINES = ("m,n,k,layout,align", "512,512,512,nt,16", "512,512,512,nt,16", "256,512,512,nt,16", "512,512,512,tt,16")


@pytest.fixture(autouse=True)
def toolchain(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Which NVRTC there is."""

    def use(tools: Any) -> None:
        monkeypatch.setattr(plan.choose, "__defaults__", ({}, lambda: tools))

    use(NVRTC)
    plan.clear()
    policy.use(Policy(store=None))
    return use


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The pack and the GPU of the command, and a file."""
    monkeypatch.setattr(command, "builtin", lambda: replace(pack(), regret={H200.gpu: REGRET}))
    monkeypatch.setattr(device, "devices", lambda: (H200,))
    file = tmp_path / "shapes.csv"
    file.write_text("\n".join(LINES) + "\n")
    return file


def tiers(report: coverage.Report) -> dict[str, tuple[int, float]]:
    return {row.tier: (row.problems, row.share) for row in report.tiers}


def test_every_problem_has_its_tier() -> None:
    report = cover([COVERED, UNCOVERED, COVERED, ODD], H200, pack(), Policy())
    assert tiers(report) == {"model": (1, 0.5), "jit": (1, 0.25), "fallback": (1, 0.25)}
    assert [row.tier for row in report.tiers] == sorted(tiers(report), key=list(TIERS).index)
    assert [(one.problem, one.times) for one in report.served] == [(COVERED, 2), (UNCOVERED, 1), (ODD, 1)]
    decision = plan.decide(COVERED, H200, pack(), Policy())
    first = report.served[0]
    assert (first.variant, first.source, first.us, first.basis) == (
        decision.variant.name,
        decision.source,
        decision.us,
        decision.basis,
    )


def test_a_gpu_of_ptx_only_is_portable() -> None:
    assert tiers(cover([COVERED], DEVICES[13, 0], pack(), Policy())).keys() == {"portable"}


def test_what_nothing_serves_is_told_and_always_fails() -> None:
    bare = replace(pack(), images={})
    report = cover([COVERED, UNCOVERED], H200, bare, Policy(jit="off"))
    assert tiers(report) == {NONE: (2, 1.0)}
    assert report.failing(()) == report.served
    assert "the policy is jit='off'" in report.served[0].reason


def test_the_fallback_says_why(toolchain: Callable[[Any], None]) -> None:
    toolchain(NO_NVRTC)
    (one,) = cover([UNCOVERED], H200, pack(), Policy()).served
    assert one.tier == "fallback"
    assert "NVRTC cannot be loaded" in one.reason
    assert "variants.toml" in one.advice


def test_regret_is_that_of_the_silicon() -> None:
    known = replace(pack(), regret={H200.gpu._replace(name="another product"): REGRET})
    rows = {row.tier: row.regret for row in cover([COVERED, UNCOVERED], H200, known, Policy()).tiers}
    assert rows == {"model": REGRET["model"], "jit": {}}
    assert cover([COVERED], DEVICES[8, 0], known, Policy()).tiers[0].regret == {}


def test_an_empty_list_has_no_tiers() -> None:
    assert cover([], H200, pack(), Policy()).tiers == ()


# ---- the command


def test_the_summary(run: Run, made: Path) -> None:
    done = run("coverage", made)
    assert done.exit_code == 0
    assert "regret geomean" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["model", "2", "75.0%", "1.020", "1.050", "1.310"] in lines
    assert ["jit", "1", "25.0%"] in lines
    assert "3 problems on" in done.stdout


def test_no_regret_no_column(run: Run, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "builtin", pack)
    assert "regret" not in run("coverage", made).stdout


def test_a_tier_that_must_not_serve_fails(run: Run, made: Path) -> None:
    done = run("coverage", made, "--fail-on", "jit, fallback")
    assert done.exit_code == 1
    assert "layout tt, aligned to 16 bytes: jit" in done.stdout
    assert "why: no image fits" in done.stdout and "do: `tilery warm`" in done.stdout
    assert "FAIL 1 problems are served by jit, fallback, nothing at all" in done.stdout


def test_the_default_lets_the_jit_serve_and_not_the_fallback(run: Run, made: Path) -> None:
    assert run("coverage", made).exit_code == 0
    policy.use(Policy(jit="off", store=None))
    assert run("coverage", made).exit_code == 1
    assert run("coverage", made, "--fail-on", "nothing").exit_code == 0


def test_json(run: Run, made: Path) -> None:
    done = run("coverage", made, "--json", "--fail-on", "jit")
    data = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (data["ok"], data["fail_on"], data["device"]["name"]) == (False, ["jit"], H200.name)
    assert [(row["tier"], row["problems"], row["share"], row["regret"]) for row in data["tiers"]] == [
        ("model", 2, 0.75, REGRET["model"]),
        ("jit", 1, 0.25, {}),
    ]
    assert [row["tier"] for row in data["problems"]] == ["model", "model", "jit"]
    assert data["problems"][0]["problem"]["m"] == 512
    assert data["failing"] == [data["problems"][2]]


def test_bad_input(run: Run, made: Path, tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("m,n,k\n")
    for words, told in (
        ((made, "--fail-on", "modle"), "unknown tier 'modle': did you mean 'model'"),
        ((made, "--arch", "sm_90a", "--device", "0"), "pass one of them"),
        ((made, "--device", "7"), "no GPU 7"),
        ((tmp_path / "none.csv",), "has no problem"),
        ((tmp_path / "gone.csv",), "cannot be read"),
    ):
        done = run("coverage", *words)
        assert done.exit_code == 2
        assert told in done.stderr


def test_no_gpu_needs_an_arch(run: Run, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "devices", lambda: ())
    done = run("coverage", made)
    assert done.exit_code == 2
    assert "Pass --arch: host, or one of compute_75" in done.stderr


def test_a_described_gpu_of_the_installed_pack(run: Run, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    done = run("coverage", made, "--arch", "host", "--json")
    assert {row["tier"] for row in json.loads(done.stdout)["problems"]} <= {*TIERS}
    assert json.loads(done.stdout)["device"]["cc"] == [0, 0]
