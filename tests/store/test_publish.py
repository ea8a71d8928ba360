"""Publishing: killed at any step, a writer leaves a whole entry or none, and nothing that stops others."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.helpers import KEY, OTHER, PAYLOAD, counted, entry, files, output, script
from tilery.store import Store, header
from tilery.store.bounds import SLACK_S

# One process for each step: it kills itself just before or just after its n-th call of the operating system.
KILLED = """
STEPS = ["mkdir", "open", "write", "fsync", "close", "replace", "unlink", "scandir", "stat", "lstat"]

def arm(last, when):
    left = [last]
    def wrap(call):
        def stepped(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if left[0] < 0 and when == "within":
                call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return stepped
    for name in ["write"] if when == "within" else STEPS:
        setattr(os, name, wrap(getattr(os, name)))
    if when != "within":
        fcntl.flock = wrap(fcntl.flock)

for when in ("before", "within", "after"):
    step = 0
    while True:
        root = base / f"{when} {step}"
        Store(root).put(OTHER, PAYLOAD)
        pid = os.fork()
        if pid == 0:
            arm(step, when)
            Store(root).make(KEY, lambda: PAYLOAD)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        step += 1
    print(when, step, flush=True)
"""


def test_a_writer_killed_at_any_step(tmp_path: Path) -> None:
    steps = dict(line.split() for line in output(script(KILLED, tmp_path)).splitlines())
    assert min(int(steps["before"]), int(steps["after"])) > 12
    assert int(steps["within"]) >= 1
    whole = header(KEY, PAYLOAD) + PAYLOAD
    found = set()
    for root in tmp_path.iterdir():
        store = Store(root, deadline_s=5.0)
        payload = store.get(KEY)
        found.add(payload)
        assert payload in (None, PAYLOAD)
        assert store.get(OTHER) == PAYLOAD
        left = [name for name in files(root) if name.endswith(".tmp")]
        assert len(left) <= 1
        assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
        assert entry(store).read_bytes() == whole
        long_ago = time.time() - 2 * SLACK_S
        for name in left:
            os.utime(root / name, (long_ago, long_ago))
        assert store.trim().leftovers == len(left)
        assert files(root) == sorted(str(entry(store, key).relative_to(root)) for key in (KEY, OTHER))
    assert found == {None, PAYLOAD}
    assert (counted("quarantined"), counted("deadlines"), counted("faults")) == (0, 0, 0)


def test_folders_and_files_are_private(store: Store) -> None:
    old = os.umask(0)
    try:
        store.make(KEY, lambda: PAYLOAD)
        store.keep_failure("kernel", {"include/log.txt": "no"})
    finally:
        os.umask(old)
    root = store.root
    assert root is not None
    assert {stat.S_IMODE(p.stat().st_mode) for p in (root.parent, root, *root.rglob("*")) if p.is_dir()} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in root.rglob("*.lock")} == {0o600}
    assert stat.S_IMODE(entry(store).stat().st_mode) == 0o600


def test_everything_is_flushed_before_and_after_the_rename(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        real_fsync(fd)

    def replace(source: Any, target: Any) -> None:
        done.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    store.put(KEY, PAYLOAD)
    assert done == ["file", "rename", "folder"]


def test_a_short_write_is_continued(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    store.put(KEY, PAYLOAD)
    assert Store(store.root).get(KEY) == PAYLOAD


LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes functions of `os` fail, so many times."""

    def arrange(step: str, code: int, times: int = 1 << 30) -> None:
        real, left = getattr(os, step), [times]

        def fail(*args: Any, **kwargs: Any) -> Any:
            if step == "open" and not args[1] & os.O_CREAT:  # for reading
                return real(*args, **kwargs)
            left[0] -= 1
            if left[0] < 0:
                return real(*args, **kwargs)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, step, fail)

    yield arrange
    monkeypatch.undo()


@pytest.mark.parametrize("code", LASTING, ids=errno.errorcode.get)
@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace", "mkdir"])
def test_a_disk_that_fails_is_left_alone(store: Store, broken: Any, caplog: Any, code: int, step: str) -> None:
    broken(step, code)
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
    faults = counted("faults")
    assert faults >= 1
    assert store.make(OTHER, lambda: b"other") == b"other"
    assert store.get(OTHER) == b"other"
    assert (len(caplog.records), counted("faults") - faults) == (1, 0)
    assert "TILERY_STORE" in caplog.text
    assert store.root is not None
    assert files(store.root) == []
    assert store.get(KEY) == PAYLOAD
    assert Store(store.root).get(KEY) is None


def test_a_disk_that_recovers_is_not_tried_again(store: Store, broken: Any) -> None:
    broken("fsync", errno.ENOSPC, times=1)
    store.put(KEY, PAYLOAD)
    store.put(OTHER, PAYLOAD)
    assert store.root is not None
    assert (files(store.root), counted("writes")) == ([], 0)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE, errno.EBUSY], ids=errno.errorcode.get)
@pytest.mark.parametrize("step", ["open", "replace", "fsync"])
def test_a_passing_fault_is_tried_again(store: Store, broken: Any, code: int, step: str) -> None:
    """A cleaner took the folder away, or a network file system lost its handle."""
    broken(step, code, times=2)
    store.put(KEY, PAYLOAD)
    assert (counted("writes"), counted("faults")) == (1, 0)
    assert Store(store.root).get(KEY) == PAYLOAD


def test_a_passing_fault_that_stays_is_no_reason_to_stop(store: Store, broken: Any) -> None:
    broken("replace", errno.ESTALE, times=5)
    store.put(KEY, PAYLOAD)
    assert (counted("writes"), counted("faults"), store.get(KEY)) == (0, 1, PAYLOAD)
    store.put(OTHER, PAYLOAD)
    assert counted("writes") == 1


def test_an_entry_that_cannot_be_read(store: Store, broken: Any) -> None:
    store.put(KEY, PAYLOAD)
    broken("fstat", errno.EIO, times=1)
    assert store.get(KEY) is None
    assert (counted("faults"), counted("misses"), counted("quarantined")) == (1, 1, 0)
    assert store.get(KEY) == PAYLOAD


FULL = """
print(sorted(os.listdir(base)))
store = Store(base)
made = 0
def maker():
    global made
    made += 1
    return bytes(20_000)
for index in range(40):
    assert store.make(numbered(index), maker) == bytes(20_000)
assert made == 40
for index in range(40):
    assert store.get(numbered(index)) == bytes(20_000)
again = Store(base)
whole = [index for index in range(40) if again.get(numbered(index))]
print(len(whole), len(list(again.entries())), len(list(base.rglob("*.tmp"))))
"""


def _mounted(options: str, root: Path) -> tuple[str, ...]:
    """A command prefix that runs with a small file system of its own; it vanishes with the process."""
    if os.geteuid() != 0 or os.system("unshare -m true 2>/dev/null") != 0:
        pytest.skip("only root can mount")
    root.mkdir(mode=0o700)
    mount = 'mount -t tmpfs -o "$1" none "$2" || exit 77; shift 2; exec "$@"'
    return ("unshare", "-m", "sh", "-c", mount, "sh", options, str(root))


@pytest.mark.parametrize("options", ["size=256k,mode=700", "nr_inodes=30,mode=700"], ids=["bytes", "inodes"])
def test_a_full_disk(tmp_path: Path, options: str) -> None:
    process = script(FULL, tmp_path / "small", command=_mounted(options, tmp_path / "small"))
    numbers = output(process).splitlines()[-1].split()
    assert numbers[0] == numbers[1]
    assert 1 < int(numbers[0]) < 20
    assert numbers[2] == "0"


READ_ONLY = """
Store(base).put(KEY, PAYLOAD)
os.system(f"mount -o remount,ro '{base}'")
store = Store(base)
assert store.get(KEY) == PAYLOAD, store.why_off
assert store.make(OTHER, lambda: b"other") == b"other"
assert store.get(OTHER) == b"other"
assert len(store.trim().evicted) == 0
print(store.why_off or "usable")
"""


def test_a_read_only_disk_is_still_read(tmp_path: Path) -> None:
    process = script(READ_ONLY, tmp_path / "small", command=_mounted("size=256k,mode=700", tmp_path / "small"))
    assert output(process) == "usable\n"
