"""``tilery cache``: every command tells people and programs the same, and deletes only what is the store's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.store.helpers import KEY, OTHER, PAYLOAD, counted, entry, files, numbered
from tilery import policy
from tilery.cli import app
from tilery.policy import Policy
from tilery.store import Key, Store, store_for

Run = Callable[..., Any]
COMMANDS = ("du", "ls", "gc", "verify", "clear", "export", "import")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    policy.use(Policy(store=tmp_path / "store"))
    yield tmp_path / "store"
    policy.use(None)


@pytest.fixture
def run() -> Run:
    """Run a command; with ``json``, what it prints as data."""

    def invoke(*args: object, code: int = 0, json_: bool = False) -> Any:
        line = ["cache", *map(str, args), *(["--json"] if json_ else [])]
        result = CliRunner().invoke(app, line)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if json_ else result

    return invoke


def current() -> Store:
    return store_for(policy.current())


def fill(number: int) -> None:
    for index in range(number):
        current().put(numbered(index), bytes(1000))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(run: Run, name: str) -> None:
    text = run(name, "--help").stdout
    assert "--json" in text
    assert ("--dry-run" in text) == (name in ("gc", "verify", "clear", "import"))


def test_du(root: Path, tmp_path: Path, run: Run) -> None:
    Store(tmp_path / "seed").put(KEY, PAYLOAD)
    policy.use(Policy(store=root, seeds=(tmp_path / "seed", tmp_path / "none"), store_max_mib=5, store_max_entries=50))
    fill(3)
    current().put(Key("record", ()), b"record")
    current().keep_failure("kernel", {"log.txt": "no"})
    (root / "v99").mkdir()
    data = run("du", json_=True)
    assert (data["path"], data["entries"], data["max_entries"], data["max_bytes"]) == (str(root), 4, 50, 5 << 20)
    assert data["bytes"] == sum(one.bytes for one in current().entries())
    assert data["kinds"]["record"]["entries"] == 1
    assert (data["failed"], data["quarantined"], data["other_versions"]) == (1, 0, ["v99"])
    assert [seed["entries"] for seed in data["seeds"]] == [1]
    assert list(data["refused"]) == [str(tmp_path / "none")]
    text = run("du").stdout
    for part in (str(root), "4 of at most 50", "1 failed", "v99", str(tmp_path / "none")):
        assert part in text


def test_ls(root: Path, run: Run) -> None:
    fill(2)
    current().put(KEY, PAYLOAD)
    current().put(OTHER, PAYLOAD)
    for index, key in enumerate((KEY, numbered(0), numbered(1), OTHER)):
        os.utime(entry(current(), key), (1e9 - index, 1e9 - index))
    entry(current(), OTHER).write_bytes(b"rubbish")
    os.utime(entry(current(), OTHER), (1e8, 1e8))
    rows = run("ls", json_=True)["entries"]
    assert [row["digest"] for row in rows] == [key.digest for key in (KEY, numbered(0), numbered(1), OTHER)]
    assert rows[0]["key"] == dict(KEY.fields)
    assert (rows[0]["path"], rows[0]["used"]) == (str(entry(current())), 1e9)
    assert (rows[-1]["key"], rows[-1]["fault"]) == (None, "it has no header")
    text = run("ls").stdout
    assert "gemm_naive_f32_any_16x16x1" in text
    assert "sm_90a" in text
    assert "4 entries" in text


def test_gc(root: Path, run: Run) -> None:
    fill(10)
    for index in range(10):
        at = time.time() - 1000 + index
        os.utime(entry(current(), numbered(index)), (at, at))
    before = files(root)
    dry = run("gc", "--max-entries", 5, "--dry-run", json_=True)
    assert files(root) == before
    assert dry["evicted"] == [numbered(index).digest for index in range(6)]
    assert run("gc", json_=True)["evicted"] == []
    assert "would delete 6 entries" in run("gc", "--max-entries", 5, "--dry-run").stdout
    assert run("gc", "--max-entries", 5, json_=True) == dry | {"dry_run": False}
    assert len(files(root)) == 4
    assert "deleted 4 entries" in run("gc", "--max-mib", 0).stdout
    assert files(root) == []
    assert run("gc", "--max-entries", -1, code=2).stdout == ""


def test_verify(root: Path, run: Run) -> None:
    fill(3)
    assert run("verify", json_=True) == {"dry_run": False, "entries": 3, "broken": [], "ok": True}
    broken = entry(current(), numbered(1))
    broken.write_bytes(broken.read_bytes()[:-1])
    dry = run("verify", "--dry-run", code=1, json_=True)
    assert [row["path"] for row in dry["broken"]] == [str(broken)]
    assert broken.exists()
    assert str(broken) in run("verify", code=1).stdout
    assert not broken.exists()
    assert (root / "v1" / "quarantine" / broken.name).exists()
    assert run("verify", json_=True)["entries"] == 2


def test_verify_leaves_seeds_as_they_are(root: Path, tmp_path: Path, run: Run) -> None:
    seed = Store(tmp_path / "seed")
    seed.put(KEY, PAYLOAD)
    entry(seed).write_bytes(b"broken")
    policy.use(Policy(store=root, seeds=(tmp_path / "seed",)))
    assert len(run("verify", code=1, json_=True)["broken"]) == 1
    assert entry(seed).exists()


def test_clear_deletes_what_is_the_stores_and_nothing_else(root: Path, tmp_path: Path, run: Run) -> None:
    fill(3)
    current().make(KEY, lambda: PAYLOAD)
    current().keep_failure("kernel", {"include/log.txt": "no"})
    entry(current(), numbered(0)).write_bytes(b"broken")
    current().get(numbered(0))
    outside = tmp_path / "outside"
    (outside / "ab").mkdir(parents=True)
    kept = [root / "notes.txt", root / "v99" / "binary" / "x", entry(current()).parent / "notes.txt"]
    for path in (*kept, outside / "precious", outside / "ab" / ("a" * 64)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    base = root / "v1"
    (base / "record").symlink_to(outside)
    (base / "binary" / "zz").symlink_to(outside / "ab")
    (base / "failed" / "link").symlink_to(outside)
    before = files(tmp_path)
    dry = run("clear", "--dry-run", json_=True)
    assert files(tmp_path) == before
    done = run("clear", json_=True)
    assert done == dry | {"dry_run": False}
    assert (done["entries"], done["left"]) == (3, [str(kept[-1])])
    assert all(path.exists() for path in (*kept, outside / "precious", outside / "ab" / ("a" * 64)))
    assert list((base / "locks").iterdir()) == list((base / "quarantine").iterdir()) == []
    assert "left alone" in run("clear").stdout
    assert current().make(KEY, lambda: PAYLOAD) == PAYLOAD
    assert counted("faults") == 0


def test_clear_leaves_a_lock_that_is_held(root: Path, run: Run) -> None:
    def maker() -> bytes:
        run("clear")
        assert len(list((root / "v1" / "locks").iterdir())) == 1
        return PAYLOAD

    assert current().make(KEY, maker) == PAYLOAD


def test_export_and_import(root: Path, tmp_path: Path, run: Run) -> None:
    fill(3)
    file = tmp_path / "a file.tar"
    data = run("export", file, json_=True)
    assert (data["entries"], data["skipped"], data["file"]) == (3, [], str(file))
    policy.use(Policy(store=tmp_path / "other"))
    dry = run("import", file, "--dry-run", json_=True)
    assert len(dry["added"]) == 3
    assert files(tmp_path / "other") == []
    assert "added 3 entries" in run("import", file).stdout
    assert run("import", file, json_=True)["added"] == []
    assert current().get(numbered(1)) == bytes(1000)


def test_an_import_keeps_the_bounds(root: Path, tmp_path: Path, run: Run) -> None:
    fill(20)
    run("export", tmp_path / "warm.tar")
    policy.use(Policy(store=tmp_path / "other", store_max_entries=10))
    assert run("import", tmp_path / "warm.tar", json_=True)["evicted"] == 11
    assert len(files(tmp_path / "other")) == 9


def test_an_import_reports_what_is_bad(root: Path, tmp_path: Path, run: Run) -> None:
    fill(2)
    run("export", tmp_path / "warm.tar")
    data = bytearray((tmp_path / "warm.tar").read_bytes())
    data[600] ^= 1
    (tmp_path / "warm.tar").write_bytes(data)
    policy.use(Policy(store=tmp_path / "other"))
    result = run("import", tmp_path / "warm.tar", code=1)
    assert "added 1 entries" in result.stdout
    assert "checksum is not the manifest's" in result.stderr


def test_what_is_wrong_is_told(root: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No such file" in run("import", tmp_path / "none.tar", code=1).stderr
    assert "No such file" in run("export", tmp_path / "none" / "x.tar", code=1).stderr
    (tmp_path / "x.tar").write_text("no tar")
    assert "Export the store again" in run("import", tmp_path / "x.tar", code=2).stderr
    policy.use(Policy(store=None))
    assert "TILERY_STORE" in run("du", code=2).stderr
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    policy.use(Policy(store=tmp_path / "shared"))
    assert "others can write it" in run("clear", code=1).stderr


def test_a_process_of_its_own(tmp_path: Path) -> None:
    env = os.environ | {"TILERY_STORE": str(tmp_path / "store"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "from tilery.cli import main; main()", "cache", "du", "--json"]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert (json.loads(done.stdout)["path"], done.stderr) == (str(tmp_path / "store"), "")
