"""Two tuners on one GPU wait for each other."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from tilery.errors import TileryError
from tilery.store.lock import FileLock
from tilery.tune import identity, session
from tilery.tune.session import alone


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(identity, "gettempdir", lambda: str(tmp_path))
    return identity.lock_path("GPU-1")


def test_the_second_waits_and_says_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    order = []
    held = FileLock(path)
    assert held.acquire(time.monotonic())

    def second() -> None:
        with alone("GPU-1", 60.0):
            order.append("second")

    thread = threading.Thread(target=second)
    with caplog.at_level(logging.WARNING):
        thread.start()
        while not caplog.records:
            time.sleep(0.01)
        order.append("first")
        held.release()
        thread.join()
    assert order == ["first", "second"]
    assert "waiting for it" in caplog.text


def test_it_does_not_wait_for_ever(path: Path) -> None:
    held = FileLock(path)
    assert held.acquire(time.monotonic())
    with pytest.raises(TileryError, match=str(path)), alone("GPU-1", 0.05):
        pass
    with alone("GPU-2", 0.05):
        pass
    held.release()
    with alone("GPU-1", 0.05) as notes:
        assert notes == []


def test_a_lock_that_cannot_be_had_is_a_note(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")
    with alone("GPU-1", 0.05) as notes:
        assert "cannot be locked" in notes[0]
    assert not (path.parent / "elsewhere").exists()


def test_it_is_free_after_an_error(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), alone("GPU-1", 0.05):
        raise ZeroDivisionError
    with alone("GPU-1", 0.05):
        pass


def test_the_deadline_is_an_hour_at_least() -> None:
    """A session of all shapes takes minutes."""
    assert session.LOCK_DEADLINE_S >= 3600
