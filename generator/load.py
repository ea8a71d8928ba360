"""``variants.toml`` as frozen dataclasses. Every error names file, row, key and the nearest valid key."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import archs
from .errors import ExpressionError, nearest
from .expression import Expression
from .fields import At, Kind, fields, integer, list_of, number, one_of, show, table_of, text, word
from .variant import UNORDERED, Value

ROOT = Path(__file__).resolve().parent.parent
VARIANTS_TOML = ROOT / "variants.toml"
TEMPLATES = ROOT / "templates"

SCHEMA = 1
TIERS = ("core", "wide", "exhaustive")
STATUSES = ("tuned", "functional", "compiled")
# bytes of an element of A and B in memory
DTYPES = {"f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "s8": 1}
# dtypes in which k is summed, with the one whose sums are the same in every order
ACCUMULATORS = ("f32", "s32")
EXACT_ACCUMULATOR, EXACT = "s32", "exact"
_CLOCKS = ("step_clocks", "line_clocks", "tile_clocks", "scalar_clocks")
_COST_NUMBERS = ("efficiency", *_CLOCKS, "memory", "l2_bytes", "start_us")
_PROBLEM_NAMES = ("size", "align", "dtype", "layout")

ByDtype = Mapping[str, Mapping[str, Any]]
"""What a family declares, by key and then by dtype."""


@dataclass(frozen=True, slots=True)
class Arch:
    """One target of nvcc, or ``host``; ``lineage`` is what the runtime tries next, ``gpu`` a representative GPU."""

    name: str
    status: str
    lineage: tuple[str, ...]
    features: tuple[str, ...]
    shared_bytes: int
    gpu: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Op:
    """An operator, its layouts, the family that serves every problem of it, and reductions with meaning, best first."""

    name: str
    layouts: tuple[str, ...]
    fallback: str
    reductions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement over a Config, and why it is one."""

    rule: Expression
    why: str


@dataclass(frozen=True, slots=True)
class Row:
    """A product of dtypes, layouts, alignments and Configs; ``where`` names it, ``product`` marks one given by axes."""

    where: str
    tier: str
    dtype: tuple[str, ...]
    layout: tuple[str, ...]
    align: tuple[int, ...]
    configs: tuple[tuple[tuple[str, Value], ...], ...]
    product: bool


@dataclass(frozen=True, slots=True)
class Family:
    """One template with its rows, requirements, cost coefficients, and how it sums k, by dtype."""

    name: str
    op: str
    features: tuple[str, ...]
    threads: Expression
    shared_bytes: Expression
    requires: tuple[Rule, ...]
    accumulator: Mapping[str, str]
    reduction: Mapping[str, str]
    cost: Mapping[str, Any]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """All that ``variants.toml`` declares."""

    file: str
    schema: int
    portable: tuple[str, ...]
    features: Mapping[str, str]
    archs: Mapping[str, Arch]
    ops: Mapping[str, Op]
    families: Mapping[str, Family]


def load(path: str | Path | None = None) -> Spec:
    """Read and check a ``variants.toml`` (the package's own by default); SpecError for anything wrong in it."""
    path = Path(path or VARIANTS_TOML)
    top = At(_short(path), "", "")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise top.error(f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise top.error(f"is not TOML: {error}") from None
    spec = _spec(top, data)
    for arch in spec.archs.values():
        _check_arch(top.row(f"arch.{arch.name}"), arch, spec.archs)
    for op in spec.ops.values():
        _check_op(top.row(f"op.{op.name}").at("fallback"), op, spec.families)
    return spec


def tuple_names(key: str, length: int) -> tuple[str, ...]:
    """The names under which expressions read the parts of a list key: tile_m, tile_n, tile_k."""
    return tuple(f"{key}_{axis}" for axis in "mnk"[:length])


def flatten(config: Iterable[tuple[str, Value]]) -> dict[str, int]:
    """A Config as the names that expressions read."""
    names: dict[str, int] = {}
    for key, value in config:
        if isinstance(value, int):
            names[key] = value
        else:
            names |= zip(tuple_names(key, len(value)), value, strict=True)
    return names


def _align(at: At, value: Any) -> int:
    if integer(at, value) & (value - 1):
        raise at.error(f"is {value}, not a power of two")
    return int(value)


def _capability(at: At, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise at.error(f"is {show(value)}, not [major, minor]")
    return integer(at, value[0], 0), integer(at, value[1], 0)


def _config_value(at: At, value: Any) -> Value:
    if isinstance(value, int):
        return integer(at, value)
    if not isinstance(value, list):
        raise at.error(f"is {show(value)}, not a whole number, a pair (m, n) or a triple (m, n, k)")
    if len(value) not in (2, 3):
        raise at.error(f"is {show(value)}; a list has two parts (m, n) or three (m, n, k)")
    return tuple(integer(at, part) for part in value)


def _expression(at: At, value: Any) -> Expression:
    try:
        return Expression(text(at, value))
    except ExpressionError as error:
        raise at.error(str(error)) from None


def _rule(at: At, value: Any) -> Rule:
    return Rule(**fields(at, value, rule=_expression, why=text))


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return str(path)


def _spec(top: At, data: dict[str, Any]) -> Spec:
    def raw(at: At, value: Any) -> Any:
        return value

    tables = fields(
        top,
        data,
        schema=integer,
        portable=raw,
        features=table_of("feature", text),
        arch=table_of("arch", raw),
        op=table_of("op", raw),
        family=table_of("family", raw),
    )
    if tables["schema"] != SCHEMA:
        raise top.at("schema").error(f"is {tables['schema']}; this generator reads schema {SCHEMA}")
    names, families = tables["arch"], tables["family"]
    feature = one_of("feature", tables["features"])
    ops = {key: _op(top.row(f"op.{key}"), key, value, families) for key, value in tables["op"].items()}
    return Spec(
        file=top.file,
        schema=SCHEMA,
        portable=list_of(one_of("arch", names), 1)(top.at("portable"), tables["portable"]),
        features=tables["features"],
        archs={key: _arch(top.row(f"arch.{key}"), key, value, names, feature) for key, value in names.items()},
        ops=ops,
        families={key: _family(top.row(f"family.{key}"), key, value, ops, feature) for key, value in families.items()},
    )


def _arch(at: At, name: str, data: Any, names: Iterable[str], feature: Kind) -> Arch:
    try:
        archs.parse(name)
    except ValueError as error:
        raise at.error(str(error)) from None

    def gpu(at: At, value: Any) -> dict[str, Any]:
        counts = dict.fromkeys(("sms", "shared_bytes", "l2_bytes", "clock_mhz", "bandwidth_gbs"), integer)
        return fields(at, value, name=text, cc=_capability, **counts)

    values = fields(
        at,
        data,
        status=one_of("status", STATUSES),
        lineage=list_of(one_of("arch", names)),
        features=list_of(feature),
        shared_bytes=integer,
        gpu=gpu,
    )
    return Arch(name=name, **values)


def _check_arch(at: At, arch: Arch, all_archs: Mapping[str, Arch]) -> None:
    for other in (arch.name, *arch.lineage):
        if not archs.serves(other, arch.gpu["cc"]):
            key = "gpu.cc" if other == arch.name else "lineage"
            cc = ".".join(map(str, arch.gpu["cc"]))
            raise at.at(key).error(f"code for {other} does not run on the arch's GPU, which has capability {cc}")
    _check_lineage(at.at("lineage"), (arch.name,), all_archs)


def _check_lineage(at: At, path: tuple[str, ...], all_archs: Mapping[str, Arch]) -> None:
    for parent in all_archs[path[-1]].lineage:
        if parent in path:
            raise at.error(f"has a cycle: {' -> '.join((*path, parent))}")
        _check_lineage(at, (*path, parent), all_archs)


def _op(at: At, name: str, data: Any, families: Iterable[str]) -> Op:
    word(at, name)

    def reductions(at: At, value: Any) -> dict[str, str]:
        named: dict[str, str] = table_of("reduction", text)(at, value)
        if UNORDERED in named:
            raise at.inside(f".{UNORDERED}").error("is known without: a family may say it, and nothing prefers it")
        return named

    kinds = {"layouts": list_of(word, 1), "fallback": one_of("family", families), "reductions": reductions}
    return Op(name=name, **fields(at, data, **kinds))


def _check_op(at: At, op: Op, families: Mapping[str, Family]) -> None:
    family = families[op.fallback]
    if family.op != op.name:
        raise at.error(f"family '{family.name}' computes op '{family.op}'")
    if family.features:
        raise at.error(f"family '{family.name}' needs {', '.join(family.features)}; a fallback runs on every arch")


def _family(at: At, name: str, data: Any, ops: Mapping[str, Op], feature: Kind) -> Family:
    word(at, name)

    def cost(at: At, value: Any) -> dict[str, Any]:
        rate = table_of("dtype", number, DTYPES)
        host = {"host_rate": rate} if isinstance(value, dict) and "host_rate" in value else {}
        numbers = (
            "efficiency",
            "step_clocks",
            "line_clocks",
            "tile_clocks",
            "scalar_clocks",
            "memory",
            "l2_bytes",
            "start_us",
        )
        return fields(at, value, rate=rate, **dict.fromkeys(numbers, number), **host)

    def rows(at: At, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise at.error("is not a list of at least one row; write [[family.NAME.rows]]")
        return value

    values = fields(
        at,
        data,
        op=one_of("op", ops),
        features=list_of(feature),
        threads=_expression,
        shared_bytes=_expression,
        requires=list_of(_rule),
        accumulator=table_of("dtype", one_of("accumulator", ACCUMULATORS), DTYPES),
        reduction=table_of("dtype", text, DTYPES),
        cost=cost,
        rows=rows,
    )
    op = ops[values["op"]]
    _check_sums(at.at("reduction"), values["accumulator"], values["reduction"], op)
    declared = {"cost.rate": values["cost"]["rate"], **{key: values[key] for key in ("accumulator", "reduction")}}
    values["rows"] = _rows(at, values["rows"], (*op.layouts, "any"), declared)
    family = Family(name=name, **values)
    _check_names(at, family)
    return family


def _check_sums(at: At, accumulator: Mapping[str, str], reduction: Mapping[str, str], op: Op) -> None:
    named = one_of("reduction", (*op.reductions, UNORDERED))
    for dtype, name in reduction.items():
        named(at.inside(f".{dtype}"), name)
        if dtype in accumulator and (name == EXACT) != (accumulator[dtype] == EXACT_ACCUMULATOR):
            advice = f"sums in {EXACT_ACCUMULATOR}, and no others, are '{EXACT}' in every order"
            raise at.inside(f".{dtype}").error(f"is '{name}' with accumulator '{accumulator[dtype]}'; {advice}")


def _rows(at: At, rows: list[Any], layouts: tuple[str, ...], declared: ByDtype) -> tuple[Row, ...]:
    first: list[tuple[str, int]] = []
    return tuple(_row(at.row(f"{at.where}.rows[{i}]"), row, layouts, declared, first) for i, row in enumerate(rows))


def _row(at: At, data: Any, layouts: tuple[str, ...], declared: ByDtype, first: list[tuple[str, int]]) -> Row:
    product = isinstance(data, dict) and "axes" in data and "config" not in data
    read: dict[str, Kind] = {"axes": _axes} if product else {"config": list_of(_config, 1)}
    values = fields(
        at,
        data,
        tier=one_of("tier", TIERS),
        dtype=list_of(one_of("dtype", DTYPES), 1),
        layout=list_of(one_of("layout", layouts), 1),
        align=list_of(_align, 1),
        **read,
    )
    for dtype, (name, table) in itertools.product(values["dtype"], declared.items()):
        if dtype not in table:
            raise at.at("dtype").error(f"the family's {name} has no '{dtype}', only {', '.join(table) or 'none'}")
    key = "axes" if product else "config"
    configs = [_ordered(at.at(key).inside(f"[{i}]"), config, first) for i, config in enumerate(values.pop(key))]
    return Row(where=at.where, configs=tuple(configs), product=product, **values)


def _config(at: At, value: Any) -> dict[str, Value]:
    config: dict[str, Value] = table_of("Config key", _config_value)(at, value)
    return config


def _axes(at: At, value: Any) -> list[dict[str, Value]]:
    axes = table_of("Config key", list_of(_config_value, 1))(at, value)
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def _ordered(at: At, config: dict[str, Value], first: list[tuple[str, int]]) -> tuple[tuple[str, Value], ...]:
    """The Config in the order of the family's first one, whose keys and shapes every other must have."""
    shapes = {key: len(value) if isinstance(value, tuple) else 0 for key, value in config.items()}
    if not first:
        first.extend(shapes.items())
    for key, shape in shapes.items():
        expected = dict(first).get(key)
        if expected is None:
            raise at.inside(f".{key}").error(f"unknown key '{key}'; {nearest(key, dict(first))}")
        if shape != expected:
            one = f"a list of {expected}" if expected else "a number"
            raise at.inside(f".{key}").error(f"is {show(config[key])}; the family's first Config has {one}")
    for key, _ in first:
        if key not in config:
            raise at.inside(f".{key}").error(f"missing key '{key}'; given: {', '.join(config) or 'none'}")
    return tuple((key, config[key]) for key, _ in first)


def _check_names(at: At, family: Family) -> None:
    """Expressions may read Config keys, the problem's names, and what was computed before them."""
    known = {*_PROBLEM_NAMES, *flatten(family.rows[0].configs[0])}
    expressions = [("threads", family.threads, "threads"), ("shared_bytes", family.shared_bytes, "shared_bytes")]
    expressions += [(f"requires[{i}].rule", rule.rule, "") for i, rule in enumerate(family.requires)]
    for key, expression, result in expressions:
        names = known if result else known | {"arch_shared_bytes"}
        for name in sorted(expression.names - names):
            raise at.at(key).error(f"'{expression.text}' reads unknown name '{name}'; {nearest(name, names)}")
        known.update(filter(None, (result,)))
