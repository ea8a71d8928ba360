"""Whether the file of an image is whole: a fatbin for GPUs, a shared library for the host device."""

from __future__ import annotations

import struct

MAGIC = 0xBA55ED50
_FATBIN = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes that follow it
# First bytes, type and machine; place, size and number of the section headers.
_ELF = struct.Struct("<7s9xHH20xQ10xHH2x")
_SHARED_X86_64 = (3, 62)


def check_image(name: str, data: bytes) -> None:
    """Raise ValueError unless the bytes are a whole image of the kind that the file's name says."""
    (check_library if name.endswith(".so") else check_fatbin)(data)


def check_fatbin(data: bytes) -> None:
    """Raise ValueError unless the bytes are one whole fatbin, or several one after another."""
    offset = 0
    while offset < len(data) or not data:
        if len(data) - offset < _FATBIN.size:
            raise ValueError(f"is truncated: {len(data)} bytes end within a header")
        magic, _, header, payload = _FATBIN.unpack_from(data, offset)
        if magic != MAGIC or header < _FATBIN.size:
            raise ValueError(f"is not a fatbin: 0x{magic:08X} at byte {offset}, not 0x{MAGIC:08X}")
        offset += header + payload
    if offset != len(data):
        raise ValueError(f"is truncated: {len(data)} bytes of {offset}")


def check_library(data: bytes) -> None:
    """Raise ValueError unless the bytes are one whole shared library for x86-64; its section headers are its end."""
    if len(data) < _ELF.size:
        raise ValueError(f"is truncated: {len(data)} bytes end within a header")
    magic, kind, machine, offset, size, count = _ELF.unpack_from(data)
    if magic != b"\x7fELF\x02\x01\x01":
        raise ValueError(f"is not a 64-bit ELF file: it begins with {magic.hex()}")
    if (kind, machine) != _SHARED_X86_64:
        raise ValueError(f"is no shared library for x86-64: type {kind}, machine {machine}, not 3 and 62")
    if offset + size * count > len(data):
        raise ValueError(f"is truncated: {len(data)} bytes of {offset + size * count}")
