"""A made-up driver, compiler and GPU for the tests of Plans."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.runtime import simulated
from tests.runtime.simulated import H200
from tilery import background, device, image, jit, plan, policy
from tilery.errors import DriverError
from tilery.generator.variant import Variant
from tilery.policy import Policy
from tilery.stats import reset
from tilery.store import Store

CONTEXT = 77
STREAM = 4096


class World:
    """What a Plan asks of the rest of the runtime; faults are set by the tests."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str]] = []
        self.compiles: list[tuple[str, str]] = []
        self.compiling: Callable[[Variant], None] = lambda variant: None
        self.relaxing = self.relaxed_loads = 0
        self.lock = threading.Lock()
        self.launches: list[tuple[Any, ...]] = []
        self.params: list[int] = []
        self.fault: Callable[[str, str, Variant], Exception | None] = lambda source, arch, variant: None
        self.status = 0
        self.capturing = False
        self.context = CONTEXT
        self.pushed = 0
        self.loaded: set[tuple[str, str]] = set()

    def load(self, found: Any, variant: Variant, ordinal: int) -> str:
        return self._load("image", found.arch, variant, found.sha256)

    def compile(self, variant: Variant, arch: str, **_: Any) -> jit.Code:
        with self.lock:
            self.compiles.append((arch, variant.name))
        self.compiling(variant)
        if error := self.fault("jit", arch, variant):
            raise error
        return jit.Code(b"code", "nvrtc")

    def load_code(self, key: str, code: bytes, variant: Variant, ordinal: int, source: str, cuda: str = "") -> str:
        return self._load("jit load", source, variant, key)

    def _load(self, source: str, arch: str, variant: Variant, key: str) -> str:
        self.loads.append((source, variant.name))
        self.relaxed_loads += self.relaxing
        if error := self.fault(source, arch, variant):
            raise error
        self.loaded.add((key, variant.name))
        return f"kernel {variant.name}"

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        self.relaxing += 1
        yield
        self.relaxing -= 1

    def launch(self, *args: Any) -> tuple[int]:
        self.launches.append(args)
        pointer = ctypes.c_void_p.from_address(args[9]).value
        assert pointer is not None
        self.params.append(Params.from_address(pointer).m)
        return (self.status,)

    @contextmanager
    def push(self, ordinal: int) -> Iterator[None]:
        self.pushed += 1
        yield


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(plan, "builtin", simulated.pack)
    monkeypatch.setattr(plan, "store_for", lambda settings: Store(None))
    monkeypatch.setattr(plan.choose, "__defaults__", ({}, lambda: simulated.NVRTC))
    monkeypatch.setattr(jit, "toolchain", lambda: simulated.NVRTC)
    monkeypatch.setattr(jit, "compile_variant", made.compile)
    monkeypatch.setattr(image, "load", made.load)
    monkeypatch.setattr(image, "load_code", made.load_code)
    monkeypatch.setattr(image, "is_loaded", lambda key, variant, ordinal: (key, variant.name) in made.loaded)
    monkeypatch.setattr(device, "info", lambda ordinal: H200)
    monkeypatch.setattr(device, "primary_context", lambda ordinal: CONTEXT)
    monkeypatch.setattr(device, "current_context", lambda: made.context)
    monkeypatch.setattr(device, "current", made.push)
    monkeypatch.setattr(device, "relaxed", made.relaxed)
    monkeypatch.setattr(device, "capturing", lambda stream, ordinal: made.capturing)
    monkeypatch.setattr(device, "function", lambda name: made.launch)
    monkeypatch.setattr(device, "_text", lambda function, code: f"text of {code}")
    plan.clear()
    reset()
    policy.use(Policy())
    yield made
    assert background.workers.wait(60)
    policy.use(None)
    reset()
    plan.clear()


def driver_error(call: str, name: str) -> DriverError:
    return DriverError(call, f"CUDA_ERROR_{name}")


class Params(ctypes.Structure):
    _fields_ = (("m", ctypes.c_int),)
