"""``python -m generator``: check, list, why, render, table, fit and select. Needs neither GPU nor driver."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import archs as arch_names
from . import fit as fits
from . import ranking, records
from . import select as selecting
from . import table as tables
from .errors import GeneratorError, UnknownName
from .expand import expand, find, points, reject
from .load import ROOT, TEMPLATES, TIERS, VARIANTS_TOML, Spec, load
from .render import content_hash, headers, render, write
from .variant import Variant


@dataclass(frozen=True, slots=True)
class Context:
    """What every command gets: arguments, the declared space, and the archs asked for."""

    args: argparse.Namespace
    spec: Spec
    archs: tuple[str, ...]

    def print(self, data: Any, lines: Sequence[str]) -> None:
        print(json.dumps(data, indent=2) if self.args.json else "\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when all is well, 1 for a fault in the files, 2 for a wrong command line."""
    args = _parser().parse_args(argv)
    try:
        spec = load(args.variants)
        return int(args.run(Context(args, spec, arch_names.resolve(args.archs, spec))))
    except GeneratorError as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UnknownName) else 1
    except OSError as error:
        print(f"{args.command}: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        return 1


def check(at: Context) -> int:
    """Expand and render every variant of every tier, and find the rows that no arch keeps."""
    spec, templates = at.spec, at.args.templates
    kept = {variant.name for arch in spec.archs for variant in expand(spec, arch, TIERS[-1]).variants}
    for point in points(spec):
        render(point.variant, templates)
    for family in spec.families:
        headers(family, templates)
    alive = {point.where for point in points(spec) if point.variant.name in kept}
    dead = {point.where: point.variant for point in points(spec) if point.where not in alive}
    for where, variant in dead.items():
        reasons = [f"  {arch}: {reject(spec, variant, arch)}" for arch in spec.archs]
        print("\n".join([f"{spec.file}: {where}: no arch keeps any of it; {variant.name}:", *reasons]), file=sys.stderr)
    counts = {"archs": len(spec.archs), "families": len(spec.families), "variants": len(kept), "dead_rows": list(dead)}
    text = f"{counts['variants']} variants of {counts['families']} families for {counts['archs']} archs"
    at.print(counts, [f"{spec.file}: {text}: " + (f"{len(dead)} rows without a variant" if dead else "all render")])
    return 1 if dead else 0


def list_variants(at: Context) -> int:
    """Print every Variant of a tier: launch numbers, and the archs that keep it."""
    rows = []
    for point in points(at.spec, at.args.tier):
        keep = [arch for arch in at.archs if reject(at.spec, point.variant, arch) is None]
        rows.append((point.variant, keep))
    width = max((len(variant.name) for variant, _ in rows), default=4)
    head = f"{'name':{width}}  {'tier':10}  threads  {'shared':>7}  {'  '.join(at.archs)}"
    lines = [head] + [
        f"{v.name:{width}}  {v.tier:10}  {v.threads:7}  {v.shared_bytes:7}  "
        + "  ".join(f"{'yes' if arch in keep else '-':{len(arch)}}" for arch in at.archs).rstrip()
        for v, keep in rows
    ]
    at.print([_described(variant) | {"archs": keep} for variant, keep in rows], lines)
    return 0


def why(at: Context) -> int:
    """Say where a point of the space is declared, and for each arch why it is kept or pruned."""
    point = find(at.spec, at.args.name)
    variant = point.variant
    reasons = {arch: reject(at.spec, variant, arch) for arch in at.archs}
    width = max(map(len, reasons))
    lines = [
        variant.name,
        f"  declared   {at.spec.file}: {point.where}, tier {variant.tier}",
        f"  launch     {variant.threads} threads, {variant.shared_bytes} bytes of shared memory",
        f"  image      {variant.image}",
        f"  needs      {', '.join(variant.features) or 'no feature'}",
    ]
    lines += [f"  {arch:{width}} {'kept' if text is None else f'pruned: {text}'}" for arch, text in reasons.items()]
    at.print(_described(variant) | {"where": point.where, "archs": reasons}, lines)
    return 0


def render_files(at: Context) -> int:
    """Print the source of one variant, or write all sources, units and plan.cmake."""
    args = at.args
    if args.name:
        sys.stdout.write(render(find(at.spec, args.name).variant, args.templates))
        return 0
    archs = arch_names.with_host(at.archs, at.spec)
    done = write(at.spec, archs, args.tier, args.out, args.templates)
    data = {
        "variants": done.variants,
        "units": done.units,
        "changed": [path.as_posix() for path in done.changed],
        "removed": [path.as_posix() for path in done.removed],
    }
    text = f"{done.variants} variants in {done.units} units for {', '.join(archs)}"
    at.print(data, [f"{args.out}: {text}: {len(done.changed)} files written, {len(done.removed)} removed"])
    return 0


def table(at: Context) -> int:
    """Write _table.py from the built images and the tuning records."""
    args = at.args
    archs = arch_names.with_host(at.archs, at.spec)
    built = tables.build(at.spec, archs, args.tier, args.version, args.images, args.tuning, args.templates, args.cuda)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(built.text.encode())
    data = {"images": built.images, "records": built.records, "rows": built.rows, "fitted": built.fitted}
    text = (
        f"{built.images} images, {built.records} records, {built.rows} rows of buckets, {built.fitted} fitted variants"
    )
    lines = [f"{args.out}: {text}"]
    lines += [f"dropped {count} measured times {reason}" for reason, count in sorted(built.dropped.items())]
    at.print(data | {"dropped": dict(built.dropped)}, lines)
    return 0


def fit(at: Context) -> int:
    """Fit the cost model to the tuning records, and write <device>.cost.json beside them."""
    known, merged = _measured(at)
    costs = {name: family.cost for name, family in at.spec.families.items()}
    data: dict[str, Any] = {"dropped": dict(merged.dropped)}
    lines = [f"left out {count} measured times {reason}" for reason, count in sorted(merged.dropped.items())]
    for gpu, problems in merged.times.items():
        device, resident = tables.device_of(at.spec, gpu), merged.resident[gpu]
        chosen = fits.held_out(problems, known, resident, costs, device)
        regret = ranking.regret([problems[key][name] / min(problems[key].values()) for key, name in chosen.items()])
        found = fits.Fits(fits.fit(problems, known, resident, costs, device), regret)
        path = at.args.tuning / f"{re.sub('[^a-z0-9]+', '_', gpu.name.lower())}.cost.json"
        path.write_text(fits.dump(gpu, found), encoding="utf-8")
        data[str(gpu)] = {"file": str(path), "variants": len(found.variants), "regret": regret._asdict()}
        lines.append(f"{path}: {len(found.variants)} variants; regret with an (n, k) held out: {regret}")
    at.print(data, lines)
    return 0


def select(at: Context) -> int:
    """Find the fewest variants that keep the regret of the measured problems under a bound; prints what drops cost."""
    known, merged = _measured(at)
    args = at.args
    fallback = {variant.name for variant in known.values() if variant.family == at.spec.ops[variant.op].fallback}
    variants = {variant.name: variant for arch in at.archs for variant in expand(at.spec, arch, args.tier).variants}
    sizes = selecting.sizes(variants.values(), args.images)
    problems = [us for by_key in merged.times.values() for us in by_key.values()]
    found = selecting.select(variants, problems, sizes, args.regret, args.max_mib * 2**20, fallback)
    lines = [f"drop {one.name}: {one.bytes / 1024:.0f} KiB less, then {one.regret}" for one in found.drops]
    lines += [f"keep {name}{' (not measured)' if name in found.unmeasured else ''}" for name in found.kept]
    size = f"{found.bytes / 2**20:.1f} MiB" if any(sizes.values()) else "sizes are not known: give --images"
    lines += [f"{len(found.kept)} kept, {len(found.drops)} dropped; {found.regret}; {size}"]
    data = asdict(found) | {"regret": found.regret and found.regret._asdict()}
    data["drops"] = [asdict(one) | {"regret": one.regret._asdict()} for one in found.drops]
    at.print(data, lines)
    return 0


def _measured(at: Context) -> tuple[dict[str, Variant], ranking.Merged]:
    """All declared variants, and what records say of them as they are now."""
    known = {point.variant.name: point.variant for point in points(at.spec)}
    hashes = {name: content_hash(variant, at.args.templates) for name, variant in known.items()}
    return known, ranking.merge(records.read(at.args.tuning), lambda gpu: known.keys(), hashes)


def _described(variant: Variant) -> dict[str, Any]:
    return {"name": variant.name, **tables.describe(variant), "image": variant.image}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m generator", description=__doc__, allow_abbrev=False)
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shared.add_argument("--variants", type=Path, default=VARIANTS_TOML, help="the variants.toml to read")
    shared.add_argument("--templates", type=Path, default=TEMPLATES, help="the folder of templates")
    shared.add_argument("--json", action="store_true", help="print JSON")
    shared.add_argument("--archs", "--arch", default="all", help="comma-separated archs, or all, native, portable")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Any, tier: str | None = None) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__, parents=[shared])
        command.set_defaults(run=run)
        if tier:
            command.add_argument("--tier", choices=TIERS, default=tier, help=f"with the lower tiers; default {tier}")
        return command

    add("check", check)
    add("list", list_variants, TIERS[-1])
    add("why", why).add_argument("name", help="a variant's name")
    rendering = add("render", render_files, TIERS[0])
    what = rendering.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", help="print the source of this variant")
    what.add_argument("--out", type=Path, help="write the sources of all variants, the units and plan.cmake here")
    tabling = add("table", table, TIERS[0])
    tabling.add_argument("--images", type=Path, help="the folder of <arch>/<image>.fatbin and host/kernels.so")
    tuning = ROOT / "tuning"
    default = tuning if tuning.is_dir() else None
    fitting, selecting = add("fit", fit), add("select", select, TIERS[0])
    for command in (tabling, fitting, selecting):
        command.add_argument(
            "--tuning", type=Path, default=default, help="the folder of <device>.jsonl; default tuning/"
        )
    selecting.add_argument("--images", type=Path, help="the folder of <arch>/<image>.fatbin, for the sizes")
    selecting.add_argument("--regret", type=float, default=1.02, help="bound on the geometric mean; default 1.02")
    selecting.add_argument("--max-mib", type=float, default=math.inf, help="bound on the size; wins over --regret")
    tabling.add_argument("--version", default=None, help="version of the library; default: that of pyproject.toml")
    tabling.add_argument("--cuda", default="", help="version of the CUDA that compiled the images, as 13.0")
    tabling.add_argument("--out", type=Path, required=True, help="the _table.py to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
