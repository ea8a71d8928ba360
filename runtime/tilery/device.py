"""The only probe of GPUs and of the driver. Nothing happens at import; every GPU is asked by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import DriverError, InvalidInput, UnknownName
from .generator.archs import HOST, HOST_CC
from .generator.records import Gpu

if TYPE_CHECKING:
    from .pack import Pack

# Used where the driver reports no memory clock or bus width, as some virtual and integrated GPUs do: a modest GPU, so
# that rankings stay sensible.
UNKNOWN_BANDWIDTH_GBS = 300.0
# The legacy and the per-thread default stream: these handles belong to whatever context is current.
DEFAULT_STREAMS = (0, 1, 2)
FORKED = (
    "this process was forked from one that had initialised CUDA, which does not survive a fork: "
    "start it with multiprocessing.get_context('spawn')"
)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One GPU, present or described; or the CPU, whose capability is 0.0.

    Attributes:
        name: the driver's name of it.
        cc: compute capability, e.g. (9, 0).
        sms: streaming multiprocessors.
        shared_bytes: most dynamic shared memory that one block may ask for.
        l2_bytes: size of the L2 cache.
        clock_mhz: highest SM clock.
        bandwidth_gbs: memory bandwidth in 10**9 bytes per second.
        ordinal: the driver's number of it in this process, or None where it is only described.
        driver_version: highest CUDA version that the driver supports, as 13000 for 13.0, or None.
    """

    name: str
    cc: tuple[int, int]
    sms: int
    shared_bytes: int
    l2_bytes: int
    clock_mhz: float
    bandwidth_gbs: float
    ordinal: int | None = None
    driver_version: int | None = None

    @property
    def is_host(self) -> bool:
        """Whether it is the CPU."""
        return bool(self.cc == HOST_CC)

    @property
    def gpu(self) -> Gpu:
        """What a measurement depends on of it."""
        return Gpu(self.name, self.cc, self.sms, self.l2_bytes >> 20, round(self.bandwidth_gbs))

    def __str__(self) -> str:
        if self.is_host:
            return self.name
        return f"{self.name} ({self.cc[0]}.{self.cc[1]}, {self.sms} SMs)"

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self) | {"cc": list(self.cc)}


def version_text(version: int) -> str:
    """The driver's number of a version as people write it.

    >>> version_text(12080)
    '12.8'
    """
    return f"{version // 1000}.{version % 1000 // 10}"


def version_number(text: str) -> int:
    """The driver's number of a version as people write it.

    >>> version_number("12.8")
    12080
    """
    major, minor = text.split(".")[:2]
    return int(major) * 1000 + int(minor) * 10


@lru_cache(maxsize=1)
def _driver() -> Any:
    return import_module("cuda.bindings.driver")


def _text(function: str, code: Any) -> str:
    status, text = getattr(_driver(), function)(code)
    return text.decode() if int(status) == 0 and text else str(code)


def driver_error(function: str, code: Any, advice: str = "") -> DriverError:
    """The typed error of a CUresult that is not success."""
    name = _text("cuGetErrorName", code)
    if _forked or name == "CUDA_ERROR_NOT_INITIALIZED":
        advice = FORKED if _forked else f"Perhaps {FORKED}"
    return DriverError(function, name, _text("cuGetErrorString", code), advice)


def call(function: str, *args: Any) -> Any:
    """Call the driver; what it returns beside the status: nothing, one value, or a tuple.

    Raises:
        DriverError: the status is not success.
    """
    code, *values = getattr(_driver(), function)(*args)
    if int(code) != 0:
        raise driver_error(function, code)
    return values[0] if len(values) == 1 else tuple(values) or None


def function(name: str) -> Any:
    """A function of the driver, for callers that look at the status themselves."""
    return getattr(_driver(), name)


def constant(enum: str, member: str) -> Any:
    """A constant of the driver's header, e.g. ``constant("CUdevice_attribute", "...")``."""
    return getattr(getattr(_driver(), enum), member)


def _attribute(device: Any, name: str) -> int:
    return int(call("cuDeviceGetAttribute", constant("CUdevice_attribute", f"CU_DEVICE_ATTRIBUTE_{name}"), device))


def _probe(ordinal: int, version: int) -> DeviceInfo:
    device = call("cuDeviceGet", ordinal)

    def ask(name: str) -> int:
        return _attribute(device, name)

    # Two transfers per memory clock; kHz times bytes is 10**3 bytes per second.
    bandwidth = 2 * ask("MEMORY_CLOCK_RATE") * (ask("GLOBAL_MEMORY_BUS_WIDTH") // 8) / 1e6
    return DeviceInfo(
        name=call("cuDeviceGetName", 256, device).split(b"\0")[0].decode(),
        cc=(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
        sms=ask("MULTIPROCESSOR_COUNT"),
        shared_bytes=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        l2_bytes=ask("L2_CACHE_SIZE"),
        clock_mhz=ask("CLOCK_RATE") / 1000,
        bandwidth_gbs=bandwidth or UNKNOWN_BANDWIDTH_GBS,
        ordinal=ordinal,
        driver_version=version,
    )


@lru_cache(maxsize=1)
def _look() -> tuple[tuple[DeviceInfo, ...], str]:
    """The GPUs, and why there are none."""
    if _forked:
        return (), FORKED
    try:
        call("cuInit", 0)
        version = int(call("cuDriverGetVersion"))
        found = tuple(_probe(ordinal, version) for ordinal in range(int(call("cuDeviceGetCount"))))
    except ImportError as error:
        return (), f"cuda-bindings cannot be imported ({error}): pip install cuda-bindings"
    except DriverError as error:
        return (), f"the NVIDIA driver answers, but has no usable GPU: {error}"
    except RuntimeError as error:  # cuda-pathfinder's DynamicLibNotFoundError is one
        return (), f"no NVIDIA driver on this machine ({error})"
    return found, "" if found else "the NVIDIA driver shows no GPU; is CUDA_VISIBLE_DEVICES set to an empty list?"


def devices() -> tuple[DeviceInfo, ...]:
    """The GPUs of this process, in the driver's order; empty where there is no driver. Looked up once."""
    return _look()[0]


def why_none() -> str:
    """Why `devices` is empty, for people; "" where it is not."""
    return _look()[1]


def info(ordinal: int) -> DeviceInfo:
    """The GPU with this number.

    Raises:
        InvalidInput: there is none.
    """
    found = devices()
    if not 0 <= ordinal < len(found):
        raise InvalidInput(f"no GPU {ordinal}: {why_none() or f'this process sees {len(found)}, numbered from 0'}")
    return found[ordinal]


def representative(arch: str, pack: Pack | None = None) -> DeviceInfo:
    """The GPU that stands for an arch of the pack (default: the built-in one), for decisions without a GPU.

    For ``host`` it is this machine's CPU.

    Raises:
        UnknownName: the pack has no such arch; the message has the nearest ones.
    """
    from .pack import builtin

    archs = (pack or builtin()).archs
    if arch not in archs:
        raise UnknownName("arch", arch, archs)
    if arch == HOST:
        from .host.device import info as host_info

        return host_info(archs[arch].gpu)
    return archs[arch].gpu


_contexts: dict[int, Any] = {}
_lock = threading.Lock()
_forked = False


def _after_fork() -> None:
    """In the child nothing of the parent's CUDA can be used, and a lock may have been held by a thread that is gone."""
    global _forked, _lock
    _forked = _forked or (_look.cache_info().currsize > 0 and bool(devices()))
    _lock = threading.Lock()
    _contexts.clear()
    _look.cache_clear()


os.register_at_fork(after_in_child=_after_fork)


def primary_context(ordinal: int) -> Any:
    """The primary context of a GPU, which frameworks use too; retained once for the life of the process."""
    if (context := _contexts.get(ordinal)) is not None:
        return context
    with _lock:
        if ordinal not in _contexts:
            _contexts[ordinal] = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", info(ordinal).ordinal))
        return _contexts[ordinal]


def current_context() -> int:
    """The handle of the calling thread's current context, 0 where there is none."""
    return int(call("cuCtxGetCurrent"))


@contextmanager
def current(ordinal: int) -> Iterator[None]:
    """Make the GPU's primary context current for the block; the caller's own context comes back after it."""
    context = primary_context(ordinal)
    if current_context() == int(context):
        yield
        return
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


@contextmanager
def relaxed() -> Iterator[None]:
    """Let this thread load code while another one captures a CUDA graph: that capture would break otherwise."""
    mode = constant("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_RELAXED")
    before = call("cuThreadExchangeStreamCaptureMode", mode)
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


def capturing(stream: int, ordinal: int) -> bool:
    """Whether a CUDA graph is being captured on the GPU's stream, or a capture elsewhere forbids touching it."""
    driver = _driver()
    with current(ordinal):  # a default stream is that of the current context, and a new thread has none
        code, status = driver.cuStreamIsCapturing(driver.CUstream(stream))
    if int(code) == int(constant("CUresult", "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT")):
        return True
    if int(code) != 0:
        raise driver_error("cuStreamIsCapturing", code)
    return int(status) != 0
