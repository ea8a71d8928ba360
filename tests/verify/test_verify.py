"""A run of verify: children that end in every way, the report, what is blocked and unblocked; on a made-up GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.simulated import H200, NVRTC, VARIANTS, pack
from tests.verify import workers
from tilery import blocklist, examine, jit, policy, verify
from tilery.errors import DriverError, HostError, TileryError, UnknownName
from tilery.examine import SIZES, Job, Outcome, cases
from tilery.generator.variant import Variant
from tilery.pack import Pack
from tilery.store import Store
from tilery.trial import chunk
from tilery.verify import Verifier, choose

GPU = replace(H200, ordinal=0, driver_version=13000)


@pytest.fixture(autouse=True)
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "toolchain", lambda: NVRTC)


def run(
    store: Store, worker: verify.Worker, pattern: str = "*", limit: float = 60.0, made: Pack | None = None
) -> verify.Report:
    made = made or pack()
    verifier = Verifier(made, GPU, store, limit, worker)
    return verifier.run(choose(made, GPU, pattern), 7, policy.current())


def by_name(report: verify.Report) -> dict[str, verify.Result]:
    return {result.variant: result for result in report.results}


def blocked(store: Store) -> set[str]:
    return set(blocklist.blocked(store, GPU, pack()))


# ---- what is run


def test_what_has_an_image_is_verified() -> None:
    chosen = choose(pack(), GPU)
    assert {variant.name for variant in chosen.variants} == {n for n, v in VARIANTS.items() if v.tier == "core"}
    assert {reason for name, reason in chosen.skipped.items()} == {
        "no image for this device has it; --jit verifies what is compiled at run time"
    }
    assert {variant.name for variant in choose(pack(), GPU, compiled=True).variants} == set(VARIANTS)


def test_what_the_gpu_cannot_run_is_left_out() -> None:
    small = replace(GPU, shared_bytes=50_000)
    chosen = choose(pack(), small, "*mma*", compiled=True)
    assert chosen.variants and all(variant.shared_bytes <= 50_000 for variant in chosen.variants)
    assert any("shared memory" in reason for reason in chosen.skipped.values())


def test_a_pattern_that_names_nothing() -> None:
    with pytest.raises(UnknownName, match="unknown variant 'gemm_simd"):
        choose(pack(), GPU, "gemm_simd*")
    with pytest.raises(TileryError, match=r"none of 16 variants .* --jit"):
        choose(pack(), GPU, "*_tt_*")


# ---- what is found


def test_a_wrong_variant_is_blocked_and_a_right_one_unblocked(store: Store) -> None:
    report = run(store, workers.wrong_simt)
    simt = {variant.name for variant in choose(pack(), GPU, "*simt*").variants}
    assert {result.variant for result in report.failed} == simt == blocked(store)
    assert {result.block for result in report.failed} == {"blocked"}
    assert {result.block for result in report.results if result.ok} == {""}
    name = sorted(simt)[0]
    assert by_name(run(store, workers.right, name))[name].block == "unblocked"
    assert blocked(store) == simt - {name}


def test_a_finding_that_no_longer_applies_goes_too(store: Store) -> None:
    name = "gemm_naive_f32_any_16x16x1"
    older = replace(GPU, driver_version=12080)
    elsewhere = replace(GPU, sms=60)
    for gpu in (older, elsewhere):
        blocklist.put(store, blocklist.subject(VARIANTS[name], "image", gpu, pack()), "GPU", "2026-01-31", "wrong")
    run(store, workers.right, name)
    assert [one.subject.sms for one in blocklist.findings(store)] == ["60"], "another GPU's finding is its own"
    blocklist.put(store, blocklist.subject(VARIANTS[name], "image", older, pack()), "GPU", "2026-01-31", "wrong")
    run(store, workers.not_run, name)
    assert len(list(blocklist.findings(store))) == 2, "what was not run is not known to be right"


def test_what_could_not_be_run_fails_and_is_not_blocked(store: Store) -> None:
    report = run(store, workers.not_run, "*naive*")
    assert {result.outcome.status for result in report.failed} == {"not run"}
    assert len(report.failed) == 4
    assert blocked(store) == set()


def test_a_seed_blocks_on(store: Store, tmp_path: Path) -> None:
    name = "gemm_naive_f32_any_16x16x1"
    run(store, workers.faulty, name, limit=2)
    assert store.root is not None
    other = Store(tmp_path / "other", seeds=[store.root])
    assert by_name(run(other, workers.right, name))[name].block == "still blocked: it is in a read-only store"


def test_without_a_store_the_report_says_so(tmp_path: Path) -> None:
    report = run(Store(None), workers.wrong_simt, "*simt*")
    assert {result.block for result in report.failed} == {"not blocked: the policy keeps no store"}


# ---- children that do not come back


def test_the_report_is_complete_however_children_end(store: Store) -> None:
    report = run(store, workers.faulty, limit=3.0)
    expected = choose(pack(), GPU).variants
    assert [result.variant for result in report.results] == [variant.name for variant in expected]
    for result in report.results:
        name, outcome = result.variant, result.outcome
        if "128x256" in name:
            assert outcome == Outcome("not run", fault="while made ready: its process ended with exit code 3")
        elif "64x64" in name:
            assert outcome == Outcome("wrong", fault="its process ended with SIGKILL")
        elif "naive_f32" in name:
            assert outcome == Outcome("wrong", fault="no end within 3 s")
        else:
            assert outcome == workers.RIGHT
    assert blocked(store) == {v.name for v in expected if "64x64" in v.name or "naive_f32" in v.name}


def test_children_that_never_begin_end_the_run(store: Store) -> None:
    report = run(store, workers.dead)
    assert {result.outcome.status for result in report.results} == {"not run"}
    assert len(report.results) == len(choose(pack(), GPU).variants)
    assert blocked(store) == set()


# ---- the report


def test_the_report_is_json(store: Store, tmp_path: Path) -> None:
    report = run(store, workers.wrong_simt, "*f32_n*")
    report.results.append(replace(report.results[0], outcome=Outcome("wrong", 1, float("inf"), "NaN")))
    report.write(tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text())
    assert read == report.to_dict()
    assert (read["device"]["name"], read["driver"][:9], read["nvrtc"], read["seed"], read["ok"]) == (
        GPU.name,
        "CUDA 13.0",
        "13.0",
        7,
        False,
    )
    first = read["results"][0]
    assert {key: first[key] for key in ("status", "cases", "error", "fault", "source", "hash", "block")} == {
        "status": "wrong",
        "cases": 6,
        "error": 3.2,
        "fault": "error 3.2 times the bound",
        "source": "image",
        "hash": f"hash of {first['variant']}",
        "block": "blocked",
    }
    assert read["results"][-1]["error"] is None
    with pytest.raises(TileryError, match="report cannot be written"):
        report.write(tmp_path / "none" / "report.json")


# ---- the cases


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
def test_cases_straddle_the_tile_in_every_direction(variant: Variant) -> None:
    made = list(cases(variant, 1))
    whole, tile = chunk(variant), variant["tile"]
    assert len(made) == len(SIZES)
    for axis in range(3):
        rests = {case.shape[axis] % tile[axis] for case in made}
        assert len(rests) >= (1 if tile[axis] == 1 else 3), "sizes beside whole tiles"
    assert {case.shape.k for case in made} >= {0}
    assert any(0 < case.shape.k < tile[2] or tile[2] == 1 for case in made)
    for case in made:
        assert all(operand.offset % variant.align == 0 for name, operand in case.placed.items() if name in "ab")
    assert any(case.epilogue.bias for case in made) and any(case.epilogue.beta for case in made)
    assert any(case.odd.shift % (2 * whole) for case in made), "no better aligned than the variant needs"
    activations = {case.epilogue.activation for case in made}
    assert activations >= ({"relu"} if variant.dtype == "s8" else {"relu", "gelu", "silu"})


# ---- one child's work, in this process


class Pipe:
    def __init__(self) -> None:
        self.sent: list[tuple[object, ...]] = []

    def send(self, message: tuple[object, ...], /) -> None:
        self.sent.append(message)


class Broken:
    """A Plan whose launch fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def launch(self, params: object) -> None:
        raise self.error


FAULTS = {
    "launch": (DriverError("cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), "wrong", 1),
    "context": (DriverError("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS"), "wrong", 1),
    "host": (HostError("kernel x, block (0, 0, 0): deadlock"), "wrong", 2),
    "memory": (DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"), "not run", 2),
    "own": (RuntimeError("unexpected"), "not run", 2),
}


@pytest.mark.parametrize(("error", "status", "examined"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_the_variants_or_not(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: str, examined: int
) -> None:
    monkeypatch.setattr(examine, "builtin", pack)
    monkeypatch.setattr(examine, "_plan", lambda problem, ordinal: Broken(error))
    names = ("gemm_naive_f32_any_16x16x1", "gemm_naive_f16_any_16x16x1")
    pipe = Pipe()
    examine.work(pipe, Job(names, None, 1, policy.current()))
    outcomes = [message[2] for message in pipe.sent if message[0] == "done"]
    assert [outcome.status for outcome in outcomes if isinstance(outcome, Outcome)] == [status] * examined
    assert [message[:2] for message in pipe.sent[:2]] == [("start", names[0]), ("run", names[0])]


def test_an_error_of_freeing_does_not_hide_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hidden:
        def launch(self, params: object) -> None:
            try:
                raise DriverError("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS")
            finally:
                raise DriverError("cuMemFree", "CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(examine, "builtin", pack)
    monkeypatch.setattr(examine, "_plan", lambda problem, ordinal: Hidden())
    pipe = Pipe()
    examine.work(pipe, Job(("gemm_naive_f32_any_16x16x1",), None, 1, policy.current()))
    outcome = pipe.sent[-1][2]
    assert outcome == Outcome("wrong", fault="cuCtxSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS")
