"""One maker at a time for a key, across threads and processes; nobody waits for the dead, nor for ever."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.store.helpers import KEY, OTHER, PAYLOAD, counted, entry, files, numbered, output, script
from tilery.store import Store
from tilery.store.lock import FileLock


def in_threads(number: int, work: Callable[[], Any]) -> list[Any]:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.mark.parametrize("on_disk", [True, False])
def test_one_compile_for_many_threads(tmp_path: Path, on_disk: bool) -> None:
    store, made = Store(tmp_path / "store" if on_disk else None), []

    def slow() -> bytes:
        made.append(1)
        time.sleep(0.05)
        return PAYLOAD

    assert in_threads(32, lambda: store.make(KEY, slow)) == [PAYLOAD] * 32
    assert len(made) == 1
    assert store._flights._users == {}


def test_keys_do_not_wait_for_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    inside = threading.Barrier(4, timeout=30)
    keys = iter([numbered(index) for index in range(4)])
    assert in_threads(4, lambda: store.make(next(keys), lambda: bytes([inside.wait() * 0]))) == [b"\0"] * 4


MANY = """
log = os.open(base / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

def stub(index):
    os.write(log, f"{index}\\n".encode())
    time.sleep(0.02)
    return str(index).encode() * 100

def work(seed):
    store = Store(base / "store")
    order = list(range(100))
    random.Random(seed).shuffle(order)
    for index in order:
        key = numbered(index)
        code = store.get(key)
        if code is None:
            code = store.make(key, lambda: stub(index))
        assert code == str(index).encode() * 100

children = []
for seed in range(64):
    children.append(os.fork())
    if children[-1] == 0:
        code = 1
        try:
            work(seed)
            code = 0
        finally:
            os._exit(code)
print(sum(os.waitpid(child, 0)[1] for child in children))
"""


def test_64_processes_100_keys_one_compile_each(tmp_path: Path) -> None:
    assert output(script(MANY, tmp_path)) == "0\n"
    made = (tmp_path / "log").read_text().split()
    assert sorted(made, key=int) == [str(index) for index in range(100)]
    assert len(files(tmp_path / "store")) == 100


WORKER = """
def slow():
    with (base / "log").open("a") as file:
        file.write("made\\n")
    time.sleep(0.3)
    return b"code"
assert Store(base / "store").make(KEY, slow) == b"code"
"""


def test_processes_of_their_own(tmp_path: Path) -> None:
    """Not forked ones."""
    for worker in [script(WORKER, tmp_path) for _ in range(3)]:
        output(worker)
    assert (tmp_path / "log").read_text() == "made\n"


HOLDER = """
def forever():
    print("holding", flush=True)
    time.sleep(60)
    return b"late"
Store(base).make(KEY, forever)
"""


@contextmanager
def holding(root: Path, text: str = HOLDER) -> Iterator[subprocess.Popen[str]]:
    holder = script(text, root)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        yield holder
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]


def test_a_killed_holder_is_taken_over_at_once(tmp_path: Path) -> None:
    with holding(tmp_path / "store") as holder:
        result: list[Any] = []

        def wait() -> None:
            result.append(Store(tmp_path / "store").make(KEY, lambda: PAYLOAD))
            result.append(time.monotonic())

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.3)
        assert result == []
        holder.kill()
        killed = time.monotonic()
        waiter.join(timeout=30)
    assert result[0] == PAYLOAD
    assert result[1] - killed < 10
    assert counted("deadlines") == 0


@pytest.mark.parametrize("stopped", [True, False])
def test_a_holder_that_hangs_or_is_stopped(tmp_path: Path, stopped: bool) -> None:
    """Those who wait make private copies after the deadline; what they publish serves all others at once."""
    with holding(tmp_path / "store") as holder:
        if stopped:
            holder.send_signal(signal.SIGSTOP)
        store, started = Store(tmp_path / "store", deadline_s=0.4), time.monotonic()
        assert store.make(KEY, lambda: b"private") == b"private"
        assert 0.4 <= time.monotonic() - started < 5
        assert counted("deadlines") == 1
        assert Store(tmp_path / "store").make(KEY, lambda: b"never") == b"private"
        holder.send_signal(signal.SIGCONT)
    assert store.get(KEY) == b"private"


def test_a_thread_that_hangs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", deadline_s=0.3)
    inside, done = threading.Event(), threading.Event()

    def hang() -> bytes:
        inside.set()
        done.wait(30)
        return b"late"

    thread = threading.Thread(target=lambda: store.make(KEY, hang))
    thread.start()
    assert inside.wait(30)
    assert store.make(KEY, lambda: b"private") == b"private"
    assert counted("deadlines") == 1
    done.set()
    thread.join(timeout=30)
    assert Store(store.root).get(KEY) == b"late"


def test_who_waits_takes_what_somebody_else_published(tmp_path: Path) -> None:
    with holding(tmp_path / "store"):
        waited: list[bytes] = []
        waiter = threading.Thread(target=lambda: waited.append(Store(tmp_path / "store").make(KEY, lambda: b"never")))
        waiter.start()
        time.sleep(0.1)
        Store(tmp_path / "store").put(KEY, PAYLOAD)
        waiter.join(timeout=10)
    assert waited == [PAYLOAD]


def test_the_makers_error_is_the_callers(store: Store) -> None:
    def fail() -> bytes:
        raise ValueError("the compiler's news")

    for _ in range(2):
        with pytest.raises(ValueError, match="news"):
            store.make(KEY, fail)
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD


def test_lock_files_are_bounded(store: Store) -> None:
    for index in range(30):
        store.make(numbered(index), lambda: b"")
    assert store.user is not None
    names = {path.name for path in (store.user.base / "locks").iterdir()}
    assert names == {f"{numbered(index).digest[:3]}.lock" for index in range(30)}


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EIO], ids=errno.errorcode.get)
def test_a_file_system_without_locks(store: Store, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(fd: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
    assert Store(store.root).get(KEY) == PAYLOAD
    assert counted("faults") == 1


def test_a_deleted_lock_file_locks_nothing(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "x.lock"), FileLock(tmp_path / "x.lock")
    assert first.acquire(0.0)
    first.delete()
    assert second.acquire(0.0)
    first.release()
    assert not FileLock(tmp_path / "x.lock").acquire(0.0)
    second.release()


def _in_child(work: Callable[[], bool]) -> bool:
    """What a forked child makes of it; False where it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def test_a_fork_while_a_thread_makes(tmp_path: Path) -> None:
    """The child's copy of the thread's lock is never freed: it must not wait for that. It waits for the parent."""
    store = Store(tmp_path / "store", deadline_s=15)
    inside, done = threading.Event(), threading.Event()

    def slow() -> bytes:
        inside.set()
        done.wait(30)
        return PAYLOAD

    thread = threading.Thread(target=lambda: store.make(KEY, slow))
    thread.start()
    assert inside.wait(30)
    threading.Timer(0.5, done.set).start()
    assert _in_child(lambda: store.make(OTHER, lambda: b"other") == b"other")
    assert _in_child(lambda: store.make(KEY, lambda: b"never") == PAYLOAD)
    thread.join(timeout=30)


def test_a_fork_within_a_maker(store: Store) -> None:
    """The child unwinds through the locks of its parent, and frees none of them."""

    def forking() -> bytes:
        pid = os.fork()
        if pid == 0:
            raise SystemExit
        os.waitpid(pid, 0)
        assert not FileLock(lock).acquire(0.0)
        return PAYLOAD

    assert store.user is not None
    lock = store.user.base / "locks" / f"{KEY.digest[:3]}.lock"
    parent = os.getpid()
    try:
        assert store.make(KEY, forking) == PAYLOAD
    except SystemExit:
        os._exit(0)
    assert os.getpid() == parent
    assert entry(store).exists()


FORKED = """
def forever():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("holding", flush=True)
    time.sleep(60)
os.setpgid(0, 0)
Store(base).make(KEY, forever)
"""


def test_a_killed_holder_with_a_living_child(tmp_path: Path) -> None:
    """The child has a copy of the lock's file, which would keep the lock."""
    with holding(tmp_path / "store", FORKED) as holder:
        holder.kill()
        started = time.monotonic()
        try:
            assert Store(tmp_path / "store").make(KEY, lambda: PAYLOAD) == PAYLOAD
            assert time.monotonic() - started < 10
        finally:
            os.killpg(holder.pid, signal.SIGKILL)
