"""Bounds hold, and the least recently used goes first, whoever else is at work and whatever the clock says."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.helpers import KEY, OTHER, PAYLOAD, counted, entry, files, numbered, output, script
from tilery.store import Entry, Store
from tilery.store import bounds as bounds_module
from tilery.store.aside import KEPT
from tilery.store.bounds import SLACK_S, Limits, Trimmed, excess
from tilery.store.level import Level

YEAR_S = 365 * 86400.0
NOW = 2e9
SIZES = st.integers(0, 50)
TIMES = st.floats(NOW - 2 * YEAR_S, NOW + 2 * YEAR_S)
ENTRIES = st.lists(st.tuples(SIZES, TIMES), max_size=30).map(
    lambda rows: [Entry("binary", str(i), Path(), size, used) for i, (size, used) in enumerate(rows)]
)


@given(ENTRIES, st.integers(0, 600), st.integers(0, 30))
def test_what_is_evicted(entries: list[Entry], most_bytes: int, most_entries: int) -> None:
    limits = Limits(most_bytes, most_entries)
    doomed = excess(entries, limits, NOW)
    kept = [one for one in entries if one not in doomed]
    size = sum(one.bytes for one in entries)
    fits = size <= limits.bytes and len(entries) <= limits.entries
    assert (doomed == []) == (fits or not entries)
    if doomed:
        # As much as must go for nine tenths, and no entry more.
        assert sum(one.bytes for one in kept) <= limits.low.bytes
        assert len(kept) <= limits.low.entries
        back = [*kept, doomed[-1]]
        assert sum(one.bytes for one in back) > limits.low.bytes or len(back) > limits.low.entries
    trusted = [one.used for one in doomed if one.used <= NOW + SLACK_S]
    if trusted:
        assert max(trusted) <= min((one.used for one in kept), default=max(trusted))
        assert all(one.used <= NOW + SLACK_S for one in kept)


def put(store: Store, number: int, start: int = 0, size: int = 100) -> None:
    for index in range(start, start + number):
        store.put(numbered(index), bytes(size))


def age(store: Store, index: int, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(entry(store, numbered(index)), (at, at))


def kept(store: Store) -> set[int]:
    digests = {one.digest for one in store.entries()}
    return {index for index in range(200) if numbered(index).digest in digests}


def test_entries_are_bounded(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", max_entries=20)
    for index in range(60):
        put(store, 1, index)
        age(store, index, 3000 - index)
        assert len(files(tmp_path / "store")) <= 20
    assert len(kept(store)) >= 18
    assert min(kept(store)) >= 40
    assert counted("evicted") == 60 - len(kept(store))


def test_bytes_are_bounded(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", max_mib=0.1)
    for index in range(60):
        put(store, 1, index, size=10_000)
        assert sum(one.bytes for one in store.entries()) <= 0.1 * 2**20
    assert len(kept(store)) >= 8


def test_a_hit_keeps_an_entry(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", max_entries=10)
    put(store, 10)
    for index in range(10):
        age(store, index, 2 * 86400 - index)
    assert store.get(numbered(0)) == bytes(100)
    put(store, 1, 10)
    assert {0, 10} <= kept(store)
    assert {1, 2} & kept(store) == set()


def test_the_stamp_is_written_once_an_hour(store: Store) -> None:
    put(store, 1)
    for seconds, renewed in ((SLACK_S / 2, False), (SLACK_S * 2, True), (-YEAR_S, True)):
        age(store, 0, seconds)
        before = entry(store, numbered(0)).stat().st_mtime
        store.get(numbered(0))
        after = entry(store, numbered(0)).stat().st_mtime
        assert (abs(after - time.time()) < 60, after != before) == (renewed, renewed)


@pytest.mark.parametrize("wrong", [YEAR_S, -YEAR_S], ids=["ahead", "behind"])
def test_a_clock_that_was_wrong(tmp_path: Path, wrong: float) -> None:
    """Entries from then neither stay for ever, nor push out what is used now."""
    store = Store(tmp_path / "store", max_entries=10)
    put(store, 9)
    for index in range(9):
        age(store, index, -wrong + index)
    assert all(store.get(numbered(index)) for index in (3, 4))
    put(store, 6, 100)
    assert kept(store) >= {3, 4, *range(100, 106)}
    assert len(kept(store)) <= 10
    put(store, 9, 110)
    assert not kept(store) & {0, 1, 2, 5, 6, 7, 8}


@pytest.mark.parametrize("wrong", [YEAR_S, -YEAR_S], ids=["ahead", "behind"])
def test_a_clock_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    """Bounds hold, entries are found, and the leftovers of living writers stay where the file system's clock agrees."""
    put(Store(tmp_path / "store"), 15)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + wrong)
    store = Store(tmp_path / "store", max_entries=10)
    put(store, 5, 100)
    assert len(kept(store)) <= 10
    assert all(store.get(numbered(index)) for index in kept(store))
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD


def test_leftovers_go_by_age(store: Store) -> None:
    put(store, 1)
    shard = entry(store, numbered(0)).parent
    name = f".{numbered(0).digest}.123.abcdef01"
    for suffix, seconds in (("0.tmp", 2 * SLACK_S), ("1.tmp", -2 * SLACK_S), ("2.tmp", 10), ("3.txt", YEAR_S)):
        (shard / f"{name}{suffix}").write_bytes(b"half")
        at = time.time() - seconds
        os.utime(shard / f"{name}{suffix}", (at, at))
    assert store.trim(dry_run=True).leftovers == store.trim().leftovers == 2
    assert {path.name for path in shard.iterdir()} == {numbered(0).digest, f"{name}2.tmp", f"{name}3.txt"}


def test_an_entry_larger_than_the_bound_stays_in_memory(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", max_mib=0.01)
    put(store, 3, size=1000)
    store.put(KEY, bytes(20_000))
    assert store.get(KEY) == bytes(20_000)
    assert kept(store) == {0, 1, 2}


@pytest.mark.parametrize("limits", [{"max_mib": 0.1}, {"max_entries": 10}])
def test_memory_is_bounded(limits: dict[str, float]) -> None:
    store = Store(None, **limits)  # type: ignore[arg-type]
    put(store, 50, size=10_000)
    assert [store.get(numbered(index)) is not None for index in (0, 49)] == [False, True]


def test_the_disk_is_looked_at_seldom_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    real = bounds_module.trim

    def trim(level: Level, limits: Limits) -> Trimmed:
        looks.append(1)
        return real(level, limits)

    monkeypatch.setattr("tilery.store.store.trim", trim)
    put(Store(tmp_path / "store"), 100)
    assert len(looks) == 1


def test_what_is_kept_for_people_is_bounded(store: Store) -> None:
    for index in range(KEPT + 10):
        store.keep_failure(f"kernel-{index}", {"log.txt": "no", "include/x.h": ""})
        store.put(numbered(index), PAYLOAD)
        entry(store, numbered(index)).write_bytes(b"broken")
        assert store.get(numbered(index)) is None
    assert store.user is not None
    for name in ("failed", "quarantine"):
        left = list((store.user.base / name).iterdir())
        assert len(left) == KEPT
    assert (store.user.base / "failed" / f"kernel-{KEPT + 9}" / "log.txt").read_text() == "no"


CROWD = """
import threading
LIMIT, WRITERS, READERS, CLEANERS = 40, 4, 2, 2
end = time.monotonic() + 4.0

def write(seed):
    random.seed(seed)
    store = Store(base, max_entries=LIMIT)
    while time.monotonic() < end:
        index = random.randrange(500)
        assert store.make(numbered(index), lambda: str(index).encode() * 50) == str(index).encode() * 50

def read(seed):
    random.seed(seed)
    store = Store(base, max_entries=LIMIT)
    while time.monotonic() < end:
        index = random.randrange(500)
        assert store.get(numbered(index)) in (None, str(index).encode() * 50)

def clean(seed):
    from tilery.store import maintain
    store = Store(base, max_entries=LIMIT)
    while time.monotonic() < end:
        store.trim()
        if seed % 2 and random.random() < 0.2:
            maintain.clear(store.user)
        # More by what the writers have published and not cleaned up yet. A count is no snapshot: one of three is near.
        assert min(sum(1 for _ in store.entries()) for _ in range(3)) <= LIMIT + WRITERS

def guarded(work, seed):
    from tilery.stats import stats
    work(seed)
    found = stats()["store"]
    assert not found.get("faults") and not found.get("quarantined"), found

children = []
for work, number in ((write, WRITERS), (read, READERS), (clean, CLEANERS)):
    for seed in range(number):
        children.append(os.fork())
        if children[-1] == 0:
            code = 1
            try:
                guarded(work, seed)
                code = 0
            finally:
                os._exit(code)
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_cleaners_against_readers_and_writers(tmp_path: Path) -> None:
    assert output(script(CROWD, tmp_path)) == f"{[0] * 8}\n"
    store = Store(tmp_path, max_entries=40)
    assert sum(1 for _ in store.entries()) <= 40
    assert files(tmp_path) == sorted(str(one.path.relative_to(tmp_path)) for one in store.entries())
    assert store.make(OTHER, lambda: PAYLOAD) == PAYLOAD
