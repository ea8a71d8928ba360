"""A planted wrong kernel on the host device, through the command: found, blocked, shown, left out, and unblocked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilery
from tests.host.test_runtime import NAIVE, SIMT
from tests.verify import workers
from tests.verify.planted import install, library
from tilery import device, policy, reference
from tilery.cli import verify as command
from tilery.errors import UnknownName
from tilery.host import plan as plans


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: library(tmp_path_factory.mktemp(kind), kind == "wrong") for kind in ("wrong", "right")}


@pytest.fixture
def process(libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process without GPUs, whose children take the library that `use` names."""
    monkeypatch.setattr(device, "devices", lambda: ())
    monkeypatch.setattr(command, "work", workers.planted)
    yield monkeypatch


def use(process: pytest.MonkeyPatch, path: Path) -> None:
    """A new process with this library."""
    process.setenv(workers.LIBRARY, str(path))
    made = install(process, path)
    process.setattr(command, "builtin", lambda: made)


def served() -> str:
    """What serves a product whose k is one more than whole tiles, and whether it is right."""
    plans.clear()
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((40, 33)).astype(np.float32), rng.standard_normal((33, 30)).astype(np.float32)
    got = tilery.gemm(a, b)
    allowed = reference.bound(a, b, dtype="f32", out_dtype="f32")
    right = reference.worst(got, reference.exact(a, b, out_dtype="f32"), allowed, "f32") <= 1
    (plan,) = [made for made in plans._memory.plans.values() if made]
    return f"{plan.decision.variant.name} {'right' if right else 'wrong'}"


def explained() -> str:
    return str(tilery.explain("gemm", m=40, n=30, k=33, dtype="f32", align=4, arch="host"))


def test_found_blocked_shown_left_out_and_unblocked(
    process: pytest.MonkeyPatch, libraries: dict[str, Path], run, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    use(process, libraries["wrong"])
    assert served() == f"{SIMT} wrong"

    report = tmp_path / "report.json"
    done = run("verify", "--seed", "5", "--report", report)
    assert done.exit_code == 1
    assert "times the bound" in done.stdout and "1 of 2 variants are right" in done.stdout
    results = {row["variant"]: row for row in json.loads(report.read_text())["results"]}
    assert (results[SIMT]["status"], results[SIMT]["block"]) == ("wrong", "blocked")
    assert re.search(r" k=(1|17|33) ", results[SIMT]["case"])
    assert (results[NAIVE]["status"], results[NAIVE]["cases"]) == ("ok", 6)
    assert 0 < results[NAIVE]["error"] <= 1

    assert served() == f"{NAIVE} right"
    assert "blocked by `tilery verify` on" in explained() and "times the bound" in explained()
    with policy.scope(force_variant=SIMT), pytest.raises(UnknownName, match="blocked by `tilery verify`"):
        served()
    listed = json.loads(run("verify", "--list", "--json").stdout)
    assert [(row["variant"], row["applies"]) for row in listed] == [(SIMT, True)]

    # The same again: what is blocked is run all the same.
    again = json.loads(run("verify", "--seed", "5", "--only", SIMT, "--json").stdout)
    assert [row["error"] for row in again["results"]] == [results[SIMT]["error"]]

    # A library that was built anew: the finding no longer applies, and verify takes it away.
    use(process, libraries["right"])
    assert served() == f"{SIMT} right"
    stale = run("verify", "--list").stdout
    assert "no longer applies: what compiled it was" in stale and "`tilery verify` examines" in stale
    done = run("verify")
    assert done.exit_code == 0
    assert "2 of 2 variants are right" in done.stdout
    assert json.loads(run("verify", "--list", "--json").stdout) == []


def test_a_call_that_images_serve_makes_no_store(
    process: pytest.MonkeyPatch, libraries: dict[str, Path], tmp_path: Path
) -> None:
    use(process, libraries["right"])
    with policy.scope(store=tmp_path / "untouched"):
        assert served() == f"{SIMT} right"
    assert not (tmp_path / "untouched").exists()


def test_clearing(process: pytest.MonkeyPatch, libraries: dict[str, Path], run) -> None:  # type: ignore[no-untyped-def]
    use(process, libraries["wrong"])
    assert run("verify", "--only", "*simt*").exit_code == 1
    assert run("verify", "--clear", "--only", "*naive*").exit_code == 0
    assert served() == f"{NAIVE} right"
    done = run("verify", "--clear", "--json")
    assert json.loads(done.stdout) == {"removed": [SIMT], "left": {}}
    assert served() == f"{SIMT} wrong"


def test_a_real_process_on_this_installation(spawn) -> None:  # type: ignore[no-untyped-def]
    done = spawn("verify", "--only", "gemm_naive_f*", "--device", "host", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr, report["ok"]) == (0, "", True)
    assert [(row["status"], row["cases"], row["source"]) for row in report["results"]] == [("ok", 6, "image")] * 2
    assert report["device"]["cc"] == [0, 0]


def test_bad_input(process: pytest.MonkeyPatch, libraries: dict[str, Path], run) -> None:  # type: ignore[no-untyped-def]
    use(process, libraries["right"])
    for words, told in (
        (("--only", "gemm_simd*"), "unknown variant 'gemm_simd*'"),
        (("--device", "one"), "pass the number of a GPU, or host"),
        (("--device", "0"), "no GPU 0"),
        (("--list", "--clear"), "pass one of them"),
    ):
        done = run("verify", *words)
        assert done.exit_code == 2
        assert told in done.stderr


def test_what_was_never_run_says_nothing(process: pytest.MonkeyPatch, libraries: dict[str, Path], run) -> None:  # type: ignore[no-untyped-def]
    """A library that has gone cannot be loaded: a failure, and no finding."""
    use(process, libraries["right"])
    pack = command.builtin()
    gone = {
        arch: {name: replace(image, path=image.path.with_name("gone.so")) for name, image in images.items()}
        for arch, images in pack.images.items()
    }
    process.setattr(command, "builtin", lambda: replace(pack, images=gone))
    process.setattr(command, "work", workers.not_run)
    done = run("verify", "--json")
    assert done.exit_code == 1
    assert {row["status"] for row in json.loads(done.stdout)["results"]} == {"not run"}
    assert json.loads(run("verify", "--list", "--json").stdout) == []
