"""Variants, built images and TuningRecords to the text of ``_table.py``, plain literals that the runtime imports."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import records
from .archs import HOST, image_file
from .errors import TableError, nearest
from .expand import expand, points
from .files import check_image
from .load import ROOT, TEMPLATES, TIERS, Arch, Spec
from .render import content_hash, plan
from .variant import Variant

SCHEMA = 1

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
    cuda: str = "",
) -> Built:
    """Make the table of a pack.

    Args:
        spec: what ``variants.toml`` declares.
        archs: the archs that were compiled.
        tier: the tier that was compiled.
        version: version of the library; by default that of ``pyproject.toml``.
        images: folder of ``<arch>/<image>.fatbin`` and ``host/kernels.so``; with None, none is listed or checked.
        tuning: folder of TuningRecords, if any.
        templates: folder of templates, for the content hashes.
        cuda: the version of CUDA that compiled the images, as "13.0".

    Raises:
        TableError: an image is missing or damaged, or a record names a variant that nothing declares.
    """
    built = {} if images is None else read_images(plan(spec, archs, tier), images)
    variants = expand(spec, None, max("wide", tier, key=TIERS.index)).variants
    every = [point.variant for point in points(spec)]
    declared = {variant.name for variant in every}
    fallback = {variant.name for variant in every if variant.family == spec.ops[variant.op].fallback}
    taken = records.read(tuning) if tuning else []
    exact: records.Exact = {}
    dropped = 0
    # A GPU's times rank what has an image for GPUs, a CPU's what the host device has.
    for host in (False, True):
        listed = {name for arch in built if (arch == HOST) is host for name in _listed(built[arch])}
        available = {variant.name for variant in variants} if images is None else listed
        measured = (record for record in taken if record.on_host is host)
        merged, left_out = records.merge(measured, available, declared, fallback)
        exact |= merged
        dropped += left_out
    rows = records.rows(exact)
    text = _text(spec, tier, version or _version(), cuda, variants, built, exact, rows, templates)
    count = sum(map(len, exact.values()))
    return Built(text, sum(map(len, built.values())), count, len(rows), dropped)


def read_images(images: Mapping[str, Mapping[str, list[Variant]]], folder: Path) -> Images:
    """Check that each planned image is there and whole; its size, SHA-256 and variants."""
    return {
        arch: {
            image: _read_image(folder / arch / image_file(arch, image), group) for image, group in sorted(units.items())
        }
        for arch, units in sorted(images.items())
    }


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


def _listed(images: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    return (name for image in images.values() for name in image["variants"])


def _read_image(path: Path, group: list[Variant]) -> dict[str, Any]:
    names = [variant.name for variant in group]
    try:
        data = path.read_bytes()
        check_image(path.name, data)
        if path.suffix == ".so" and (absent := [name for name in names if f"\0{name}\0".encode() not in data]):
            raise ValueError(f"has no kernel {', '.join(absent)}")
    except FileNotFoundError:
        there = [other.name for other in path.parent.glob("*")]
        near = nearest(path.name, there)
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
    cuda: str,
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
        f"SCHEMA = {SCHEMA}\nVERSION = {version!r}\nCUDA = {cuda!r}\nTIER = {tier!r}\n",
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
