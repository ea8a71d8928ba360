"""Statistics in the text format that Prometheus reads.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .decision import problem_text
from .problem import Problem
from .stats import stats

# Each Problem is a time series of the server: so many, and no more.
SHOWN_UNCOVERED = 20

Sample = tuple[Mapping[str, str], float]


class Metric(NamedTuple):
    """One metric: its name, kind, meaning, and where a report has it."""

    name: str
    kind: str
    text: str
    group: str
    label: str


METRICS = (
    Metric("tilery_plans_total", "counter", "Plans made, by the tier that answered.", "plans", "tier"),
    Metric("tilery_calls_total", "counter", "Launches, by the tier that answered.", "calls", "tier"),
    Metric("tilery_memo_total", "counter", "Calls that found their Plan made, and Plans made.", "memo", "result"),
    Metric("tilery_hit_rate", "gauge", "Hits among the look-ups that got to a level.", "hit_rates", "level"),
    Metric("tilery_origins_total", "counter", "Plans by where the code was.", "origins", "origin"),
    Metric("tilery_store_total", "counter", "What happened in the store of compiled kernels.", "store", "event"),
    Metric("tilery_misses_total", "counter", "Plans for which no image fitted.", "misses", "reason"),
    Metric("tilery_fallbacks_total", "counter", "Plans of the fallback kernel.", "fallbacks", "reason"),
    Metric("tilery_rejected_total", "counter", "Variants that did not compile or load.", "rejected", "reason"),
    Metric("tilery_captures_total", "counter", "Kernels refused during a graph capture.", "captures", "variant"),
    Metric("tilery_background_total", "counter", "Compilations in the background.", "background", "event"),
    Metric("tilery_specialised_total", "counter", "Kernels with constants.", "specialised", "event"),
    Metric("tilery_reference_total", "counter", "On the CPU, without a kernel.", "reference", "event"),
    Metric("tilery_trace_total", "counter", "Faults of writing the trace.", "trace", "event"),
)
TIMED = {"jit": "Run-time compilation", "tune": "Tuning"}
"""Groups that count seconds beside events: these are a metric of their own, as their unit is another."""


def prometheus() -> str:
    """The statistics of this process, as `tilery.stats` has them, in the text format of Prometheus.

    >>> prometheus().splitlines()[0]
    '# HELP tilery_plans_total Plans made, by the tier that answered.'
    """
    return text(stats())


def text(report: Mapping[str, Any]) -> str:
    """A report of `tilery.stats`, or of a trace, in the text format of Prometheus."""
    lines: list[str] = []
    for metric in METRICS:
        samples = (({metric.label: name}, value) for name, value in report[metric.group].items())
        lines += _metric(metric.name, metric.kind, metric.text, samples)
    for group, what in TIMED.items():
        values = dict(report[group])
        seconds = values.pop("seconds", 0)
        lines += _metric(f"tilery_{group}_seconds_total", "counter", f"{what}, seconds.", [({}, seconds)])
        events = (({"event": name}, value) for name, value in values.items())
        lines += _metric(f"tilery_{group}_total", "counter", f"{what}, events.", events)
    lines += _metric("tilery_events_total", "counter", "Everything else that is counted.", _others(report))
    meaning = "Launches for Problems that no image fits."
    lines += _metric("tilery_uncovered_calls_total", "counter", meaning, _uncovered(report))
    return "\n".join(lines) + "\n"


def _others(report: Mapping[str, Any]) -> Iterator[Sample]:
    """Counters of groups that have no metric of their own."""
    known = {metric.group for metric in METRICS} | {*TIMED, "uncovered", "uncovered_others"}
    for group, values in report.items():
        if group not in known and isinstance(values, dict):
            yield from (({"group": group, "event": name}, value) for name, value in values.items())


def _uncovered(report: Mapping[str, Any]) -> Iterator[Sample]:
    shown, rest = report["uncovered"][:SHOWN_UNCOVERED], report["uncovered"][SHOWN_UNCOVERED:]
    for row in shown:
        yield {"problem": problem_text(Problem(**row["problem"]))}, row["calls"]
    others = report["uncovered_others"]["calls"] + sum(row["calls"] for row in rest)
    if others:
        yield {"problem": "others"}, others


def _metric(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> list[str]:
    """The lines of one metric; a metric without a sample has only its head."""
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r}")
    return lines


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
