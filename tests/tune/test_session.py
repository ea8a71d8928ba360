"""Sessions on a made-up GPU: what is measured, what is kept, what never wins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.simulated import problem
from tests.tune.conftest import Bench, names, pack, variant_of
from tilery.asked import request
from tilery.errors import DriverError, InvalidInput
from tilery.generator.records import parse
from tilery.problem import Problem
from tilery.tune.result import Result
from tilery.tune.session import tune

P = problem(96, 80, 64)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_fastest_wins(driver: Bench, tmp_path: Path) -> None:
    fast = names(P)[-1]
    driver.us = lambda name: 5.0 if name == fast else 9.0
    out = tmp_path / "new folder" / "h200.jsonl"
    report = tune([P, P], out=out)
    (result,) = report.results
    assert (result.status, result.best, result.reason) == ("measured", fast, "")
    assert result.gain == pytest.approx(1.8)
    record = parse("here", out.read_text())
    assert set(record.times) == set(names(P))
    assert record.times[fast].us == pytest.approx(5.0)
    assert record.times[fast].hash == pack().hashes[fast][:12]
    assert (record.toolchain, record.driver, record.gpu.sms) == ("13.0", "580.95", 132)
    assert (driver.graphs, driver.events, driver.streams, driver.buffers) == (0, 0, 0, {})


def test_graphs_go_through_all_sets(driver: Bench, tmp_path: Path) -> None:
    """Launch after launch of one kernel, as `check` launches it, with the next set of operands."""
    tune([P], out=tmp_path / "out")
    assert driver.instantiated
    for graph in driver.instantiated:
        (kernel,) = {(node.name, node.shared_bytes) for node in graph}
        assert kernel[0] in names(P)
        assert kernel[1] == variant_of(kernel[0]).shared_bytes
        addresses = [node.a for node in graph]
        sets = len(set(addresses))
        assert 1 < sets <= len(graph)
        assert addresses == [addresses[i % sets] for i in range(len(graph))]


PROBLEMS = [
    request(m=33, n=17, k=40, dtype="bf16", layout="nn"),
    request(m=1, n=64, k=64, dtype="bf16", layout="nt"),
    request(m=1, n=1, k=1, dtype="f32", layout="nn"),
    request(m=64, n=64, k=64, dtype="bf16", layout="nt", align=2),
    request(m=64, n=64, k=64, dtype="f32", layout="tt", align=8),
    request(m=64, n=48, k=32, dtype="f32", layout="nn", precision="tf32"),
    request(m=30, n=20, k=10, dtype="f16", layout="any"),
    request(m=30, n=20, k=16, dtype="s8", layout="any", batch=3),
    request(m=32, n=20, k=16, dtype="s8", layout="tn", align=1),
    request(m=24, n=16, k=8, dtype="f16", layout="tt", batch=4, bias=True, activation="relu", out_dtype="f32"),
    request(m=24, n=16, k=8, dtype="bf16", layout="nt", batch=2, accumulate=True, bias=True),
    request(m=7, n=5, k=3, dtype="s8", layout="nn", out_dtype="f32", activation="silu", accumulate=True),
]


@pytest.mark.parametrize("asked", PROBLEMS, ids=str)
def test_problems_of_every_kind_are_right(driver: Bench, tmp_path: Path, asked: Problem) -> None:
    """The fake kernels read operands where the parameters say, and check layout and alignment."""
    (result,) = tune([asked], out=tmp_path / "out").results
    assert result.status == "measured", result
    assert not result.wrong
    assert set(driver.launched) == set(names(asked)) != set()


@pytest.mark.parametrize("kind", ["wrong", "unwritten"])
def test_a_wrong_candidate_is_never_timed(driver: Bench, tmp_path: Path, kind: str) -> None:
    wrong = names(P)[0]
    getattr(driver, kind).add(wrong)
    driver.us = lambda name: 1.0 if name == wrong else 9.0
    report = tune([P], out=tmp_path / "out")
    (result,) = report.results
    assert result.status == "measured"
    assert result.best != wrong
    assert wrong in result.wrong
    assert wrong not in result.times
    assert wrong not in driver.replayed
    assert report.wrong == {wrong: 1}
    assert wrong in str(report)
    assert wrong not in parse("here", (tmp_path / "out").read_text()).times


def test_what_cannot_be_launched_is_left_out(driver: Bench, tmp_path: Path) -> None:
    driver.refused.add(names(P)[0])
    (result,) = tune([P], out=tmp_path / "out").results
    assert result.status == "measured"
    assert "cuLaunchKernel" in result.wrong[names(P)[0]]


def test_nothing_right_is_no_record(driver: Bench, tmp_path: Path) -> None:
    driver.wrong.update(names(P))
    (result,) = tune([P], out=tmp_path / "out").results
    assert (result.status, result.best) == ("failed", "")
    assert not (tmp_path / "out").exists()


def test_a_fault_names_the_kernel_and_keeps_what_there_is(driver: Bench, tmp_path: Path) -> None:
    second = request(m=64, n=64, k=64, dtype="f32", layout="nn")
    driver.faults.add(names(second)[1])
    with pytest.raises(DriverError, match=names(second)[1]):
        tune([P, second], out=tmp_path / "out")
    assert len(lines(tmp_path / "out")) == 1


def test_a_session_goes_on_where_it_was(driver: Bench, tmp_path: Path) -> None:
    out, second = tmp_path / "out", request(m=64, n=64, k=64, dtype="f32", layout="nn")

    def stop(result: Result) -> None:
        raise KeyboardInterrupt

    report = tune([P, second], out=out, progress=stop)
    assert (report.left, report.counts) == (1, {"measured": 1})
    assert "run the same again" in str(report)
    assert (driver.graphs, driver.events, driver.buffers) == (0, 0, {})
    driver.launched.clear()
    report = tune([P, second], out=out)
    assert report.counts == {"measured": 1, "kept": 1}
    assert set(driver.launched) == set(names(second))
    assert len(lines(out)) == 2
    driver.launched.clear()
    assert tune([P, second], out=out).counts == {"kept": 2}
    assert driver.launched == []


def test_another_hash_is_measured_again(driver: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune([P], out=out)
    old = pack().hashes[names(P)[0]][:12]
    out.write_text(out.read_text().replace(old, "0" * 12))
    assert tune([P], out=out).counts == {"measured": 1}
    assert tune([P], out=out).counts == {"kept": 1}


def test_another_gpu_is_measured_again(driver: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune([P], out=out)
    text = out.read_text()
    out.write_text(text.replace(", 132 SMs", ", 66 SMs"))
    assert tune([P], out=out).counts == {"measured": 1}
    out.write_text(text.replace("GPU of 9.0", "The same by another name"))
    assert tune([P], out=out).counts == {"kept": 1}


def test_a_line_that_was_cut_off(driver: Bench, tmp_path: Path) -> None:
    out, second = tmp_path / "out", request(m=64, n=64, k=64, dtype="f32", layout="nn")
    tune([P, second], out=out)
    out.write_text(out.read_text()[:-40])
    assert tune([P, second], out=out).counts == {"measured": 1, "kept": 1}
    assert [parse("here", line).key.m for line in out.read_text().splitlines()] == [96, 64]


def test_a_file_of_something_else(driver: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("m,n,k\n")
    with pytest.raises(InvalidInput, match="out:1"):
        tune([P], out=out)
    assert out.read_text() == "m,n,k\n"


def shaky(best: str) -> Callable[[str], float]:
    """Times of which one is the best, and all spread by 40 %."""
    number = itertools.count()
    return lambda name: (5.0 if name == best else 8.0) * (1.0 + 0.4 * (next(number) // 997 % 2))


def test_noise_does_not_replace_the_default(driver: Bench, tmp_path: Path) -> None:
    calm = tune([P], out=tmp_path / "calm").results[0]
    other = next(name for name in names(P) if name != calm.default)
    driver.us = shaky(other)
    (result,) = tune([P], out=tmp_path / "out").results
    assert (result.status, result.best) == ("noisy", result.default)
    assert "something else" in result.reason
    assert not (tmp_path / "out").exists()


def test_noise_around_the_default_is_recorded(driver: Bench, tmp_path: Path) -> None:
    calm = tune([P], out=tmp_path / "calm").results[0]
    driver.us = shaky(calm.default)
    (result,) = tune([P], out=tmp_path / "out").results
    assert (result.status, result.best) == ("measured", calm.default)
    assert parse("here", (tmp_path / "out").read_text()).times[calm.default].spread > 0.1


def test_inside_the_noise_the_default_stays(driver: Bench, tmp_path: Path) -> None:
    calm = tune([P], out=tmp_path / "calm").results[0]
    driver.us = lambda name: 10.0 if name == calm.default else 9.95
    (result,) = tune([P], out=tmp_path / "out").results
    assert (result.status, result.best) == ("measured", calm.default)


def test_time_is_up(driver: Bench, tmp_path: Path) -> None:
    report = tune([P], out=tmp_path / "out", budget_s=0.0)
    assert (report.left, report.results) == (1, ())


def test_what_does_not_fit_is_skipped(driver: Bench, tmp_path: Path) -> None:
    driver.memory = 1 << 20
    (result,) = tune([request(m=4096, n=4096, k=64, dtype="bf16")], out=tmp_path / "out").results
    assert result.status == "skipped"
    assert "GB" in result.reason
    (result,) = tune([request(m=0, n=4, k=4, dtype="bf16")], out=tmp_path / "out").results
    assert "no work" in result.reason


def test_jit_candidates(driver: Bench, tmp_path: Path) -> None:
    asked = request(m=64, n=64, k=64, dtype="bf16", layout="tt")
    (result,) = tune([asked], out=tmp_path / "a").results
    assert all("naive" in name for name in result.times)
    (result,) = tune([asked], jit=True, out=tmp_path / "b").results
    assert any("gemm_mma_bf16_tt" in name for name in result.times)


def test_specialised_kernels_are_reported_and_in_no_record(driver: Bench, tmp_path: Path) -> None:
    driver.us = lambda name: 4.0 if "_k64_" in name else 5.0
    (result,) = tune([P], out=tmp_path / "out", specialise=2).results
    special = [name for name in result.specialised if "_k64_" in name]
    assert len(special) == 2
    assert all(result.specialised[name].us == pytest.approx(4.0) for name in special)
    assert not any("_k64_" in name for name in parse("here", (tmp_path / "out").read_text()).times)
