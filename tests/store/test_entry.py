"""The bytes of an entry: a damaged one is a counted miss, never loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.helpers import KEY, OTHER, PAYLOAD, counted, entry
from tests.store.test_key import KEYS
from tilery.store import Key, Store, header
from tilery.store.entry import BadEntry, parse, payload_of

GOOD = header(KEY, PAYLOAD) + PAYLOAD


def test_the_bytes_are_pinned() -> None:
    """Another version of tilery reads them: raise SCHEMA with a change here."""
    assert header(KEY, b"code") == (
        b'{"schema":1,"kind":"binary","key":[["variant","gemm_naive_f32_any_16x16x1"],["arch","sm_90a"],'
        b'["nvrtc","13.0"]],"bytes":4,"sha256":"5694d08a2e53ffcae0c3103e5ad6f6076abd960eb1f8a56577040bc1028f702b"}\n'
    )


def test_every_flipped_byte_is_a_miss(store: Store) -> None:
    store.put(KEY, PAYLOAD)
    assert entry(store).read_bytes() == GOOD
    for at in range(len(GOOD)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            entry(store).write_bytes(GOOD[:at] + bytes([GOOD[at] ^ mask]) + GOOD[at + 1 :])
            assert store.get(KEY) is None
            assert not entry(store).exists()
    assert counted("quarantined") == counted("misses") == 4 * len(GOOD)
    assert store.user is not None
    assert [path.name for path in (store.user.base / "quarantine").iterdir()] == [KEY.digest]
    store.put(KEY, PAYLOAD)
    assert store.get(KEY) == PAYLOAD


def test_every_truncation_is_a_miss(store: Store) -> None:
    store.put(KEY, PAYLOAD)
    for data in (*(GOOD[:length] for length in range(len(GOOD))), GOOD + b"x", GOOD + GOOD, b"\0" * len(GOOD)):
        entry(store).write_bytes(data)
        assert store.get(KEY) is None
    assert counted("misses") == counted("quarantined") == len(GOOD) + 3
    assert counted("hits") == 0


def test_damage_is_a_miss_in_a_seed_too(tmp_path: Path) -> None:
    """It is not quarantined: the seed is not ours. The level below still serves."""
    seed = Store(tmp_path / "seed")
    seed.put(KEY, PAYLOAD)
    store = Store(tmp_path / "own", seeds=[tmp_path / "seed"])
    for at in range(0, len(GOOD), 7):
        entry(seed).write_bytes(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :])
        assert store.get(KEY) is None
        assert entry(seed).exists()
    assert counted("bad_in_seed") == counted("misses") > 0
    store.put(KEY, PAYLOAD)
    assert store.get(KEY) == PAYLOAD


@given(st.integers(0, len(GOOD)), st.integers(0, 40), st.binary(max_size=40))
def test_no_change_is_overlooked(at: int, cut: int, put: bytes) -> None:
    changed = GOOD[:at] + put + GOOD[at + cut :]
    if changed == GOOD:
        assert payload_of(changed, KEY) == PAYLOAD
        return
    with pytest.raises(BadEntry):
        payload_of(changed, KEY)


@given(KEYS, st.binary(max_size=100))
def test_an_entry_tells_its_key(key: Key, payload: bytes) -> None:
    assert parse(header(key, payload) + payload) == (key, payload)


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
        lambda data: json.dumps({"kind": "binary", "key": data}).encode() + b"\n"
    )
)
def test_rubbish_is_no_entry(data: bytes) -> None:
    with pytest.raises(BadEntry):
        parse(data)


def test_a_deep_header_is_no_entry() -> None:
    with pytest.raises(BadEntry):
        parse(b"[" * 60_000 + b"\n")


def test_an_entry_of_another_key_is_a_miss(store: Store) -> None:
    store.put(OTHER, PAYLOAD)
    entry(store).parent.mkdir(parents=True)
    os.replace(entry(store, OTHER), entry(store))
    assert store.get(KEY) is None
    assert counted("quarantined") == 1


def _link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(GOOD)
    path.symlink_to(path.parent / "elsewhere")


def _writable(path: Path) -> None:
    path.write_bytes(GOOD)
    path.chmod(0o666)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


IN_THE_WAY: dict[str, Callable[[Path], Any]] = {
    "a link": _link,
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "writable": _writable,
    "huge": _huge,
}


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_what_is_no_private_file_is_a_miss_and_is_replaced(store: Store, what: str) -> None:
    entry(store).parent.mkdir(parents=True)
    IN_THE_WAY[what](entry(store))
    assert store.get(KEY) is None
    assert counted("quarantined") == 1
    assert store.make(KEY, lambda: PAYLOAD) == PAYLOAD
    assert Store(store.root).get(KEY) == PAYLOAD
