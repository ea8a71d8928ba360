"""Several GPUs side by side: who measures what, and what the parent makes of it."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.simulated import DEVICES, problem
from tests.tune.conftest import pack
from tilery import device, policy
from tilery.errors import TileryError
from tilery.generator.records import Record, Time, read_file
from tilery.lookup import record_key
from tilery.policy import Policy
from tilery.tune import parallel
from tilery.tune.measure import Measured
from tilery.tune.parallel import shares, tune_all
from tilery.tune.result import Report, Result
from tilery.tune.session import STOPPED

PROBLEMS = [problem(64 * (i + 1), 64, 64) for i in range(7)]
GPUS = [replace(DEVICES[cc], ordinal=i) for i, cc in enumerate([(9, 0), (9, 0), (8, 0), (9, 0)])]


def test_gpus_of_one_silicon_share_and_every_silicon_measures_all() -> None:
    found = shares(PROBLEMS, GPUS)
    assert found[2] == PROBLEMS
    assert sorted((p for number in (0, 1, 3) for p in found[number]), key=lambda p: p.m) == PROBLEMS
    assert max(len(found[i]) for i in (0, 1, 3)) - min(len(found[i]) for i in (0, 1, 3)) <= 1


class Thread(threading.Thread):
    """A thread in the place of a process."""

    exitcode: int | None = None

    def run(self) -> None:
        with suppress(SystemExit):
            super().run()
        self.exitcode = 1

    def terminate(self) -> None:
        raise AssertionError("nothing hangs here")


class Context:
    """Threads in the place of processes."""

    Process = Thread

    def Queue(self) -> Any:
        return queue.Queue()


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: Context() if kind == "spawn" else None)
    monkeypatch.setattr(device, "info", lambda ordinal: GPUS[ordinal])
    monkeypatch.setattr(parallel, "builtin", pack)
    monkeypatch.setattr(parallel, "POLL_SECONDS", 0.05)
    policy.use(Policy(store=None))

    def use(run: Any) -> None:
        monkeypatch.setattr(parallel, "run", run)

    use(measured)
    return use


def measured(problems: Any, number: int, book: Any, options: Any, progress: Any) -> Report:
    results = []
    for asked in problems:
        if book.holds(asked, {"v": "0" * 12}):
            results.append(Result(asked, "kept"))
        else:
            results.append(Result(asked, "measured", default="v", best="v", times={"v": Measured(1.0)}))
            times = {"v": Time(1.0 + number, 0.0, "0" * 12, 1)}
            book.add(Record("", GPUS[number].gpu, "13.0", "580", 0, record_key(asked), times))
        progress(results[-1])
    return Report(str(GPUS[number]), tuple(results), len(problems), 1.0, {"w": "too large"}, ("the same note",))


def test_the_parent_writes_down_what_the_children_find(gpus: Any, tmp_path: Path) -> None:
    out, seen = tmp_path / "out", []
    report = tune_all(PROBLEMS, [0, 1, 2], out=out, progress=seen.append)
    assert (report.counts, report.left, len(seen)) == ({"measured": 14}, 0, 14)
    assert (report.uncompiled, report.notes) == ({"w": "too large"}, ("the same note",))
    found = list(read_file(out))
    assert len(found) == 14
    of_a100 = [record for record in found if record.gpu == GPUS[2].gpu]
    assert sorted(record.key.m for record in of_a100) == [p.m for p in PROBLEMS]
    assert {record.times["v"].us for record in of_a100} == {3.0}
    again = tune_all(PROBLEMS, [0, 1, 2], out=out)
    assert again.counts == {"kept": 14}


def test_a_child_that_fails_is_named_and_the_others_are_kept(gpus: Any, tmp_path: Path) -> None:
    def run(problems: Any, number: int, *rest: Any) -> Report:
        if number == 1:
            raise TileryError("no memory at all\nmore")
        return measured(problems, number, *rest)

    gpus(run)
    with pytest.raises(TileryError, match="GPU 1: no memory at all"):
        tune_all(PROBLEMS, [0, 1], out=tmp_path / "out")
    assert len(list(read_file(tmp_path / "out"))) == 4


def test_a_child_that_dies_is_noticed(gpus: Any, tmp_path: Path) -> None:
    def run(problems: Any, number: int, *rest: Any) -> Report:
        raise SystemExit(9)

    gpus(run)
    with pytest.raises(TileryError, match="GPU 0: its process ended with code 1"):
        tune_all(PROBLEMS, [0, 1], out=tmp_path / "out")


def test_a_stop_keeps_what_there_is(gpus: Any, tmp_path: Path) -> None:
    def stop(result: Result) -> None:
        if not stopped:
            stopped.append(True)
            raise KeyboardInterrupt

    stopped: list[bool] = []
    report = tune_all(PROBLEMS, [0, 1], out=tmp_path / "out", progress=stop)
    assert STOPPED in report.notes
    assert len(list(read_file(tmp_path / "out"))) == 7


def test_processes_are_spawned_and_their_error_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The children are real, and have no GPU."""
    if device.devices():
        pytest.skip("there are GPUs")
    monkeypatch.setattr(device, "info", lambda ordinal: GPUS[ordinal])
    policy.use(Policy(store=tmp_path / "store"))
    with pytest.raises(TileryError, match=r"GPU 0: no GPU 0: .*; GPU 1: no GPU 1"):
        tune_all(PROBLEMS, [0, 1], out=tmp_path / "out")
    policy.use(None)
