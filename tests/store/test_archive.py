"""A warm store as one file: what comes in is verified, whatever the file says."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.helpers import KEY, OTHER, PAYLOAD, entry, files, numbered
from tilery.errors import InvalidInput
from tilery.store import Store, header
from tilery.store.archive import Imported, export, take_in

NAME = f"binary/{KEY.digest}"
DATA = header(KEY, PAYLOAD) + PAYLOAD


def exported(store: Store, file: Path) -> Path:
    assert store.user is not None
    export(store.user, store.entries(), file)
    return file


def taken(store: Store, file: Path, **options: Any) -> Imported:
    assert store.user is not None
    return take_in(store.user, file, store.limits, **options)


def archive(
    file: Path, members: dict[str, bytes | tarfile.TarInfo], manifest: Any = None, rows: list[Any] | None = None
) -> Path:
    """An archive as somebody else may have made it."""
    listed = [
        {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in members.items()
        if isinstance(data, bytes)
    ]
    manifest = manifest or {"format": 1, "schema": 1, "entries": listed if rows is None else rows}
    with tarfile.open(file, "w") as tar:
        for name, data in (members | {"manifest.json": json.dumps(manifest).encode()}).items():
            info = data if isinstance(data, tarfile.TarInfo) else tarfile.TarInfo(name)
            content = b"" if isinstance(data, tarfile.TarInfo) else data
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def test_there_and_back(tmp_path: Path) -> None:
    source = Store(tmp_path / "source")
    for index in range(5):
        source.put(numbered(index), bytes([index]) * 1000)
    file = exported(source, tmp_path / "warm.tar")
    target = Store(tmp_path / "somewhere else" / "target")
    target.put(numbered(3), bytes([3]) * 1000)
    dry = taken(target, file, dry_run=True)
    assert len(files(tmp_path / "somewhere else")) == 1
    done = taken(target, file)
    assert done == dry
    assert (len(done.added), len(done.present), done.bad) == (4, 1, {})
    assert all(target.get(numbered(index)) == bytes([index]) * 1000 for index in range(5))
    assert [one.path.read_bytes() for one in sorted(target.entries())] == [
        one.path.read_bytes() for one in sorted(source.entries())
    ]
    assert taken(target, file).added == []


def test_it_is_a_plain_tar_that_names_no_place(tmp_path: Path) -> None:
    source = Store(tmp_path / "source")
    source.put(KEY, PAYLOAD)
    file = exported(source, tmp_path / "warm.tar")
    with tarfile.open(file, "r:") as tar:
        assert tar.getnames() == [NAME, "manifest.json"]
        stream = tar.extractfile("manifest.json")
        assert stream is not None
        manifest = json.load(stream)
    row = {"name": NAME, "bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
    assert manifest == {"format": 1, "schema": 1, "entries": [row]}
    assert str(tmp_path).encode() not in file.read_bytes()


def test_equal_stores_give_equal_files(tmp_path: Path) -> None:
    contents = []
    for order in ((0, 1, 2), (2, 0, 1)):
        store = Store(tmp_path / str(order))
        for index in order:
            store.put(numbered(index), b"code")
        contents.append(exported(store, tmp_path / "warm.tar").read_bytes())
    assert contents[0] == contents[1]


def test_a_broken_entry_is_not_exported(store: Store, tmp_path: Path) -> None:
    store.put(KEY, PAYLOAD)
    store.put(OTHER, PAYLOAD)
    entry(store).write_bytes(DATA[:-1])
    assert store.user is not None
    done = export(store.user, store.entries(), tmp_path / "warm.tar")
    assert done.entries == 1
    (skipped,) = done.skipped
    assert skipped.startswith(NAME)


def test_an_export_that_fails_leaves_the_old_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, PAYLOAD)
    file = exported(store, tmp_path / "warm.tar")
    before = file.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        exported(store, file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["warm.tar"]


def test_an_entry_that_goes_while_it_is_exported(store: Store, tmp_path: Path) -> None:
    store.put(KEY, PAYLOAD)
    store.put(OTHER, PAYLOAD)
    listed = list(store.entries())
    entry(store).unlink()
    assert store.user is not None
    export(store.user, listed, tmp_path / "warm.tar")
    assert taken(Store(tmp_path / "target"), tmp_path / "warm.tar").bad == {}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another key": ({f"binary/{OTHER.digest}": DATA}, "entry of another key"),
    "another kind": ({f"record/{KEY.digest}": DATA}, "entry of another key"),
    "cut off": ({NAME: DATA[:-1]}, "is not what it must be"),
    "rubbish": ({NAME: b"rubbish"}, "no header"),
    "a foreign kind": ({f"notes/{KEY.digest}": DATA}, "no entry's name"),
    "upwards": ({f"binary/../../{KEY.digest}": DATA}, "no entry's name"),
    "absolute": ({f"/{NAME}": DATA}, "no entry's name"),
    "a longer name": ({f"{NAME}.tmp": DATA}, "no entry's name"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_entry_is_left_out_and_reported(tmp_path: Path, what: str) -> None:
    members, reason = BAD[what]
    file = archive(tmp_path / "warm.tar", {f"binary/{numbered(7).digest}": header(numbered(7), b"7") + b"7"} | members)
    target = Store(tmp_path / "parent" / "target")
    done = taken(target, file)
    (told,) = done.bad.values()
    assert reason in told
    assert target.get(numbered(7)) == b"7"
    assert len(files(tmp_path / "parent")) == 1


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_what_is_no_file_is_left_out(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo(NAME)
    info.type, info.linkname = kind, "/etc/passwd"
    row = {"name": NAME, "bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
    done = taken(Store(tmp_path / "target"), archive(tmp_path / "warm.tar", {NAME: info}, rows=[row]))
    assert list(done.bad) == [NAME]
    assert files(tmp_path / "target") == []


def test_manifest_and_members_must_agree(tmp_path: Path) -> None:
    missing = {"name": f"binary/{OTHER.digest}", "bytes": 1, "sha256": "0"}
    other_sum = {"name": NAME, "bytes": len(DATA), "sha256": "0" * 64}
    members: dict[str, bytes | tarfile.TarInfo] = {NAME: DATA, "readme.txt": b"hello"}
    done = taken(Store(tmp_path / "target"), archive(tmp_path / "warm.tar", members, rows=[missing, other_sum, 5, {}]))
    assert done.added == []
    assert done.bad[f"binary/{OTHER.digest}"] == "it is missing"
    assert done.bad[NAME] == "its checksum is not the manifest's"
    assert done.bad["readme.txt"] == "the manifest does not list it"


@pytest.mark.parametrize("manifest", [{"format": 2, "schema": 1}, {"format": 1, "schema": 7, "entries": []}, [1]])
def test_an_archive_of_another_version_is_refused(tmp_path: Path, manifest: Any) -> None:
    with pytest.raises(InvalidInput, match="not for this version"):
        taken(Store(tmp_path / "target"), archive(tmp_path / "warm.tar", {NAME: DATA}, manifest))


@pytest.mark.parametrize(
    "data", [b"", b"rubbish", b"\0" * 10_240, DATA * 100], ids=["empty", "short", "zeros", "entry"]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "warm.tar").write_bytes(data)
    with pytest.raises(InvalidInput, match="Export the store again"):
        taken(Store(tmp_path / "target"), tmp_path / "warm.tar")


def test_a_broken_entry_in_the_store_is_replaced(store: Store, tmp_path: Path) -> None:
    store.put(KEY, PAYLOAD)
    file = exported(store, tmp_path / "warm.tar")
    entry(store).write_bytes(DATA[:-1])
    assert taken(store, file).added == [NAME]
    assert store.get(KEY) == PAYLOAD


def test_an_entry_larger_than_the_bound_is_left_out(store: Store, tmp_path: Path) -> None:
    store.put(KEY, bytes(20_000))
    file = exported(store, tmp_path / "warm.tar")
    assert "bound" in taken(Store(tmp_path / "small", max_mib=0.01), file).bad[NAME]


@lru_cache(maxsize=1)
def _good() -> bytes:
    with TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        store.put(KEY, PAYLOAD)
        store.put(OTHER, b"other")
        return exported(store, Path(folder) / "warm.tar").read_bytes()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_archive_never_brings_in_a_bad_entry(data: st.DataObject) -> None:
    """Cut off, bytes changed, put in or taken out: refused, or what is whole is taken in."""
    good = _good()
    used = 512 * 7  # the rest is the end mark and padding
    at = data.draw(st.integers(0, used))
    cut, put = data.draw(st.integers(0, 600)), data.draw(st.binary(max_size=600))
    damaged = data.draw(st.sampled_from([good[:at], good[:at] + put + good[at + cut :], good[:at] + put]))
    with TemporaryDirectory() as folder:
        file, target = Path(folder) / "warm.tar", Store(Path(folder) / "target")
        file.write_bytes(damaged)
        try:
            taken(target, file)
        except InvalidInput as error:
            assert str(file) in str(error)
        assert target.get(KEY) in (None, PAYLOAD)
        assert target.get(OTHER) in (None, b"other")
        assert set(files(Path(folder) / "target")) <= {
            f"v1/binary/{key.digest[:2]}/{key.digest}" for key in (KEY, OTHER)
        }
