"""Rows times requirements: the Variants of an arch, and why each other point of the space was pruned."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .errors import ExpressionError, SpecError, UnknownName, nearest
from .expression import Expression
from .load import DTYPES, TIERS, Arch, Family, Row, Spec, flatten
from .variant import Value, Variant


@dataclass(frozen=True, slots=True)
class Pruned:
    """A point of the space that an arch does not get, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a tier gives on an arch."""

    variants: tuple[Variant, ...]
    pruned: tuple[Pruned, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A declared point of the space, kept or not: its Variant and the row of ``variants.toml`` that declares it."""

    variant: Variant
    where: str


def tiers_of(tier: str) -> tuple[str, ...]:
    """A tier with those that it includes.

    >>> tiers_of("wide")
    ('core', 'wide')
    """
    if tier not in TIERS:
        raise UnknownName(f"unknown tier '{tier}'; {nearest(tier, TIERS)}")
    return TIERS[: TIERS.index(tier) + 1]


def expand(spec: Spec, arch: str | None, tier: str = "core") -> Expansion:
    """The Variants of a tier and the lower ones on an arch; with None, what only an arch can refuse stays in.

    Raises:
        SpecError: two rows declare one name, or an expression cannot be evaluated.
        UnknownName: no such arch or tier.
    """
    kept: list[Variant] = []
    pruned: list[Pruned] = []
    for point in points(spec, tier):
        reason = reject(spec, point.variant, arch)
        if reason is None:
            kept.append(point.variant)
        else:
            pruned.append(Pruned(point.variant.name, reason))
    return Expansion(tuple(kept), tuple(pruned))


def points(spec: Spec, tier: str = "exhaustive") -> tuple[Point, ...]:
    """Every declared point of a tier and the lower ones, in the order of the rows, with nothing pruned."""
    tiers = tiers_of(tier)
    every = itertools.chain.from_iterable(_points(spec, family) for family in spec.families.values())
    return tuple(point for point in every if point.variant.tier in tiers)


def find(spec: Spec, name: str) -> Point:
    """The declared point of this name, in any tier; UnknownName with the nearest ones otherwise."""
    found = {point.variant.name: point for point in points(spec)}
    if name not in found:
        raise UnknownName(f"unknown variant '{name}': no row of {spec.file} gives it; {nearest(name, found)}")
    return found[name]


def reject(spec: Spec, variant: Variant, arch: str | None) -> str | None:
    """Why a Variant is not made for an arch, or None; without arch only the rules that need none are asked."""
    family = spec.families[variant.family]
    target = _arch(spec, arch)
    if target is not None:
        missing = [feature for feature in variant.features if feature not in target.features]
        if missing:
            return f"{target.name} lacks {', '.join(missing)}"
    names = _names(variant, family) | {"threads": variant.threads, "shared_bytes": variant.shared_bytes}
    if target is not None:
        names["arch_shared_bytes"] = target.shared_bytes
    for rule in family.requires:
        if rule.rule.names <= names.keys() and not _value(spec, family, rule.rule, names):
            return f"{rule.why}: {rule.rule.failure(names)}"
    if target is not None and variant.shared_bytes > target.shared_bytes:
        return f"shared memory: shared_bytes = {variant.shared_bytes} > arch_shared_bytes = {target.shared_bytes}"
    return None


def _arch(spec: Spec, arch: str | None) -> Arch | None:
    if arch is not None and arch not in spec.archs:
        raise UnknownName(f"unknown arch '{arch}'; {nearest(arch, spec.archs)}")
    return None if arch is None else spec.archs[arch]


def _points(spec: Spec, family: Family) -> Iterator[Point]:
    """A row of axes leaves out what a row of the same or a lower tier has already; a row of Configs must not repeat."""
    seen: dict[str, str] = {}
    for row in sorted(family.rows, key=lambda row: TIERS.index(row.tier)):
        for variant in _variants(spec, family, row):
            where = seen.setdefault(variant.name, row.where)
            if where == row.where:
                yield Point(variant, row.where)
            elif not row.product:
                raise SpecError(spec.file, row.where, "", f"'{variant.name}' is declared by {where} too")


def _variants(spec: Spec, family: Family, row: Row) -> Iterator[Variant]:
    for dtype, layout, align, config in itertools.product(row.dtype, row.layout, row.align, row.configs):
        yield _variant(spec, family, row, dtype, layout, align, config)


def _variant(
    spec: Spec,
    family: Family,
    row: Row,
    dtype: str,
    layout: str,
    align: int,
    config: tuple[tuple[str, Value], ...],
) -> Variant:
    bare = Variant(
        family.name,
        family.op,
        dtype,
        layout,
        align,
        config,
        row.tier,
        features=family.features,
        accumulator=family.accumulator[dtype],
        reduction=family.reduction[dtype],
    )
    names = _names(bare, family)
    threads = _whole(spec, family, "threads", family.threads, names, 1)
    shared = _whole(spec, family, "shared_bytes", family.shared_bytes, names | {"threads": threads}, 0)
    return replace(bare, threads=threads, shared_bytes=shared)


def _names(variant: Variant, family: Family) -> dict[str, Any]:
    return {
        **flatten(variant.config),
        "size": DTYPES[variant.dtype],
        "align": variant.align,
        "dtype": variant.dtype,
        "layout": variant.layout,
    }


def _whole(spec: Spec, family: Family, key: str, expression: Expression, names: dict[str, Any], least: int) -> int:
    value = _value(spec, family, expression, names)
    if type(value) is not int or value < least:
        message = f"'{expression.text}' is {value} with {names}; a whole number of at least {least} is wanted"
        raise SpecError(spec.file, f"family.{family.name}", key, message)
    return value


def _value(spec: Spec, family: Family, expression: Expression, names: dict[str, Any]) -> Any:
    try:
        return expression.evaluate(names)
    except ExpressionError as error:
        raise SpecError(spec.file, f"family.{family.name}", "", str(error)) from None
