"""Which NVRTC there is: remembered by the store, and never wrong about what compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilery import jit, policy, toolchain
from tilery.pack import builtin
from tilery.policy import Policy
from tilery.store import Store, open_store
from tilery.toolchain import Toolchain, actual, build_of, recall, remember


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path) -> Iterator[None]:
    policy.use(Policy(store=tmp_path / "store"))
    toolchain.toolchain.cache_clear()
    yield
    toolchain.toolchain.cache_clear()
    policy.use(None)


def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


PROGRAM = """
import sys
from pathlib import Path
import tilery
from tilery import jit
tilery.policy.use(tilery.Policy(store=Path(sys.argv[1])))
tools = jit.toolchain()
loaded = any("libnvrtc.so" in line for line in open("/proc/self/maps"))
print(tools.version, tools.build, len(tools.archs), loaded)
"""


def test_a_second_process_knows_it_without_loading_it(tmp_path: Path) -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "store")], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    tools = toolchain.loaded()
    assert [run[:3] for run in runs] == [[tools.version, tools.build, str(len(tools.archs))]] * 2
    assert [run[3] for run in runs] == ["True", "False"]


def test_another_file_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libnvrtc.so"
    library.write_bytes(b"one")
    monkeypatch.setattr(toolchain, "_library", lambda: library)
    tools = Toolchain("13.0", "1", (90,))
    assert recall(store(tmp_path)) is None
    assert remember(store(tmp_path), tools) is tools
    assert recall(store(tmp_path)) == tools
    library.write_bytes(b"another")
    assert recall(store(tmp_path)) is None
    remember(store(tmp_path), tools)
    os.utime(library, ns=(1, 1))
    assert recall(store(tmp_path)) is None
    remember(store(tmp_path), tools)
    library.unlink()
    assert recall(store(tmp_path)) is None


@pytest.mark.parametrize("name", toolchain.SEARCHED)
def test_another_place_to_look_is_another_entry(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(store(tmp_path), toolchain.loaded())
    assert recall(store(tmp_path)) == toolchain.loaded()
    monkeypatch.setenv(name, "/elsewhere")
    assert recall(store(tmp_path)) is None


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"{}", b'{"path": 1}', b'{"path": "/", "identity": [1, 2]}', b"\xff"]
)
def test_a_payload_that_makes_no_sense_is_not_believed(tmp_path: Path, payload: bytes) -> None:
    store(tmp_path).put(toolchain._key(), payload)
    assert recall(store(tmp_path)) is None


def test_what_is_remembered_wrongly_never_keys_what_is_compiled(tmp_path: Path) -> None:
    """As where the process has loaded another library by itself."""
    wrong = Toolchain("12.9", "other", (90,))
    remember(store(tmp_path), wrong)
    assert toolchain.toolchain() == wrong
    variant = next(v for v in builtin().variants.values() if v.family == "gemm_naive")
    assert jit.compile_variant(variant, "sm_90a").origin == "nvrtc"
    (entry,) = [
        e for e in store(tmp_path).entries() if e.path.parent.parent.name == "binary" or "binary" in e.path.parts
    ]
    assert toolchain.loaded().build.encode() in entry.path.read_bytes()
    assert b"12.9" not in entry.path.read_bytes()[:2000]
    assert toolchain.toolchain() == toolchain.loaded() == actual(store(tmp_path))
    assert jit.compile_variant(variant, "sm_90a").origin == "store"


def test_looking_it_up_counts_as_no_hit_or_miss(tmp_path: Path) -> None:
    from tilery.stats import reset, stats

    reset()
    toolchain.toolchain()
    toolchain.toolchain.cache_clear()
    toolchain.toolchain()
    assert not {"hits", "misses"} & set(stats()["store"])


def test_the_build_is_in_the_file_and_moves_with_it(tmp_path: Path) -> None:
    library = toolchain._library()
    assert library is not None
    assert len(build_of(library)) == 40  # a GNU build id is SHA-1
    moved = shutil.copyfile(library, tmp_path / "moved.so")
    assert build_of(Path(moved)) == build_of(library) == toolchain.loaded().build


@pytest.mark.parametrize(
    "data", [b"", b"\x7fELF", b"\x7fELF\2\1" + bytes(58), b"\x7fELF\2\1" + b"\xff" * 300, b"not ELF at all"]
)
def test_a_file_without_a_build_id_has_its_size(tmp_path: Path, data: bytes) -> None:
    library = tmp_path / "x.so"
    library.write_bytes(data)
    assert build_of(library) == str(len(data))


def test_what_is_remembered_is_json(tmp_path: Path) -> None:
    toolchain.toolchain()
    data = json.loads(store(tmp_path).look(toolchain._key()) or b"")
    assert set(data) == {"path", "identity", "version", "build", "archs"}
