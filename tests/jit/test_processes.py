"""fork and spawn: an import starts nothing, locks are free in the child, and CUDA of the parent is refused by name."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import os, sys, threading
import tilery
from tilery import background, device, image, plan, policy
from tilery.stats import count
stats = sys.modules["tilery.stats"]
from tilery.device import DeviceInfo

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            code = 0
        except BaseException as error:
            print("child:", type(error).__name__, error, flush=True)
            code = 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(program: str) -> str:
    text = PRELUDE + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_import_starts_no_thread_and_no_driver() -> None:
    run("""
        tilery.gemm, tilery.prepare, tilery.explain, tilery.Policy
        assert threading.active_count() == 1
        assert not any(name.startswith("cuda") for name in sys.modules), sys.modules
        assert in_child(lambda: tilery.explain("gemm", m=64, n=64, k=64, dtype="f32", arch="sm_90a")) == 0
    """)


def test_locks_that_were_held_are_free_in_the_child() -> None:
    run("""
        held = [stats._lock, device._lock, image._lock, background.workers._changed, plan._memory.lock("x")]
        ready, go = threading.Event(), threading.Event()
        def hold():
            for lock in held:
                lock.acquire()
            ready.set()
            go.wait()
            for lock in held:
                lock.release()
        thread = threading.Thread(target=hold)
        thread.start()
        ready.wait()
        def work():
            count("jit", "compiles")
            with device._lock, image._lock, plan._memory.lock("x"):
                pass
            done = threading.Event()
            background.workers.submit(done.set, 1)
            assert done.wait(20)
        assert in_child(work) == 0
        go.set()
    """)


def test_the_background_works_in_the_child_and_the_parents_tasks_stay_there() -> None:
    run("""
        gate, log = threading.Event(), []
        background.workers.submit(gate.wait, 1)
        background.workers.submit(lambda: log.append("parent"), 1)
        def work():
            done = threading.Event()
            background.workers.submit(done.set, 1)
            assert done.wait(20) and background.workers.wait(20)
            assert log == []
        assert in_child(work) == 0
        gate.set()
        assert background.workers.wait(20)
        assert log == ["parent"]
    """)


FAKE = """
gpu = DeviceInfo("fake", (9, 0), 132, 232448, 1, 1.0, 1.0, 0, 13000)
class Status(int): pass
calls = []
def driver(name, *args):
    calls.append(name)
    return {"cuInit": None, "cuDriverGetVersion": 13000, "cuDeviceGetCount": 1}.get(name)
device.call = driver
device._probe = lambda ordinal, version: gpu
"""


def test_a_child_of_a_process_that_used_cuda_is_told_so() -> None:
    out = run(
        FAKE
        + textwrap.dedent("""
        assert device.devices() == (gpu,)
        before = len(calls)
        plan._memory.plans["x"] = "a plan of the parent"
        def work():
            assert plan._memory.plans == {}
            assert device.devices() == ()
            assert len(calls) == before, "the driver was called after a fork"
            problem = tilery.request(m=64, n=64, k=64, dtype="f32")
            plan.plan_for(problem, 0)
        assert in_child(work) == 1
        assert device.devices() == (gpu,)
    """)
    )
    assert "child: InvalidInput no GPU 0: this process was forked from one that had initialised CUDA" in out
    assert "get_context('spawn')" in out


def test_a_child_of_a_process_that_did_not_use_cuda_can_use_it() -> None:
    run(
        FAKE
        + textwrap.dedent("""
        def work():
            assert device.devices() == (gpu,)
        assert in_child(work) == 0
    """)
    )


def test_a_grandchild_is_told_too() -> None:
    out = run(
        FAKE
        + textwrap.dedent("""
        device.devices()
        def work():
            sys.exit(in_child(lambda: device.info(0)))
        assert in_child(work) == 1
    """)
    )
    assert out.count("this process was forked") == 1


def test_the_drivers_own_word_for_it_is_explained() -> None:
    out = run("""
        device._text = lambda function, code: "CUDA_ERROR_NOT_INITIALIZED"
        print(device.driver_error("cuInit", 3))
    """)
    assert "Perhaps this process was forked" in out


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method(method: str) -> None:
    run(f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                problem = pool.submit(tilery.request, m=64, n=64, k=64, dtype="f32").result()
            assert problem == tilery.request(m=64, n=64, k=64, dtype="f32")
    """)
