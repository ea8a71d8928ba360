"""Variants, built images and TuningRecords to the text of ``_table.py``, plain literals that the runtime imports."""

from __future__ import annotations

import hashlib
import struct
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import records
from .errors import TableError, nearest
from .expand import expand, points
from .load import ROOT, TEMPLATES, TIERS, Arch, Spec
from .render import content_hash, plan
from .variant import Variant

SCHEMA = 1
MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes that follow it

Images = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Built:
    """The text of ``_table.py``, and what went into it."""

    text: str
    images: int
    records: int
    rows: int
    dropped: int


def build(
    spec: Spec,
    archs: Iterable[str],
    tier: str,
    version: str | None = None,
    images: Path | None = None,
    tuning: Path | None = None,
    templates: Path = TEMPLATES,
) -> Built:
    """Make the table of a pack.

    Args:
        spec: what ``variants.toml`` declares.
        archs: the archs that were compiled.
        tier: the tier that was compiled.
        version: version of the library; by default that of ``pyproject.toml``.
        images: folder of ``<arch>/<image>.fatbin``; with None, no image is listed and none is checked.
        tuning: folder of TuningRecords, if any.
        templates: folder of templates, for the content hashes.

    Raises:
        TableError: an image is missing or damaged, or a record names a variant that nothing declares.
    """
    built = {} if images is None else read_images(plan(spec, archs, tier), images)
    variants = expand(spec, None, max("wide", tier, key=TIERS.index)).variants
    listed = {name for group in built.values() for image in group.values() for name in image["variants"]}
    available = {variant.name for variant in variants} if images is None else listed
    declared = {point.variant.name for point in points(spec)}
    exact, dropped = records.merge(records.read(tuning) if tuning else [], available, declared)
    rows = records.rows(exact)
    text = _text(spec, tier, version or _version(), variants, built, exact, rows, templates)
    count = sum(map(len, exact.values()))
    return Built(text, sum(map(len, built.values())), count, len(rows), dropped)


def read_images(images: Mapping[str, Mapping[str, list[Variant]]], folder: Path) -> Images:
    """Check that each planned image is there and whole; its size, SHA-256 and variants."""
    return {
        arch: {image: _read_image(folder / arch / f"{image}.fatbin", group) for image, group in sorted(units.items())}
        for arch, units in sorted(images.items())
    }


def check_fatbin(data: bytes) -> None:
    """Raise ValueError unless the bytes are one whole fatbin, or several one after another."""
    offset = 0
    while offset < len(data) or not data:
        if len(data) - offset < _HEADER.size:
            raise ValueError(f"is truncated: {len(data)} bytes end within a header")
        magic, _, header, payload = _HEADER.unpack_from(data, offset)
        if magic != MAGIC or header < _HEADER.size:
            raise ValueError(f"is not a fatbin: 0x{magic:08X} at byte {offset}, not 0x{MAGIC:08X}")
        offset += header + payload
    if offset != len(data):
        raise ValueError(f"is truncated: {len(data)} bytes of {offset}")


def describe(variant: Variant) -> dict[str, Any]:
    """A Variant as the manifest lists it, in plain values."""
    return {
        "family": variant.family,
        "op": variant.op,
        "dtype": variant.dtype,
        "layout": variant.layout,
        "align": variant.align,
        "config": variant.config,
        "tier": variant.tier,
        "threads": variant.threads,
        "shared_bytes": variant.shared_bytes,
        "features": variant.features,
    }


def _read_image(path: Path, group: list[Variant]) -> dict[str, Any]:
    names = [variant.name for variant in group]
    try:
        data = path.read_bytes()
        check_fatbin(data)
    except FileNotFoundError:
        there = [other.stem for other in path.parent.glob("*.fatbin")]
        near = nearest(path.stem, there)
        raise TableError(f"{path}: no such image, to hold {', '.join(names)}; {near}; build it first") from None
    except ValueError as error:
        raise TableError(f"{path}: {error}; delete it and build again") from None
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "variants": names}


def _version() -> str:
    path = ROOT / "pyproject.toml"
    try:
        version = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"]
    except (OSError, tomllib.TOMLDecodeError, KeyError):
        raise TableError(f"{path} gives no project.version; pass --version") from None
    return str(version)


def _text(
    spec: Spec,
    tier: str,
    version: str,
    variants: Iterable[Variant],
    images: Images,
    exact: records.Exact,
    rows: Iterable[records.Row],
    templates: Path,
) -> str:
    archs = {arch.name: _arch(arch) for arch in spec.archs.values()}
    by_name = sorted(variants, key=lambda variant: variant.name)
    described = {v.name: describe(v) | {"hash": content_hash(v, templates)} for v in by_name}
    ranked = {gpu: {tuple(key): records.ranked(us) for key, us in sorted(by.items())} for gpu, by in exact.items()}
    parts = [
        '"""Generated by the build from variants.toml, the images and the tuning records."""\n\n',
        f"SCHEMA = {SCHEMA}\nVERSION = {version!r}\nTIER = {tier!r}\n",
        _mapping("ARCHS", archs),
        _mapping("COST", {name: family.cost for name, family in spec.families.items()}),
        _mapping("FALLBACK", {name: op.fallback for name, op in spec.ops.items()}),
        _mapping("VARIANTS", described),
        _nested("IMAGES", images),
        "".join(["TABLE = [\n", *(f"    {tuple(row)!r},\n" for row in rows), "]\n"]),
        _nested("RECORDS", ranked),
    ]
    return "".join(parts)


def _arch(arch: Arch) -> dict[str, Any]:
    return {key: getattr(arch, key) for key in ("status", "lineage", "features", "shared_bytes", "gpu")}


def _mapping(name: str, items: Mapping[str, Any], indent: str = "") -> str:
    head = f"{name} = {{" if not indent else f"{indent}{name!r}: {{"
    lines = [f"{indent}    {key!r}: {value!r},\n" for key, value in items.items()]
    return "".join([head, "\n", *lines, indent, "}" if not indent else "},", "\n"])


def _nested(name: str, items: Mapping[str, Mapping[Any, Any]]) -> str:
    inner = [_mapping(key, value, "    ") for key, value in sorted(items.items())]
    return "".join([f"{name} = {{\n", *inner, "}\n"])
