"""Variants, built images and TuningRecords to the text of ``_table.py``, plain literals that the runtime imports."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import fit, ranking, records
from .archs import HOST, image_file
from .errors import TableError, nearest
from .expand import expand, points
from .files import check_image
from .fit import Fits
from .load import ROOT, TEMPLATES, TIERS, Arch, Spec
from .records import Gpu, same_silicon
from .render import content_hash, plan
from .variant import Variant
from .work import Device

SCHEMA = 2

Images = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Built:
    """The text of ``_table.py``, and what went into it."""

    text: str
    images: int
    records: int
    rows: int
    fitted: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning adds to a table, by GPU: exact rankings, coefficients, regrets; and the rows of buckets."""

    exact: Mapping[str, Mapping[tuple[Any, ...], tuple[tuple[str, float], ...]]]
    rows: list[ranking.Row]
    coefficients: Mapping[str, Mapping[str, tuple[float, ...]]]
    regrets: Mapping[str, Mapping[str, ranking.Regret]]


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
        TableError: an image is missing or damaged, or a record cannot be read.
    """
    built = {} if images is None else read_images(plan(spec, archs, tier), images)
    variants = expand(spec, None, max("wide", tier, key=TIERS.index)).variants
    known = {variant.name: variant for variant in (point.variant for point in points(spec))}
    hashes = {name: content_hash(variant, templates) for name, variant in known.items()}
    fallback = {variant.name for variant in known.values() if variant.family == spec.ops[variant.op].fallback}
    here = {variant.name for variant in variants}

    def available(gpu: Gpu) -> set[str]:
        """A GPU's times rank what has an image for GPUs, a CPU's what the host device has."""
        return (
            {name for arch in built if (arch == HOST) is gpu.is_host for name in _listed(built[arch])}
            if images is not None
            else here
        )

    taken = records.read(tuning) if tuning else []
    merged = ranking.merge(taken, available, hashes, fallback)
    tuned = _tune(spec, known, here, merged, fit.read(tuning) if tuning else {})
    text = _text(spec, tier, version or _version(), cuda, variants, hashes, built, tuned)
    return Built(
        text,
        images=sum(map(len, built.values())),
        records=sum(map(len, tuned.exact.values())),
        rows=len(tuned.rows),
        fitted=sum(map(len, tuned.coefficients.values())),
        dropped=merged.dropped,
    )


def _tune(
    spec: Spec, known: Mapping[str, Variant], here: set[str], merged: ranking.Merged, fits: Mapping[Gpu, Fits]
) -> Tuned:
    exact, rows, regrets = {}, [], {}
    for gpu, times in merged.times.items():
        model = chooser(
            spec, known, gpu, next((found for one, found in fits.items() if same_silicon(one, gpu)), Fits())
        )
        exact[str(gpu)] = {tuple(key): names for key, names in ranking.exact(times, model).items()}
        served, transfer = ranking.buckets(gpu, times, model)
        rows += served
        regrets[str(gpu)] = {"bucket": transfer} if transfer else {}
    for gpu, found in fits.items():
        regrets.setdefault(str(gpu), {}).update({"model": found.regret} if found.regret else {})
    coefficients = {
        str(gpu): {name: tuple(one.coefficients) for name, one in found.variants.items() if name in here}
        for gpu, found in fits.items()
    }
    return Tuned(exact, rows, coefficients, regrets)


def chooser(spec: Spec, variants: Mapping[str, Variant], gpu: Gpu, fits: Fits) -> ranking.Choice:
    """The cost model's choice on a GPU, as the runtime makes it without a record."""
    device = device_of(spec, gpu)
    costs = {name: family.cost for name, family in spec.families.items()}
    return lambda key, names: fit.cheapest(key, names, variants, costs, device, fits)


def device_of(spec: Spec, gpu: Gpu) -> Device:
    """The GPU of `variants.toml` that is of the silicon of a record's.

    Raises:
        TableError: there is none, so that its clock and shared memory are not known.
    """
    for arch in spec.archs.values():
        values = SimpleNamespace(**arch.gpu)
        here = Gpu(values.name, values.cc, values.sms, values.l2_bytes >> 20, values.bandwidth_gbs)
        if same_silicon(here, gpu) or (gpu.is_host and here.is_host):
            return values
    known = "; ".join(str(arch.gpu["name"]) for arch in spec.archs.values())
    raise TableError(
        f"records of {gpu}: no arch of {spec.file} has a gpu of this silicon (there are {known}): "
        "give it an [arch.*] entry, or correct that entry's gpu"
    )


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
        "accumulator": variant.accumulator,
        "reduction": variant.reduction,
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
    hashes: Mapping[str, str],
    images: Images,
    tuned: Tuned,
) -> str:
    archs = {arch.name: _arch(arch) for arch in spec.archs.values()}
    by_name = sorted(variants, key=lambda variant: variant.name)
    described = {v.name: describe(v) | {"hash": hashes[v.name]} for v in by_name}
    parts = [
        '"""Generated by the build from variants.toml, the images and the tuning records."""\n\n',
        f"SCHEMA = {SCHEMA}\nVERSION = {version!r}\nCUDA = {cuda!r}\nTIER = {tier!r}\n",
        _mapping("ARCHS", archs),
        _mapping("COST", {name: family.cost for name, family in spec.families.items()}),
        _mapping("FALLBACK", {name: op.fallback for name, op in spec.ops.items()}),
        _mapping("REDUCTIONS", {name: tuple(op.reductions) for name, op in spec.ops.items()}),
        _mapping("VARIANTS", described),
        _nested("IMAGES", images),
        "".join(["TABLE = [\n", *(f"    {tuple(row)!r},\n" for row in tuned.rows), "]\n"]),
        _nested("RECORDS", tuned.exact),
        _nested("COEFFICIENTS", tuned.coefficients),
        _nested("REGRET", {gpu: {t: r._asdict() for t, r in by.items()} for gpu, by in tuned.regrets.items()}),
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
