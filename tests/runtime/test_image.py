"""Which image serves which GPU; images that are not what they should be; loading, against a made-up driver."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import simulated
from tilery import device, image
from tilery.errors import DriverError, PackError
from tilery.generator.variant import Variant
from tilery.pack import Image

SERVED = {
    "compute_75": {(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (13, 0)},
    "compute_80": {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (13, 0)},
    "compute_90a": {(9, 0)},
    "sm_75": {(7, 5)},
    "sm_80": {(8, 0), (8, 6), (8, 9)},
    "sm_86": {(8, 6), (8, 9)},
    "sm_90": {(9, 0)},
    "sm_90a": {(9, 0)},
    "sm_100": {(10, 0), (10, 3)},
    "sm_100a": {(10, 0)},
    "sm_100f": {(10, 0), (10, 3)},
    "sm_103f": {(10, 3)},
    "sm_120f": {(12, 0), (12, 1)},
    "sm_121a": {(12, 1)},
    "host": set(),
}


@pytest.mark.parametrize("arch", SERVED)
def test_who_serves_what(arch: str) -> None:
    assert {cc for cc in simulated.DEVICES if image.serves(arch, cc)} == SERVED[arch]


@pytest.mark.parametrize("arch", ["sm90", "sm_9", "sm_90b", "gfx90a", "", "sm_90a "])
def test_a_name_that_is_no_arch(arch: str) -> None:
    with pytest.raises(PackError, match="not an arch"):
        image.serves(arch, (9, 0))


def test_the_host_device_runs_host_alone() -> None:
    assert [arch for arch in SERVED if image.serves(arch, (0, 0))] == ["host"]
    assert image.order(SERVED, (0, 0)) == ("host",)
    assert image.is_sass("host")


def test_order_prefers_the_most_specific() -> None:
    archs = ["compute_75", "compute_80", "compute_90a", "sm_90", "sm_90a", "sm_80"]
    assert image.order(archs, (9, 0)) == ("sm_90a", "sm_90", "compute_90a", "compute_80", "compute_75")
    assert image.order(["sm_80", "sm_86", "sm_89"], (8, 9)) == ("sm_89", "sm_86", "sm_80")
    assert image.order(["sm_100", "sm_100f", "sm_103a"], (10, 3)) == ("sm_103a", "sm_100f", "sm_100")
    assert image.order(["sm_80", "sm_90a"], (13, 0)) == ()


def fatbin(payload: bytes = b"some machine code") -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(payload)) + payload


def library(kind: int = 3, machine: int = 62) -> bytes:
    """An ELF file with two section headers of 64 bytes."""
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", kind, machine, 1, 0, 0, 64, 0, 64, 56, 0, 64, 2, 1)
    return header + bytes(128)


FATBIN = Path("x.fatbin")


@pytest.mark.parametrize("data", [fatbin(), fatbin(b""), fatbin() + fatbin(b"more")], ids=["one", "empty", "two"])
def test_whole_fatbins(data: bytes) -> None:
    image.verify(data, FATBIN)


@pytest.mark.parametrize("data", [fatbin(), fatbin() + fatbin(b"more")], ids=["one", "two"])
def test_every_truncation_is_found(data: bytes) -> None:
    whole = {len(fatbin()), len(data)}
    for length in set(range(len(data))) - whole:
        with pytest.raises(PackError, match="truncated"):
            image.verify(data[:length], FATBIN)


@pytest.mark.parametrize("data", [b"\x7fELF" + bytes(60), b"<!DOCTYPE html><html>", fatbin() + bytes(16)])
def test_foreign_files_are_found(data: bytes) -> None:
    with pytest.raises(PackError, match=r"x\.fatbin: is not a fatbin"):
        image.verify(data, FATBIN)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (fatbin(b"x" * 100), "not a 64-bit ELF file"),
        (b"\x7fELF", "truncated"),
        (b"\x7fELF\x01\x01\x01" + bytes(60), "not a 64-bit ELF file"),
        (library(machine=183), "no shared library for x86-64: type 3, machine 183"),
        (library(kind=2), "type 2"),
        (library()[:-1], "truncated: 191 bytes of 192"),
    ],
)
def test_what_is_no_library_is_found(data: bytes, message: str) -> None:
    image.verify(library(), Path("kernels.so"))
    with pytest.raises(PackError, match=f"kernels.so: is .*{message}"):
        image.verify(data, Path("kernels.so"))


@pytest.fixture
def stored(tmp_path: Path) -> Image:
    data = fatbin()
    (tmp_path / "x.fatbin").write_bytes(data)
    return Image("sm_90a", "x", tmp_path / "x.fatbin", hashlib.sha256(data).hexdigest(), len(data), ("x",))


def test_read(stored: Image) -> None:
    assert image.read(stored) == fatbin()


@pytest.mark.parametrize("data", [None, b"", fatbin()[:-1], b"x" * 100, fatbin(b"another build, in full")])
def test_a_broken_file_names_itself_and_the_cure(stored: Image, data: bytes | None) -> None:
    stored.path.unlink()
    if data is not None:
        stored.path.write_bytes(data)
    with pytest.raises(PackError) as raised:
        image.read(stored)
    for part in (str(stored.path), "reinstall"):
        assert part in str(raised.value)


class FakeCalls:
    """The driver's loading calls; ``fail`` names the one that fails, and with what."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.fail: dict[str, str] = {}

    def __call__(self, function: str, *args: Any) -> Any:
        self.log.append((function, *args))
        if function in self.fail:
            raise DriverError(function, self.fail[function], "text of the driver")
        return f"result of {function} {len(self.log)}"

    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCalls]:
    fake = FakeCalls()
    monkeypatch.setattr(device, "call", fake)
    monkeypatch.setattr(device, "constant", lambda enum, member: member)
    monkeypatch.setattr(device, "current", lambda ordinal: nullcontext())
    monkeypatch.setattr(device, "info", lambda ordinal: simulated.H200)
    monkeypatch.setattr(image, "_libraries", {})
    monkeypatch.setattr(image, "_kernels", {})
    yield fake


SMALL = Variant("f", "gemm", "f32", "nn", 1, (("tile", (16, 16, 1)),), threads=256, shared_bytes=48 * 1024)
LARGE = Variant("f", "gemm", "f32", "nt", 1, (("tile", (16, 16, 1)),), threads=256, shared_bytes=48 * 1024 + 1)


def test_a_library_is_loaded_once_and_a_kernel_once_per_gpu(stored: Image, calls: FakeCalls) -> None:
    kernels = {
        image.load(stored, variant, ordinal) for variant in (SMALL, LARGE) for ordinal in (0, 1) for _ in range(2)
    }
    assert len(kernels) == 4
    assert calls.names().count("cuLibraryLoadData") == 1
    assert calls.names().count("cuKernelGetFunction") == 4
    assert image.is_loaded(stored.sha256, SMALL, 1)
    assert not image.is_loaded(stored.sha256, SMALL, 2)


def test_only_large_shared_memory_needs_an_attribute(stored: Image, calls: FakeCalls) -> None:
    image.load(stored, SMALL, 0)
    assert "cuKernelSetAttribute" not in calls.names()
    image.load(stored, LARGE, 0)
    (attribute,) = [entry for entry in calls.log if entry[0] == "cuKernelSetAttribute"]
    assert attribute[1:3] == ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", LARGE.shared_bytes)


def test_a_refusal_names_variant_file_gpu_and_driver(stored: Image, calls: FakeCalls) -> None:
    calls.fail = {"cuLibraryLoadData": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}
    with pytest.raises(DriverError) as raised:
        image.load(stored, SMALL, 0)
    assert raised.value.name in image.IMAGE_FAULTS
    for part in (SMALL.name, str(stored.path), "GPU of 9.0", "update the driver"):
        assert part in str(raised.value)
    calls.fail = {}
    image.load(stored, SMALL, 0)
