"""Store.change: what several threads and processes add to one entry is all there afterwards."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from tests.store.helpers import KEY, counted, output, script
from tests.store.test_flight import holding
from tilery.store import Store

WORKER = """
store = Store(base / "store")
for i in range(30):
    mark = f"{sys.argv[2]}:{i} ".encode()
    store.change(KEY, lambda found: (found or b"") + mark)
"""


def marks(payload: bytes | None) -> dict[str, list[int]]:
    """By who made them, in the order in which they are in the entry."""
    found: dict[str, list[int]] = {}
    for mark in (payload or b"").decode().split():
        who, _, number = mark.partition(":")
        found.setdefault(who, []).append(int(number))
    return found


def test_no_process_loses_what_another_added(tmp_path: Path) -> None:
    for worker in [script(WORKER, tmp_path, who) for who in "abcdef"]:
        output(worker)
    assert marks(Store(tmp_path / "store").look(KEY)) == {who: list(range(30)) for who in "abcdef"}


@pytest.mark.parametrize("folder", ["store", None])
def test_no_thread_loses_what_another_added(tmp_path: Path, folder: str | None) -> None:
    store = Store(tmp_path / folder if folder else None)

    def work(who: str) -> None:
        for i in range(50):
            mark = f"{who}:{i} ".encode()
            store.change(KEY, lambda found, mark=mark: (found or b"") + mark)  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(who,)) for who in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert marks(store.look(KEY)) == {who: list(range(50)) for who in "abcd"}


def test_one_that_hangs_is_not_waited_for_beyond_the_deadline(tmp_path: Path) -> None:
    Store(tmp_path / "store").put(KEY, b"before")
    hang = """
    def forever(found):
        print("holding", flush=True)
        time.sleep(60)
    Store(base).change(KEY, forever)
    """
    with holding(tmp_path / "store", hang):
        store = Store(tmp_path / "store", deadline_s=0.4)
        store.change(KEY, lambda found: (found or b"") + b" and after")
        assert counted("deadlines") == 1
    assert store.look(KEY) == b"before and after"


def test_a_write_that_failed_once_hides_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.EAGAIN, "not now")

    with monkeypatch.context() as patch:
        patch.setattr("tilery.store.store.publish", refuse)
        store.change(KEY, lambda found: b"first")
    assert store.look(KEY) == b"first"
    store.change(KEY, lambda found: (found or b"") + b" second")
    other = Store(tmp_path / "store")
    other.change(KEY, lambda found: (found or b"") + b" third")
    assert store.look(KEY) == other.look(KEY) == b"first second third"


def test_an_error_leaves_the_entry_and_the_lock(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", deadline_s=0.4)
    store.put(KEY, b"before")
    with pytest.raises(ZeroDivisionError):
        store.change(KEY, lambda found: bytes(1 // 0))
    assert store.look(KEY) == b"before"
    store.change(KEY, lambda found: b"after")
    assert (store.look(KEY), counted("deadlines")) == (b"after", 0)
