"""Which image serves which GPU; checked loading of images; kernels, memoised per GPU."""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import device
from .errors import DriverError, PackError
from .generator.variant import Variant
from .pack import ADVICE, Image

MAGIC = 0xBA55ED50
HEADER = struct.Struct("<IHHQ")  # magic, version, header size, payload size
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

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def parse_arch(arch: str) -> tuple[str, tuple[int, int], str]:
    """The kind, capability and suffix of an arch's name.

    >>> parse_arch("sm_103a")
    ('sm', (10, 3), 'a')
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise PackError(f"{arch!r} is not an arch: expected sm_NN or compute_NN, with or without a or f")
    kind, major, minor, suffix = match.groups()
    return kind, (int(major), int(minor)), suffix


def serves(arch: str, cc: tuple[int, int]) -> bool:
    """Whether code for ``arch`` runs on a GPU of capability ``cc``.

    ``a`` targets are exact, ``f`` targets and plain SASS run on the same major version from their minor version on,
    plain PTX on every later capability.

    >>> serves("sm_80", (8, 9)), serves("sm_90a", (10, 0)), serves("compute_80", (12, 0))
    (True, False, True)
    """
    kind, target, suffix = parse_arch(arch)
    if suffix == "a":
        return cc == target
    if suffix == "f" or kind == "sm":
        return cc[0] == target[0] and cc[1] >= target[1]
    return cc >= target


def order(archs: Iterable[str], cc: tuple[int, int]) -> tuple[str, ...]:
    """Those of ``archs`` that serve ``cc``, best first: SASS before PTX, ``a``, ``f``, plain, then the newest.

    >>> order(["compute_80", "sm_80", "sm_86", "sm_90a"], (8, 9))
    ('sm_86', 'sm_80', 'compute_80')
    """

    def rank(arch: str) -> tuple[bool, int, int, int]:
        kind, (major, minor), suffix = parse_arch(arch)
        return kind != "sm", ("a", "f", "").index(suffix), -major, -minor

    return tuple(sorted((arch for arch in set(archs) if serves(arch, cc)), key=rank))


def is_sass(arch: str) -> bool:
    """Whether the arch is machine code rather than PTX."""
    return arch.startswith("sm_")


def verify_fatbin(data: bytes, path: Path | str = "image") -> None:
    """Check that ``data`` is one whole fatbin, or several one after the other.

    Raises:
        PackError: it is truncated or something else; the message says where.
    """
    at = 0
    while at < len(data) or at == 0:
        if len(data) - at < HEADER.size:
            raise _broken(path, f"a fatbin header of {HEADER.size} bytes at {at}", f"{len(data) - at} bytes, truncated")
        magic, _, header, payload = HEADER.unpack_from(data, at)
        if magic != MAGIC or header < HEADER.size:
            raise _broken(path, f"a fatbin (magic {MAGIC:#010x}) at byte {at}", f"{magic:#010x}, a foreign file")
        if at + header + payload > len(data):
            raise _broken(path, f"{at + header + payload} bytes", f"{len(data)}, truncated")
        at += header + payload


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
    verify_fatbin(data, image.path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != image.sha256:
        raise _broken(image.path, f"SHA-256 {image.sha256} ({image.bytes} bytes)", f"{digest} ({len(data)} bytes)")
    return data


_libraries: dict[str, Any] = {}
_kernels: dict[tuple[str, str, int], Any] = {}
_lock = threading.RLock()


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
        return load_code(image.sha256, data, variant, ordinal, str(image.path))


def load_code(key: str, code: bytes, variant: Variant, ordinal: int, source: str) -> Any:
    """The kernel of a variant on a GPU, from cubin, fatbin or PTX.

    Args:
        key: what identifies the code in this process, e.g. its digest.
        code: the code; not looked at where ``key`` is loaded already.
        variant: also names the kernel.
        ordinal: the GPU.
        source: where the code comes from, for messages.

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
            raise _refused(error, variant, ordinal, source) from error
        _kernels[key, variant.name, ordinal] = kernel
        return kernel


def _prepare(kernel: Any, variant: Variant, ordinal: int) -> None:
    if variant.shared_bytes > DEFAULT_SHARED_BYTES:
        attribute = device.constant("CUfunction_attribute", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES")
        gpu = device.call("cuDeviceGet", ordinal)
        device.call("cuKernelSetAttribute", attribute, variant.shared_bytes, kernel, gpu)
    # Loads the code into the context now: a lazy load at the first launch would break a graph capture.
    device.call("cuKernelGetFunction", kernel)


def _refused(error: DriverError, variant: Variant, ordinal: int, source: str) -> DriverError:
    gpu = device.info(ordinal)
    have = device.version_text(gpu.driver_version or 0)
    advice = f"{variant.name} from {source} on GPU {ordinal}, {gpu}; the driver supports CUDA {have}."
    if error.name == "CUDA_ERROR_UNSUPPORTED_PTX_VERSION":
        advice += " The code was made by a newer CUDA: update the driver."
    return DriverError(error.call, error.name, error.text, advice)
