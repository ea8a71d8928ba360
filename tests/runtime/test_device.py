"""The probe, against a made-up driver, and what it says where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runtime import simulated
from tilery import device
from tilery.errors import DriverError, InvalidInput, UnknownName


class FakeDriver:
    """Two GPUs that differ in everything, and contexts as plain numbers."""

    ATTRIBUTES = (
        {
            "COMPUTE_CAPABILITY_MAJOR": 9,
            "COMPUTE_CAPABILITY_MINOR": 0,
            "MULTIPROCESSOR_COUNT": 132,
            "CLOCK_RATE": 1980000,
        }
        | {"MEMORY_CLOCK_RATE": 3201000, "GLOBAL_MEMORY_BUS_WIDTH": 6144, "L2_CACHE_SIZE": 62914560}
        | {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448},
        {
            "COMPUTE_CAPABILITY_MAJOR": 8,
            "COMPUTE_CAPABILITY_MINOR": 6,
            "MULTIPROCESSOR_COUNT": 84,
            "CLOCK_RATE": 1695000,
        }
        | {"MEMORY_CLOCK_RATE": 0, "GLOBAL_MEMORY_BUS_WIDTH": 384, "L2_CACHE_SIZE": 6291456}
        | {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 101376},
    )

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.inits = 0
        names = {f"CU_DEVICE_ATTRIBUTE_{name}": name for name in self.ATTRIBUTES[0]}
        self.CUdevice_attribute = SimpleNamespace(**names)
        self.CUresult = SimpleNamespace(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT=906)
        self.CUstream = int

    def cuInit(self, flags: int) -> tuple[int]:
        self.inits += 1
        return (0,)

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, 13000

    def cuDeviceGetCount(self) -> tuple[int, int]:
        return 0, len(self.ATTRIBUTES)

    def cuDeviceGet(self, ordinal: int) -> tuple[int, int]:
        return 0, ordinal

    def cuDeviceGetName(self, length: int, gpu: int) -> tuple[int, bytes]:
        return 0, f"GPU {gpu}".encode().ljust(length, b"\0")

    def cuDeviceGetAttribute(self, name: str, gpu: int) -> tuple[int, int]:
        return 0, self.ATTRIBUTES[gpu][name]

    def cuDevicePrimaryCtxRetain(self, gpu: int) -> tuple[int, int]:
        return 0, 100 + gpu

    def cuCtxGetCurrent(self) -> tuple[int, int]:
        return 0, self.stack[-1] if self.stack else 0

    def cuCtxPushCurrent(self, context: int) -> tuple[int]:
        self.stack.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, int]:
        return 0, self.stack.pop()

    def cuStreamIsCapturing(self, stream: int) -> tuple[int, int]:
        return {5: (0, 1), 6: (906, 0), 7: (400, 0)}.get(stream, (0, 0))

    def cuGetErrorName(self, code: int) -> tuple[int, bytes]:
        return 0, f"CUDA_ERROR_{code}".encode()

    def cuGetErrorString(self, code: int) -> tuple[int, bytes]:
        return 0, b"what it means"


def forget() -> None:
    device._driver.cache_clear()
    device._look.cache_clear()
    device._contexts.clear()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    fake = FakeDriver()
    forget()
    monkeypatch.setattr(device, "import_module", lambda name: fake)
    yield fake
    forget()


def test_each_gpu_is_asked_by_itself(driver: FakeDriver) -> None:
    first, second = device.devices()
    assert (first.name, first.cc, first.sms, first.shared_bytes) == ("GPU 0", (9, 0), 132, 232448)
    assert (second.cc, second.sms, second.ordinal, second.driver_version) == ((8, 6), 84, 1, 13000)
    assert round(first.bandwidth_gbs) == 4917
    assert second.bandwidth_gbs == device.UNKNOWN_BANDWIDTH_GBS
    device.devices()
    assert driver.inits == 1


def test_an_ordinal_that_is_not_there(driver: FakeDriver) -> None:
    assert device.info(1).name == "GPU 1"
    for ordinal in (2, -1):
        with pytest.raises(InvalidInput, match="sees 2"):
            device.info(ordinal)


def test_the_callers_context_comes_back(driver: FakeDriver) -> None:
    driver.stack.append(101)
    with device.current(0):
        assert driver.stack == [101, 100]
        with device.current(0):
            assert driver.stack == [101, 100]
    assert driver.stack == [101]
    with pytest.raises(ValueError), device.current(0):
        raise ValueError
    assert driver.stack == [101]


def test_capture(driver: FakeDriver) -> None:
    assert [device.capturing(stream, 0) for stream in (0, 5, 6)] == [False, True, True]
    with pytest.raises(DriverError, match="CUDA_ERROR_400"):
        device.capturing(7, 0)


def test_capture_is_asked_in_the_context_of_the_gpu(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    answer = driver.cuStreamIsCapturing
    monkeypatch.setattr(driver, "cuStreamIsCapturing", lambda s: asked.append(list(driver.stack)) or answer(s))
    assert not device.capturing(0, 1)  # from a thread that has no context
    assert (asked, driver.stack) == ([[101]], [])


@pytest.mark.parametrize(
    ("error", "text"),
    [(ImportError("no cuda"), "pip install cuda-bindings"), (RuntimeError("no libcuda"), "no libcuda")],
)
def test_no_driver(monkeypatch: pytest.MonkeyPatch, error: Exception, text: str) -> None:
    def fail(name: str) -> Any:
        raise error

    forget()
    monkeypatch.setattr(device, "import_module", fail)
    assert device.devices() == ()
    assert text in device.why_none()
    with pytest.raises(InvalidInput, match=text):
        device.info(0)
    forget()


def test_a_driver_without_a_gpu(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuInit", lambda flags: (100,))
    assert device.devices() == ()
    assert "CUDA_ERROR_100" in device.why_none()


def test_representative() -> None:
    pack = simulated.pack()
    assert device.representative("sm_90a", pack).cc == (9, 0)
    with pytest.raises(UnknownName, match="did you mean 'sm_90a'"):
        device.representative("sm_90", pack)


def test_importing_touches_nothing() -> None:
    code = "import sys, tilery.plan; print({'cuda', 'jinja2', 'torch', 'filelock'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
