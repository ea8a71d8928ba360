"""Which image serves which GPU; checked loading of images; kernels, memoised per GPU."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import device
from .errors import DriverError, PackError
from .generator import archs
from .generator.files import check_image
from .generator.variant import Variant
from .pack import ADVICE, Image

DEFAULT_SHARED_BYTES = 48 * 1024  # beyond this a kernel has to opt in

# The image is at fault, or the driver too old for it: another tier may still serve. Anything else (no memory, a context
# that an earlier kernel broke) is the caller's news.
IMAGE_FAULTS = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "INVALID_IMAGE",
        "INVALID_PTX",
        "INVALID_SOURCE",
        "JIT_COMPILATION_DISABLED",
        "JIT_COMPILER_NOT_FOUND",
        "NO_BINARY_FOR_GPU",
        "NOT_FOUND",
        "UNSUPPORTED_DEVSIDE_SYNC",
        "UNSUPPORTED_PTX_VERSION",
    )
)


def parse_arch(arch: str) -> archs.Target:
    """The kind, capability and suffix of an arch's name.

    >>> tuple(parse_arch("sm_103a"))
    ('sm', (10, 3), 'a')
    """
    try:
        return archs.parse(arch)
    except ValueError as error:
        raise PackError(f"not an arch: {error}") from None


def serves(arch: str, cc: tuple[int, int]) -> bool:
    """Whether code for ``arch`` runs on a GPU of capability ``cc``, or, for ``host``, on the CPU.

    ``a`` targets are exact, ``f`` targets and plain SASS run on the same major version from their minor version on,
    plain PTX on every later capability.

    >>> serves("sm_80", (8, 9)), serves("sm_90a", (10, 0)), serves("compute_80", (12, 0)), serves("host", (9, 0))
    (True, False, True, False)
    """
    parse_arch(arch)
    return bool(archs.serves(arch, cc))


def order(names: Iterable[str], cc: tuple[int, int]) -> tuple[str, ...]:
    """Those of the archs that serve ``cc``, best first: SASS before PTX, ``a``, ``f``, plain, then the newest.

    >>> order(["compute_80", "sm_80", "sm_86", "sm_90a"], (8, 9))
    ('sm_86', 'sm_80', 'compute_80')
    """
    found = {name for name in names if serves(name, cc)}
    return tuple(sorted(found, key=archs.rank, reverse=True))


def is_sass(arch: str) -> bool:
    """Whether the arch is machine code rather than PTX."""
    return not arch.startswith("compute_")


def verify(data: bytes, path: Path) -> None:
    """Check that ``data`` is a whole image of the kind that the path's suffix says: fatbin or shared library.

    Raises:
        PackError: it is truncated or something else; the message says where.
    """
    try:
        check_image(path.name, data)
    except ValueError as error:
        raise PackError(f"{path}: {error}. {ADVICE}") from None


def _broken(path: Path | str, expected: str, found: str) -> PackError:
    return PackError(f"{path}: expected {expected}, found {found}. {ADVICE}")


def read(image: Image) -> bytes:
    """The bytes of an image, checked against the manifest.

    Raises:
        PackError: the file is missing, truncated, foreign or not the one that the manifest was made for.
    """
    try:
        data = image.path.read_bytes()
    except OSError as error:
        raise _broken(image.path, f"an image of {image.bytes} bytes", error.strerror or str(error)) from error
    verify(data, image.path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != image.sha256:
        raise _broken(image.path, f"SHA-256 {image.sha256} ({image.bytes} bytes)", f"{digest} ({len(data)} bytes)")
    return data


_libraries: dict[str, Any] = {}
_kernels: dict[tuple[str, str, int], Any] = {}
_lock = threading.RLock()


def _after_fork() -> None:
    """In the child nothing is loaded, and the lock may have been held by a thread that is gone."""
    global _lock
    _lock = threading.RLock()
    _libraries.clear()
    _kernels.clear()


os.register_at_fork(after_in_child=_after_fork)


def is_loaded(key: str, variant: Variant, ordinal: int) -> bool:
    """Whether the kernel is ready on that GPU, so that no load is needed."""
    return (key, variant.name, ordinal) in _kernels


def load(image: Image, variant: Variant, ordinal: int) -> Any:
    """The kernel of a variant on a GPU, from an image of the pack.

    Raises:
        PackError: the image is broken.
        DriverError: the driver refuses it; the message has the driver's version.
    """
    if (kernel := _kernels.get((image.sha256, variant.name, ordinal))) is not None:
        return kernel
    with _lock:
        data = b"" if image.sha256 in _libraries else read(image)
        return load_code(image.sha256, data, variant, ordinal, str(image.path), image.cuda)


def load_code(key: str, code: bytes, variant: Variant, ordinal: int, source: str, cuda: str = "") -> Any:
    """The kernel of a variant on a GPU, from cubin, fatbin or PTX.

    Args:
        key: what identifies the code in this process, e.g. its digest.
        code: the code; not looked at where ``key`` is loaded already.
        variant: also names the kernel.
        ordinal: the GPU.
        source: where the code comes from, for messages.
        cuda: the version of CUDA that made it, or "" where that is unknown.

    Raises:
        DriverError: the driver refuses it; the message has the driver's version.
    """
    with _lock, device.current(ordinal):
        if (kernel := _kernels.get((key, variant.name, ordinal))) is not None:
            return kernel
        try:
            if key not in _libraries:
                _libraries[key] = device.call("cuLibraryLoadData", code, [], [], 0, [], [], 0)
            kernel = device.call("cuLibraryGetKernel", _libraries[key], variant.name.encode())
            _prepare(kernel, variant, ordinal)
        except DriverError as error:
            raise _refused(error, variant, ordinal, source, cuda) from error
        _kernels[key, variant.name, ordinal] = kernel
        return kernel


def _prepare(kernel: Any, variant: Variant, ordinal: int) -> None:
    if variant.shared_bytes > DEFAULT_SHARED_BYTES:
        attribute = device.constant("CUfunction_attribute", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")
        gpu = device.call("cuDeviceGet", ordinal)
        device.call("cuKernelSetAttribute", attribute, variant.shared_bytes, kernel, gpu)
    # Loads the code into the context now: a lazy load at the first launch would break a graph capture.
    device.call("cuKernelGetFunction", kernel)


def resident(kernel: Any, variant: Variant) -> int:
    """Blocks of a loaded variant that an SM holds at once. The context that it was loaded for must be current."""
    function = device.call("cuKernelGetFunction", kernel)
    blocks = device.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, variant.threads, variant.shared_bytes)
    return int(blocks)


def _refused(error: DriverError, variant: Variant, ordinal: int, source: str, cuda: str) -> DriverError:
    gpu = device.info(ordinal)
    have = device.version_text(gpu.driver_version or 0)
    made = f", made by CUDA {cuda}," if cuda else ""
    advice = f"{variant.name} from {source}{made} on GPU {ordinal}, {gpu}; the driver supports CUDA {have}."
    newer = bool(cuda) and device.version_number(cuda) > (gpu.driver_version or 0)
    if newer or error.name == "CUDA_ERROR_UNSUPPORTED_PTX_VERSION":
        advice += " The code was made by a newer CUDA: update the driver."
    return DriverError(error.call, error.name, error.text, advice)
