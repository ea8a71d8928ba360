"""Blocklist: the variants that ``tilery verify`` found wrong on a GPU. Dispatch leaves them out.

A finding is a file ``blocked/<digest>`` in a level of the store, of the form of an entry: key, checksum and owner are
checked as everywhere in the store. Nothing evicts it, and ``tilery cache clear`` leaves it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from . import image, jit
from .device import DeviceInfo, version_text
from .generator.variant import Variant
from .pack import Pack
from .policy import Policy
from .stats import count
from .store import SCHEMA, Key, Store, header, user_root
from .store.entry import BadEntry, parse
from .store.level import Level
from .store.publish import publish

log = logging.getLogger(__name__)

FOLDER = "blocked"
NVML, NVML_VERSION_BYTES = "libnvidia-ml.so.1", 80
_DIGEST = re.compile(r"[0-9a-f]{64}")

Memo = dict[tuple[Store, DeviceInfo], Mapping[str, str]]


class Subject(NamedTuple):
    """What a finding is about, as text. It says nothing about code or GPUs for which any of it differs.

    Attributes:
        variant, hash: name, and hash of its source and headers.
        cc, sms, l2_bytes: of the GPU, whatever its name; of the CPU only that it is one.
        driver: version of the driver.
        source: where the code came from: ``image`` or ``jit``.
        toolchain: what compiled it.
    """

    variant: str
    hash: str
    cc: str
    sms: str
    l2_bytes: str
    driver: str
    source: str
    toolchain: str

    @property
    def key(self) -> Key:
        """The key of its entry."""
        return Key("record", tuple(self._asdict().items()))

    @property
    def silicon(self) -> tuple[str, ...]:
        """The GPU alone."""
        return self.cc, self.sms, self.l2_bytes

    @property
    def place(self) -> tuple[str, ...]:
        """Variant and GPU: what a later run examines again."""
        return self.variant, *self.silicon


class Finding(NamedTuple):
    """A wrong variant.

    Attributes:
        subject: which, and where.
        gpu: name of the GPU, for people.
        date: day on which it was found, as 2026-01-31.
        reason: what was wrong.
        path: its file.
        read_only: whether it is in a seed store.
    """

    subject: Subject
    gpu: str
    date: str
    reason: str
    path: Path
    read_only: bool

    def __str__(self) -> str:
        return f"blocked by `tilery verify` on {self.date}: {self.reason}"


def source_of(variant: Variant, gpu: DeviceInfo, pack: Pack) -> tuple[str, str]:
    """Where the variant's code for a GPU comes from, ``image`` or ``jit``, and the image's arch."""
    arch = next((arch for arch in image.order(pack.images, gpu.cc) if pack.image_of(arch, variant)), "")
    return ("image", arch) if arch else ("jit", "")


def driver(gpu: DeviceInfo) -> str:
    """The driver's version: the CUDA version that it supports and, where NVML tells, its own; "" for the CPU."""
    if gpu.driver_version is None:
        return ""
    return ", ".join(filter(None, (f"CUDA {version_text(gpu.driver_version)}", _own_version())))


@lru_cache(maxsize=1)
def _own_version() -> str:
    try:
        nvml = ctypes.CDLL(NVML)
        text = ctypes.create_string_buffer(NVML_VERSION_BYTES)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, NVML_VERSION_BYTES):
            return ""
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return ""
    return text.value.decode("ascii", "replace")


def toolchain(variant: Variant, source: str, gpu: DeviceInfo, pack: Pack) -> str:
    """What compiles, or compiled, the variant's code from this source; "" where there is no such code."""
    if source == "jit":
        return _cpp_compiler() if gpu.is_host else jit.toolchain().version
    found = pack.image_of(source_of(variant, gpu, pack)[1], variant)
    if found is None:
        return ""
    return f"image {found.sha256[:12]}" if gpu.is_host else found.cuda  # a host image does not say what compiled it


def _cpp_compiler() -> str:
    from .host import compiler

    return compiler.find().version


def subject(variant: Variant, source: str, gpu: DeviceInfo, pack: Pack) -> Subject:
    """What a finding of today would be about."""
    return Subject(
        variant.name,
        pack.hashes.get(variant.name, ""),
        *_silicon(gpu),
        driver(gpu),
        source,
        toolchain(variant, source, gpu, pack),
    )


def _silicon(gpu: DeviceInfo) -> tuple[str, str, str]:
    cc = f"{gpu.cc[0]}.{gpu.cc[1]}"
    return (cc, "", "") if gpu.is_host else (cc, str(gpu.sms), str(gpu.l2_bytes))


def outdated(found: Subject, gpu: DeviceInfo, pack: Pack) -> str:
    """Why a finding says nothing about the code that would run now, or "" where it does."""
    variant = pack.variants.get(found.variant)
    if variant is None:
        return "the pack has no such variant"
    if found.silicon != _silicon(gpu):
        return f"it was found on another GPU than {gpu}"
    if found.hash != pack.hashes.get(found.variant, ""):
        return "the variant's source has changed since"
    if found.driver != (now := driver(gpu)):
        return f"the driver was {found.driver or 'none'}, and is {now or 'none'}"
    # Last, as it may load NVRTC.
    if found.toolchain != (now := toolchain(variant, found.source, gpu, pack)):
        return f"what compiled it was {found.toolchain or 'unknown'}, and is {now or 'nothing'}"
    return ""


def findings(store: Store) -> Iterator[Finding]:
    """All findings in the store's levels, seeds first. What cannot be read is a counted fault and a warning."""
    for level in (*store.seeds, *([store.user] if store.user else [])):
        for path in _files(level):
            try:
                yield _read(level, path, read_only=level is not store.user)
            except FileNotFoundError:  # it has just gone
                continue
            except (BadEntry, OSError) as error:
                _fault(path, error)


def _files(level: Level) -> list[Path]:
    folder = level.base / FOLDER
    try:
        if folder.is_symlink():
            raise BadEntry("it is a symbolic link")
        return [folder / name for name in sorted(os.listdir(folder)) if _DIGEST.fullmatch(name)]
    except FileNotFoundError:
        return []
    except (BadEntry, OSError) as error:
        _fault(folder, error)
        return []


def _fault(path: Path, error: Exception) -> None:
    count("store", "faults")
    log.warning(
        "%s, which may block a wrong variant, is not used: %s. `tilery verify` finds wrong variants again.", path, error
    )


def _read(level: Level, path: Path, read_only: bool) -> Finding:
    key, payload = parse(level.read(path)[0])
    if key.digest != path.name:
        raise BadEntry("it is the entry of another key")
    try:
        data: dict[str, Any] = json.loads(payload)
        gpu, date, reason = (str(data[name]) for name in ("gpu", "date", "reason"))
        return Finding(Subject(**dict(key.fields)), gpu, date, reason, path, read_only)
    except (ValueError, KeyError, TypeError) as error:
        raise BadEntry(f"it is no finding of this version ({error!r})") from None


def put(store: Store, found: Subject, gpu: str, date: str, reason: str) -> str:
    """Keep a finding in the user's level; why it could not be kept, or ""."""
    if store.user is None:
        return store.why_off or "the policy keeps no store"
    payload = json.dumps({"gpu": gpu, "date": date, "reason": reason}).encode()
    try:
        publish(store.user.base / FOLDER / found.key.digest, header(found.key, payload) + payload)
    except OSError as error:
        return str(error)
    return ""


def remove(found: Finding) -> str:
    """Delete a finding; why it is still there, or ""."""
    if found.read_only:
        return "it is in a read-only store"
    try:
        found.path.unlink(missing_ok=True)
    except OSError as error:
        return str(error)
    return ""


def blocked(store: Store, gpu: DeviceInfo, pack: Pack) -> Mapping[str, str]:
    """The reasons by name of the variants that must not serve on a GPU of this machine, whatever their source.

    An image that was wrong is reason enough not to compile the same source at run time.
    """
    return {one.subject.variant: str(one) for one in findings(store) if not outdated(one.subject, gpu, pack)}


def any_for(settings: Policy) -> bool:
    """Whether a policy's stores may have findings. Unlike opening them, looking makes no folder."""
    own = user_root() if settings.store == "user" else settings.store
    roots = (*settings.seeds, *([Path(own)] if own is not None else []))
    return any(os.path.lexists(root / f"v{SCHEMA}" / FOLDER) for root in roots)


def known(memo: Memo, store: Store, gpu: DeviceInfo, pack: Pack) -> Mapping[str, str]:
    """What is `blocked`, read at the first call."""
    key = (store, gpu)
    if key not in memo:
        memo[key] = blocked(*key, pack)
    return memo[key]
