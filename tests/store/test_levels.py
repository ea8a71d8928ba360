"""Folders: which are trusted, seeds below and above, versions side by side, and working without any."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.helpers import KEY, OTHER, PAYLOAD, counted, entry, files
from tilery import store as package
from tilery.policy import Policy
from tilery.stats import stats
from tilery.store import Key, Store, open_store, store_for, user_root

Prepare = Callable[[Path], Any]


def _world_writable(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)


def _group_writable(root: Path) -> None:
    root.mkdir()
    root.chmod(0o770)


def _foreign(root: Path) -> None:
    root.mkdir()
    os.chown(root, 12345, 12345)


def _link(root: Path) -> None:
    (root.parent / "real").mkdir()
    root.symlink_to(root.parent / "real")


def _inner(prepare: Prepare) -> Prepare:
    """The same, of the folder of this version of tilery."""

    def inside(root: Path) -> None:
        root.mkdir(mode=0o700)
        prepare(root / "v1")

    return inside


UNUSABLE: dict[str, tuple[Prepare, str]] = {
    "world-writable": (_world_writable, "others can write it"),
    "group-writable": (_group_writable, "chmod go-w"),
    "foreign": (_foreign, "belongs to user 12345"),
    "a link": (_link, "is a symbolic link to"),
    "a file": (lambda root: root.write_text("in the way"), "is not a folder"),
    "world-writable inside": (_inner(_world_writable), "others can write it"),
    "foreign inside": (_inner(_foreign), "belongs to user 12345"),
    "a link inside": (_inner(_link), "is a symbolic link to"),
}


@pytest.fixture(params=UNUSABLE)
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    prepare, text = UNUSABLE[request.param]
    if "foreign" in request.param and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    root = tmp_path / "parent" / "store"
    root.parent.mkdir()
    prepare(root)
    return root, text


def test_a_folder_that_must_not_be_used(unusable: tuple[Path, str], caplog: pytest.LogCaptureFixture) -> None:
    root, text = unusable
    before = sorted(root.parent.rglob("*"))
    store = Store(root)
    assert store.root is None
    assert text in store.why_off
    assert store.make(KEY, lambda: b"made") == b"made"
    assert store.get(KEY) == b"made"
    assert (store.path(KEY), list(store.entries()), store.keep_failure("x", {"x.cu": ""})) == (None, [], None)
    assert counted("faults") == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert text in caplog.text
    assert sorted(root.parent.rglob("*")) == before


def test_a_seed_that_must_not_be_used(unusable: tuple[Path, str], caplog: pytest.LogCaptureFixture) -> None:
    root, text = unusable
    store = Store(None, seeds=[root])
    assert store.seeds == ()
    assert text in store.refused[root]
    assert text in caplog.text
    assert store.make(KEY, lambda: b"made") == b"made"


@pytest.mark.parametrize("root", [Path("/nowhere/at/all"), Path("relative")])
def test_a_seed_that_is_not_there(root: Path) -> None:
    store = Store(None, seeds=[root])
    assert (store.seeds, list(store.refused)) == ((), [root])


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = Store(tmp_path / "file" / "store")
    assert (store.root, store.get(KEY)) == (None, None)
    assert "is not a folder" in store.why_off or "Not a directory" in store.why_off


def test_an_entry_that_is_not_ours_is_a_miss(store: Store) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    store.put(KEY, PAYLOAD)
    os.chown(entry(store), 12345, 12345)
    assert store.get(KEY) is None
    assert counted("quarantined") == 1


@pytest.fixture
def somebody() -> Iterator[Path]:
    """A folder of somebody who is not root, and being them."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, 12345, 12345)
    os.seteuid(12345)
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_a_folder_that_may_not_be_written(somebody: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is in it is used, and nothing is written."""
    root = somebody / "store"
    Store(root).put(KEY, PAYLOAD)
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o500)
    store = Store(root)
    assert store.get(KEY) == PAYLOAD
    assert store.make(OTHER, lambda: b"other") == b"other"
    assert store.get(OTHER) == b"other"
    store.trim()
    assert len(caplog.records) == 1
    for path in folders:
        path.chmod(0o700)


def test_a_folder_that_may_not_be_made(somebody: Path) -> None:
    somebody.chmod(0o500)
    store = Store(somebody / "store")
    assert (store.root, store.make(KEY, lambda: PAYLOAD)) == (None, PAYLOAD)
    assert "Permission denied" in store.why_off


def test_a_seed_of_roots_is_used_by_all(somebody: Path) -> None:
    os.seteuid(0)
    Store(somebody / "seed").put(KEY, PAYLOAD)
    for path in (somebody / "seed").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (somebody / "seed").chmod(0o755)
    os.seteuid(12345)
    store = Store(somebody / "own", seeds=[somebody / "seed"])
    assert (store.get(KEY), store.refused) == (PAYLOAD, {})


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in (root, *root.rglob("*"))}


def test_seeds_come_first_and_are_left_as_they_are(tmp_path: Path) -> None:
    for name, content in (("first", b"first"), ("second", b"second"), ("own", b"own")):
        Store(tmp_path / name).put(KEY, content)
    Store(tmp_path / "second").put(OTHER, b"other")
    for path in tmp_path.glob("*/v1/binary/*/*"):
        os.utime(path, (1e9, 1e9))
    seeds = [tmp_path / "first", tmp_path / "second"]
    before = {str(seed): tree(seed) for seed in seeds}
    store = Store(tmp_path / "own", seeds=seeds)
    assert (store.get(KEY), store.get(OTHER)) == (b"first", b"other")
    assert store.make(OTHER, lambda: b"never") == b"other"
    assert store.path(OTHER) == entry(Store(tmp_path / "second"), OTHER)
    assert (counted("hits"), counted("seed_hits"), counted("user_hits")) == (2, 2, 0)
    assert len(files(tmp_path / "own")) == 1, "a hit in a seed is not copied"
    new = Key("binary", ())
    store.make(new, lambda: b"new")
    assert store.path(new) == entry(store, new)
    assert (store.get(new), counted("user_hits")) == (b"new", 1)
    assert {str(seed): tree(seed) for seed in seeds} == before


def test_a_seed_without_a_folder(tmp_path: Path) -> None:
    Store(tmp_path / "seed").put(KEY, PAYLOAD)
    store = Store(None, seeds=[tmp_path / "seed"])
    assert (store.get(KEY), store.get(OTHER)) == (PAYLOAD, None)
    assert store.make(OTHER, lambda: b"other") == store.get(OTHER) == b"other"
    assert counted("memory_hits") == 1


def test_versions_live_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older and a newer version of tilery share a folder; each finds its own entries and leaves the others'."""

    def version(schema: int) -> Store:
        for module in ("key", "entry", "level"):
            monkeypatch.setattr(getattr(package, module), "SCHEMA", schema)
        return Store(tmp_path / "store", max_entries=3)

    found = {}
    for schema in (1, 2, 3):
        version(schema).put(KEY, f"schema {schema}".encode())
        found[schema] = next(tmp_path.glob(f"store/v{schema}/binary/*/*")).read_bytes()
    for schema in (3, 1, 2):
        store = version(schema)
        assert store.get(KEY) == f"schema {schema}".encode()
        for index in range(10):
            store.put(Key("binary", (("index", str(index)),)), b"")
        assert sum(1 for _ in store.entries()) <= 3
    assert counted("quarantined") == 0
    for schema, data in found.items():
        # An entry of another version in this one's place is no entry.
        assert json.loads(data.partition(b"\n")[0])["schema"] == schema
        store = version(1)
        entry(store).parent.mkdir(exist_ok=True)
        entry(store).write_bytes(data)
        assert store.get(KEY) == (b"schema 1" if schema == 1 else None)


def test_memory_only() -> None:
    store = Store(None)
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
    assert store.get(KEY) == PAYLOAD
    assert (store.root, store.why_off, store.path(KEY)) == (None, "", None)
    assert counted("faults") == 0


def test_there_and_back(store: Store) -> None:
    assert store.get(KEY) is None
    assert store.path(KEY) is None
    store.put(KEY, PAYLOAD)
    assert store.get(KEY) == Store(store.root).get(KEY) == PAYLOAD
    assert (counted("hits"), counted("misses"), counted("writes")) == (2, 1, 1)
    (found,) = store.entries()
    assert found.path == store.path(KEY) == entry(store)
    assert (found.kind, found.digest, found.bytes) == ("binary", KEY.digest, entry(store).stat().st_size)
    assert stat.S_ISREG(found.path.stat().st_mode)


def test_failures_are_kept(store: Store) -> None:
    folder = store.keep_failure("variant-1234", {"variant.cu": "source", "log.txt": "log"})
    assert folder is not None
    assert (folder / "variant.cu").read_text() == "source"


def test_a_failure_that_cannot_be_kept(store: Store) -> None:
    assert store.user is not None
    (store.user.base / "failed").write_text("in the way")
    assert store.keep_failure("variant-1234", {"variant.cu": "source"}) is None
    assert counted("faults") == 1


def test_open_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_store(tmp_path / "x") is open_store(tmp_path / "x")
    assert open_store(tmp_path / "x", max_entries=5) is not open_store(tmp_path / "x")
    assert open_store(None).root is None
    assert open_store("user").root == user_root() == tmp_path / "tilery"


def test_a_policy_opens_its_store(tmp_path: Path) -> None:
    (tmp_path / "seed").mkdir()
    settings = Policy(
        store=tmp_path / "x", seeds=(tmp_path / "seed",), store_max_mib=3, store_max_entries=7, compile_deadline_s=2
    )
    store = store_for(settings)
    assert (store.root, store.limits, [seed.root for seed in store.seeds]) == (
        tmp_path / "x",
        (3 << 20, 7),
        [tmp_path / "seed"],
    )


@pytest.mark.parametrize("root", [Path("~/.cache/tilery"), Path("x")])
def test_no_home_makes_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(root)
    assert store.root is None
    assert "HOME" in store.why_off
    assert list(tmp_path.iterdir()) == []


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # neither HOME nor an entry in the user database
    store = open_store("user")
    assert (store.root, store.make(KEY, lambda: PAYLOAD)) == (None, PAYLOAD)
    assert "HOME" in store.why_off


def test_a_folder_that_vanishes(store: Store) -> None:
    assert store.root is not None
    store.put(KEY, PAYLOAD)
    shutil.rmtree(store.root)
    assert store.get(KEY) is None
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
    assert Store(store.root).get(KEY) == PAYLOAD
    assert counted("faults") == 0


def test_no_pickle() -> None:
    sources = [path.read_text() for path in Path(package.__file__).parent.glob("*.py")]
    assert len(sources) > 5
    assert not re.search(r"\b(pickle|marshal|shelve|dill|eval|exec)\b", "\n".join(sources))


def test_the_counters_have_names(store: Store) -> None:
    store.make(KEY, lambda: PAYLOAD)
    store.get(KEY)
    assert stats()["store"] == {"hits": 1, "user_hits": 1, "writes": 1}
