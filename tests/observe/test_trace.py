"""The trace: what is in it, that it stays bounded and whole, and that no fault of it reaches a call."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilery
from tests.runtime.simulated import H200, problem
from tests.runtime.world import STREAM, Params, World
from tilery import background, device, plan, policy, trace, trace_file
from tilery.errors import InvalidInput
from tilery.launch import GemmParams
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.stats import stats

HALF = 1 << 19  # half of trace_max_mib = 1


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(path: Path, *names: str) -> list[dict[str, Any]]:
    return [line for line in lines(path) if line["event"] in names]


def call(times: int, **changes: Any) -> plan.Plan:
    made = plan_for(problem(**changes), 0)
    for _ in range(times):
        made.launch(Params(), STREAM)
    return made


def test_a_plan_is_written_when_it_is_made(world: World, file: Path) -> None:
    made = call(3)
    (line,) = lines(file)
    chosen = made.decision
    assert line["event"] == "plan"
    assert line["problem"] == asdict(problem())
    assert line["device"] == json.loads(json.dumps(H200.to_dict()))
    assert (line["variant"], line["tier"], line["source"]) == (chosen.variant.name, "model", "image")
    assert (line["arch"], line["origin"], line["reason"]) == ("sm_90a", "image", chosen.reason)
    assert (line["miss"], line["pending"]) == ("", "")
    assert line["us"] == pytest.approx(chosen.us, abs=1e-3)
    assert line["seconds"] == pytest.approx(made.ready.seconds, abs=1e-6)
    assert line["pid"] == os.getpid()
    assert file.stat().st_mode & 0o777 == 0o600


def test_calls_are_cumulative_and_written_only_when_they_change(world: World, file: Path) -> None:
    call(3)
    trace.flush()
    trace.flush()
    call(2)
    call(1, m=16)
    trace.flush()
    assert [(row["problem"]["m"], row["calls"]) for row in events(file, "calls")] == [(512, 3), (512, 5), (16, 1)]
    assert trace_file.read(file).problems == {problem(): 5, problem(m=16): 1}


def test_plans_of_several_policies_are_one_row_of_calls(world: World, file: Path) -> None:
    call(2)
    with policy.scope(specialise_after=7):
        call(3)
    trace.flush()
    assert [row["calls"] for row in events(file, "calls")] == [5]


def test_swaps_and_specialised_kernels(world: World, file: Path) -> None:
    policy.use(Policy(trace=file, jit="background", specialise_after=2))
    call(1, layout="tt")
    assert background.workers.wait(60)
    assert [row["event"] for row in events(file, "plan", "swap")] == ["plan", "swap"]
    first, second = events(file, "plan", "swap")
    assert (first["tier"], first["pending"]) == ("fallback", second["variant"])
    assert (second["tier"], second["origin"]) == ("jit", "nvrtc")
    made = plan_for(problem(), 0)
    for _ in range(2):
        made.launch(GemmParams(m=512, n=512, k=512, batch=1), STREAM)
    assert background.workers.wait(60)
    (line,) = events(file, "specialised")
    assert line["variant"].startswith(f"{made.decision.variant.name}_m512")


def test_the_report_of_a_trace_is_that_of_the_process(world: World, file: Path) -> None:
    policy.use(Policy(trace=file, jit="off"))
    call(4)
    call(2, layout="tt")
    trace.flush()
    own, read = stats(), trace_file.read(file).report()
    for key in ("plans", "calls", "memo", "hit_rates", "origins", "misses", "fallbacks", "uncovered"):
        assert read[key] == own[key], key
    assert (read["processes"], read["problems"], read["unreadable"]) == (1, 2, 0)
    assert read["calls"] == {"model": 4, "fallback": 2}
    assert [row["calls"] for row in read["uncovered"]] == [2]


def test_many_threads(world: World, file: Path) -> None:
    policy.use(Policy(trace=file, trace_max_mib=1))
    settings = policy.current()
    line = '{"event":"plan"}\n'
    file.write_text(line * ((HALF - 100_000) // len(line)))  # so that some 200 Plans fill it

    def work(first: int) -> None:
        with policy.scope(settings):
            for m in range(first, first + 60):
                call(1, m=m)

    threads = [threading.Thread(target=work, args=(1 + 60 * index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    predecessor = file.with_name(f"{file.name}.1")
    for path in (file, predecessor):
        assert 0 < path.stat().st_size <= HALF
        assert all(line["event"] == "plan" for line in lines(path))
    assert stats()["trace"] == {}
    trace.flush()
    assert sum(file.stat().st_size for file in (file, predecessor)) <= 2 * HALF


def test_a_file_that_another_process_is_moving_is_left_to_it(world: World, file: Path) -> None:
    policy.use(Policy(trace=file, trace_max_mib=1))
    file.write_bytes(b"\n" * HALF)
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        call(1)
        assert file.stat().st_size > HALF
        assert len(os.listdir(file.parent)) == 1
    call(1, m=16)
    assert file.with_name(f"{file.name}.1").stat().st_size > HALF
    assert [line["problem"]["m"] for line in lines(file)] == [16]
    assert stats()["trace"] == {}


APPEND = """
import sys
from pathlib import Path
from tests.runtime.simulated import H200, NVRTC, pack, problem
from tilery import trace
from tilery.dispatch import choose
from tilery.policy import Policy
class Made:
    calls, tier = 1, "model"
    decision = choose(problem(), H200, pack(), Policy(), {}, lambda: NVRTC)
for index in range(1500):
    trace.built(Policy(trace=Path(sys.argv[1]), trace_max_mib=1), Made(), "image", 0.5)
"""


def python(code: str, *args: str, **variables: str) -> subprocess.Popen[str]:
    paths = [str(Path(__file__).parents[2]), str(Path(trace.__file__).parents[1])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_several_processes_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    running = [python(APPEND, str(path)) for _ in range(4)]
    for one in running:
        assert one.communicate(timeout=240)[1] == ""
    longest = 0
    for part in (path, tmp_path / "trace.1"):
        text = part.read_bytes()
        assert text.endswith(b"\n")
        longest = max(longest, *map(len, text.splitlines()))
        assert all(json.loads(line)["event"] for line in text.splitlines())
        assert len(text) <= HALF + 4 * longest  # two that find it full at a time: one moves it, the other writes
    assert longest < 2048
    assert sorted(os.listdir(tmp_path)) == ["trace", "trace.1"]


FORK = """
import multiprocessing, os, sys
import numpy as np
import tilery
def work():
    ones = np.ones((4, 4), "f4")
    for _ in range(5):
        tilery.gemm(ones, ones)
work()
if sys.argv[1] == "fork":
    if os.fork() == 0:
        work()
        sys.exit(0)
    os.wait()
else:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
"""


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
def test_a_forked_child_writes_for_itself(tmp_path: Path, how: str) -> None:
    path = tmp_path / "trace"
    store = str(tmp_path / "store")
    # Python 3.12 and later warn of any fork beside threads.
    quiet = {"PYTHONWARNINGS": "ignore::DeprecationWarning", "CUDA_VISIBLE_DEVICES": ""}
    done = python(FORK, how, TILERY_TRACE=str(path), TILERY_STORE=store, **quiet)
    assert done.communicate(timeout=240)[1] == ""
    found = {(row["pid"], row["process"]): row["calls"] for row in events(path, "calls")}
    if not found:
        pytest.skip("no host device here: the reference served, and has no Plan")
    assert sorted(found.values()) == [5, 5]
    assert len({pid for pid, _ in found}) == len({process for _, process in found}) == 2
    assert trace_file.read(path).processes == 2


def refuse(number: int, *args: Any, **named: Any) -> int:
    raise OSError(number, os.strerror(number))


def write_half(file: int, line: bytes) -> int:
    return write(file, line[: len(line) // 2])


write = os.write


@pytest.mark.parametrize(
    ("function", "fault", "words"),
    [
        ("write", partial(refuse, 28), "No space left"),
        ("write", write_half, "in part"),
        ("open", partial(refuse, 30), "Read-only file system"),
        ("open", partial(refuse, 13), "Permission denied"),
        ("rename", partial(refuse, 1), "Operation not permitted"),
    ],
)
def test_a_fault_is_counted_and_warned_of_once(
    world: World,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    function: str,
    fault: Any,
    words: str,
) -> None:
    policy.use(Policy(trace=file, trace_max_mib=1))
    if function == "rename":
        file.write_bytes(b"\n" * HALF)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, function, fault)
        for m in (16, 32, 64):
            call(2, m=m)
    assert len(world.launches) == 6
    assert stats()["trace"] == {"failures": 3}
    (record,) = [record for record in caplog.records if record.name == "tilery.trace"]
    assert words in record.getMessage()
    assert str(file) in record.getMessage()


def test_it_goes_on_when_there_is_room_again(world: World, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_half)
        call(2)
    call(1, m=16)  # the rest of a cut line hides it
    call(7, m=32)
    trace.flush()
    found = trace_file.read(file)
    assert found.unreadable == 1
    assert found.problems == {problem(m=32): 7, problem(): 2, problem(m=16): 1}
    assert ("trace", "failures") in found.counts


@pytest.mark.parametrize("kind", ["missing", "file", "folder", "pipe"])
def test_a_path_that_cannot_be_written(world: World, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind == "missing":
        path = path / "trace"
    elif kind == "file":
        path.write_text("")
        path = path / "trace"
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    policy.use(Policy(trace=path))
    call(2)
    trace._traces.clear()
    assert len(world.launches) == 2
    assert stats()["trace"] == {"failures": 1}
    assert not (tmp_path / "place" / "trace").exists()


NOBODY = 65534


def test_a_read_only_folder(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: nobody can get to that
        folder = Path(name)
        folder.chmod(0o555)
        policy.use(Policy(trace=folder / "trace"))
        user = os.geteuid()
        if user == 0:  # who may write anywhere
            os.seteuid(NOBODY)
        try:
            call(2)
        finally:
            os.seteuid(user)
            trace._traces.clear()
        assert list(folder.iterdir()) == []
    assert (len(world.launches), stats()["trace"]) == (2, {"failures": 1})
    assert "Permission denied" in caplog.text


SERVE = (
    APPEND
    + """
trace.FLUSH_S = 0.02
Made.calls = 0
trace.built(Policy(trace=Path(sys.argv[1])), Made(), "image", 0.5)
Made.calls = 7
sys.stdin.read()
"""
)


def test_a_process_that_is_killed_has_written_its_calls(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    running = python(SERVE.replace("range(1500)", "range(0)"), str(path))
    try:
        for _ in range(2000):
            if path.exists() and events(path, "calls"):
                break
            time.sleep(0.05)
    finally:
        running.kill()
        running.communicate()
    assert [row["calls"] for row in events(path, "calls")][-1] == 7


def test_calls_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    ones = np.ones((3, 4), "f4")
    with policy.scope(Policy(trace=path, store=tmp_path / "store")):
        for _ in range(3):
            tilery.gemm(ones, ones.T)
    trace.flush()
    trace._traces.clear()
    if not path.exists():
        pytest.skip("no host device here: the reference served, and has no Plan")
    (line,) = events(path, "plan")
    assert (line["arch"], line["device"]["cc"], line["problem"]["m"]) == ("host", [0, 0], 3)
    assert line["seconds"] > 0
    assert [row["calls"] for row in events(path, "calls")] == [3]


def test_off_adds_nothing_to_a_call(world: World) -> None:
    made = plan_for(problem(), 0)
    assert (made.launch.__func__, made._go.__func__) == (plan.Plan.launch, plan.Plan._go)
    assert not hasattr(made, "__dict__")  # where an instance could have others
    assert type(made._launch) is partial
    assert made._launch.func == device.function("cuLaunchKernel")
    used = {name for code in (plan.Plan.launch, plan.Plan._go, plan_for) for name in code.__code__.co_names}
    assert used.isdisjoint({"trace", "nvtx", "stats", "count"})
    assert trace._traces == {}


def test_off_starts_no_thread(tmp_path: Path) -> None:
    code = (
        "import threading, numpy as np, tilery; tilery.gemm(np.ones((4, 4), 'f4'), np.ones((4, 4), 'f4')); "
        "print(sorted(one.name for one in threading.enumerate()))"
    )
    done = python(code, CUDA_VISIBLE_DEVICES="", TILERY_STORE=str(tmp_path / "store"))
    assert done.communicate(timeout=240)[0].strip() == "['MainThread']"


def test_reading_what_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "no trace"
    with pytest.raises(InvalidInput, match="cannot be read"):
        trace_file.read(path)
    path.write_text('{"m": 3, "n": 4, "k": 5}\nnonsense\n')
    with pytest.raises(InvalidInput, match="no event of a trace"):
        trace_file.read(path)


def test_reading_goes_on_behind_what_it_does_not_know(world: World, file: Path) -> None:
    call(1)
    trace.flush()
    (line,) = events(file, "calls")
    strange = [
        line | {"problem": line["problem"] | {"dtype": "f8"}},
        line | {"problem": line["problem"] | {"new": 1}},
        line | {"calls": "many"},
        {key: value for key, value in line.items() if key != "process"},
        {"event": "count", "process": "p", "group": "jit", "name": "seconds", "value": None},
        ["calls"],
    ]
    with file.open("a") as out:
        out.writelines(f"{json.dumps(row)}\n" for row in strange)
        out.write(f"{json.dumps({'event': 'later', 'process': line['process']})}\n\n")
    found = trace_file.read(file)
    assert found.unreadable == len(strange)
    assert found.problems == {problem(): 1}
    assert found.processes == 1
