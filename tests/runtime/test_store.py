"""The store: whole entries or none, and never an exception to the caller."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilery.stats import reset, stats
from tilery.store import Key, Store, header, open_store, user_root

KEY = Key("binary", (("variant", "gemm_naive_f32_any_16x16x1"), ("arch", "sm_90a"), ("nvrtc", "13.0")))
PAYLOAD = b"\x7fELF code\nwith a newline"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "a folder" / "tilery")


def counted(name: str) -> int:
    return int(stats()["store"].get(name, 0))


def entry(store: Store, key: Key = KEY) -> Path:
    assert store.root is not None
    return store.root / "binary" / key.digest[:2] / key.digest[2:4] / key.digest


def test_there_and_back(store: Store) -> None:
    assert store.get(KEY) is None
    store.put(KEY, PAYLOAD)
    assert store.get(KEY) == PAYLOAD
    assert Store(store.root).get(KEY) == PAYLOAD
    assert (counted("hits"), counted("misses"), counted("writes")) == (2, 1, 1)
    assert entry(store).read_bytes() == header(KEY, PAYLOAD) + PAYLOAD
    assert store.root is not None
    assert [path for path in store.root.rglob("*") if path.suffix == ".tmp"] == []


def test_folders_and_files_are_private(store: Store) -> None:
    store.put(KEY, PAYLOAD)
    root = store.root
    assert root is not None
    assert {stat.S_IMODE(p.stat().st_mode) for p in (root.parent, root, *root.rglob("*")) if p.is_dir()} == {0o700}
    assert stat.S_IMODE(entry(store).stat().st_mode) == 0o600


def test_the_digest_is_pinned() -> None:
    """A change here orphans every store in the field: raise SCHEMA with it."""
    assert KEY.digest == "408b7ef61ec484b8313bffcc877a0bfa48997e18370d48b142cf77c80bf192e0"


def test_each_field_changes_the_digest() -> None:
    others = [Key("record", KEY.fields), Key("binary", KEY.fields[:-1]), Key("binary", KEY.fields[::-1])]
    for index, (name, value) in enumerate(KEY.fields):
        for changed in ((name, value + "x"), (name + "x", value), (name + value[:1], value[1:])):
            others.append(Key("binary", (*KEY.fields[:index], changed, *KEY.fields[index + 1 :])))
    assert len({key.digest for key in (KEY, *others)}) == len(others) + 1


def test_every_flipped_byte_is_a_miss(store: Store) -> None:
    store.put(KEY, PAYLOAD)
    good = entry(store).read_bytes()
    for at in range(len(good)):
        entry(store).write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert store.get(KEY) is None
        assert not entry(store).exists()
    assert counted("quarantined") == len(good)
    assert store.root is not None
    assert [path.name for path in (store.root / "quarantine").iterdir()] == [KEY.digest]
    store.put(KEY, PAYLOAD)
    assert store.get(KEY) == PAYLOAD


def test_every_truncation_is_a_miss(store: Store) -> None:
    store.put(KEY, PAYLOAD)
    good = entry(store).read_bytes()
    for length in range(len(good)):
        entry(store).write_bytes(good[:length])
        assert store.get(KEY) is None
    entry(store).write_bytes(good + b"x")
    assert store.get(KEY) is None


def test_an_entry_of_another_key_is_a_miss(store: Store) -> None:
    other = Key("binary", (("variant", "other"),))
    store.put(other, PAYLOAD)
    entry(store).parent.mkdir(parents=True)
    os.replace(entry(store, other), entry(store))
    assert store.get(KEY) is None


def _world_writable(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)


def _foreign(root: Path) -> None:
    root.mkdir()
    os.chown(root, 12345, 12345)


def _below_a_file(root: Path) -> None:
    root.parent.rmdir()
    root.parent.write_text("in the way")


UNUSABLE: dict[str, Any] = {
    "world-writable": (_world_writable, "chmod 700"),
    "foreign": (_foreign, "belongs to user 12345"),
    "a file": (lambda root: root.write_text("in the way"), "is not a folder"),
    "below a file": (_below_a_file, "is not a folder"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_folder_that_must_not_be_used(tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    make, text = UNUSABLE[case]
    if case == "foreign" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    root = tmp_path / "parent" / "store"
    root.parent.mkdir()
    make(root)
    store = Store(root)
    assert store.root is None
    assert text in store.why_off
    store.put(KEY, PAYLOAD)
    assert store.get(KEY) == PAYLOAD
    assert store.make(Key("binary", ()), lambda: b"made") == b"made"
    assert counted("faults") == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    if root.is_dir():
        assert list(root.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_a_disk_that_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, step: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
    assert counted("faults") >= 1
    assert len(caplog.records) == 1
    assert store.root is not None
    assert [path for path in store.root.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert store.get(KEY) == PAYLOAD
    assert Store(store.root).get(KEY) is None


def test_an_entry_that_cannot_be_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(KEY, PAYLOAD)

    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert store.get(KEY) is None
    assert counted("faults") == 1


def test_memory_only() -> None:
    store = Store(None)
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
    assert store.get(KEY) == PAYLOAD
    assert store.keep_failure("x", {"x.cu": ""}) is None


def test_the_makers_error_is_the_callers(store: Store) -> None:
    def fail() -> bytes:
        raise ValueError("the compiler's news")

    for _ in range(2):
        with pytest.raises(ValueError, match="news"):
            store.make(KEY, fail)
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD


@pytest.mark.parametrize("on_disk", [True, False])
def test_one_compile_for_many_threads(tmp_path: Path, on_disk: bool) -> None:
    store = Store(tmp_path / "store" if on_disk else None)
    made: list[int] = []
    results: list[bytes] = []

    def slow() -> bytes:
        made.append(1)
        time.sleep(0.05)
        return PAYLOAD

    threads = [threading.Thread(target=lambda: results.append(store.make(KEY, slow))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), results) == (1, [PAYLOAD] * 8)


WORKER = """
import sys, time
from pathlib import Path
from tilery.store import Key, Store
root, log = map(Path, sys.argv[1:])
def slow():
    with log.open("a") as file:
        file.write("made\\n")
    time.sleep(0.5)
    return b"code"
assert Store(root).make(Key("binary", (("a", "b"),)), slow) == b"code"
"""


def test_one_compile_for_many_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "store"), str(tmp_path / "log")]
    workers = [subprocess.Popen(command) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "made\n"


HOLDER = """
import sys, time
from tilery.store import Key, Store
def forever():
    print("holding", flush=True)
    time.sleep(60)
    return b""
from pathlib import Path
Store(Path(sys.argv[1])).make(Key("binary", (("a", "b"),)), forever)
"""


def test_a_holder_that_hangs_or_dies(tmp_path: Path) -> None:
    key = Key("binary", (("a", "b"),))
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "store")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    assert Store(tmp_path / "store", deadline_s=0.2).make(key, lambda: b"private") == b"private"
    assert counted("deadlines") == 1
    entry(Store(tmp_path / "store"), key).unlink()
    holder.kill()
    holder.wait()
    started = time.monotonic()
    assert Store(tmp_path / "store").make(key, lambda: b"taken over") == b"taken over"
    assert time.monotonic() - started < 5


def test_failures_are_kept(store: Store) -> None:
    folder = store.keep_failure("variant-1234", {"variant.cu": "source", "log.txt": "log"})
    assert folder is not None
    assert (folder / "variant.cu").read_text() == "source"


def test_open_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_store(tmp_path / "x") is open_store(tmp_path / "x")
    assert open_store(None).root is None
    assert open_store("user").root == user_root() == tmp_path / "tilery"


def test_no_home_makes_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(Path("~/.cache/tilery"))
    assert store.root is None
    assert "HOME" in store.why_off
    assert list(tmp_path.iterdir()) == []
