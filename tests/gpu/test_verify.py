"""`tilery verify` on a GPU: right variants pass, a launch that breaks the context loses one, dispatch obeys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tilery
from tests.verify import workers
from tilery import blocklist, plan, policy, verify
from tilery.cli import app
from tilery.device import DeviceInfo
from tilery.pack import builtin
from tilery.policy import Policy
from tilery.store import Store, open_store

pytestmark = pytest.mark.gpu

SHAPE = {"m": 1024, "n": 1024, "k": 1024, "dtype": "bf16", "layout": "nt"}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Store]:
    """A store of the test's own, and Plans that are made anew before and after."""
    plan.clear()
    policy.use(Policy(store=tmp_path / "store"))
    yield open_store(tmp_path / "store")
    plan.clear()


def served() -> str:
    plan.clear()
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tilery.gemm(a, b, trans_b=True)
    (made,) = plan._memory.plans.values()
    return made.decision.variant.name


def test_the_bf16_variants_are_right(gpu: DeviceInfo, own: Store) -> None:
    done = CliRunner().invoke(app, ["verify", "--only", "*bf16_nt*", "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["ok"]) == (0, True), [row for row in report["results"] if row["status"] != "ok"]
    assert report["device"]["name"] == gpu.name
    assert report["driver"].startswith("CUDA ")
    assert {row["cases"] for row in report["results"]} == {6}
    assert all(0 < row["error"] <= 1 for row in report["results"])
    assert list(blocklist.findings(own)) == []


def test_a_finding_is_honoured_until_verify_finds_it_right(gpu: DeviceInfo, own: Store) -> None:
    name, pack = served(), builtin()
    variant = pack.variants[name]
    subject = blocklist.subject(variant, blocklist.source_of(variant, gpu, pack)[0], gpu, pack)
    assert blocklist.put(own, subject, gpu.name, "2026-01-31", "error 3.2 times the bound") == ""
    assert served() != name
    assert "blocked by `tilery verify` on 2026-01-31: error 3.2" in str(tilery.explain("gemm", **SHAPE))
    done = CliRunner().invoke(app, ["verify", "--only", name, "--json"])
    assert [row["block"] for row in json.loads(done.stdout)["results"]] == ["unblocked"]
    assert served() == name


def test_an_illegal_access_loses_one_variant(gpu: DeviceInfo, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = builtin()
    chosen = verify.choose(pack, gpu, "gemm_naive*")
    monkeypatch.setenv(workers.ASTRAY, chosen.variants[1].name)
    verifier = verify.Verifier(pack, gpu, own, 120.0, workers.astray)
    report = verifier.run(chosen, 3, policy.current())
    assert [result.outcome.status for result in report.results] == ["ok", "wrong", *["ok"] * (len(report.results) - 2)]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in report.results[1].outcome.fault
    assert [one.subject.variant for one in blocklist.findings(own)] == [chosen.variants[1].name]
    assert served()
