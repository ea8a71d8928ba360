"""``tilery explain``: the Decision for a problem, in words, or what served the problems of a trace and would now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from typer import Argument, Context, Option

from .. import ops, trace_file
from ..advice import decide_now
from ..decision import Decision, problem_text
from ..device import DeviceInfo, representative
from ..errors import InvalidInput
from ..pack import builtin
from ..policy import current
from ..problem import Problem
from ..replay import Replayed, by_tier, replay
from .output import Json, console, print_json, table

NEEDED = {"op": "the operator, gemm", "m": "--m", "n": "--n", "k": "--k", "dtype": "--dtype"}


def explain(
    context: Context,
    op: Annotated[str | None, Argument(help="The operator: gemm.")] = None,
    m: Annotated[int | None, Option("--m", help="Rows of the result.")] = None,
    n: Annotated[int | None, Option("--n", help="Columns of the result.")] = None,
    k: Annotated[int | None, Option("--k", help="What is summed over.")] = None,
    dtype: Annotated[str | None, Option(help="Of the inputs: f32, f16, bf16 or s8.")] = None,
    layout: Annotated[
        str, Option(help="nn, nt, tn, tt or any; first A (n: (m, k) row-major), second B (n: (k, n)).")
    ] = "nn",
    arch: Annotated[
        str | None,
        Option(help="For the GPU that stands for it, as sm_90a. Default: the first GPU here; those of a trace."),
    ] = None,
    batch: Annotated[int, Option(help="Number of independent products.")] = 1,
    align: Annotated[
        int | None, Option(help="Bytes to which pointers and rows are aligned: 1, 2, 4, 8 or 16. Default: as packed.")
    ] = None,
    out_dtype: Annotated[str | None, Option(help="Of the result. Default: as the inputs; s32 for s8.")] = None,
    precision: Annotated[str, Option(help="ieee, or tf32 to let f32 inputs be rounded.")] = "ieee",
    activation: Annotated[str | None, Option(help="relu, gelu or silu.")] = None,
    bias: Annotated[bool, Option("--bias", help="A bias is added.")] = False,
    accumulate: Annotated[bool, Option("--accumulate", help="beta * c is added.")] = False,
    from_trace: Annotated[
        Path | None, Option(metavar="FILE", help="Explain the problems of a trace instead; of the rest, only --arch.")
    ] = None,
    top: Annotated[int, Option(min=1, help="With --from-trace: so many problems, the most called.")] = 20,
    json: Json = False,
) -> None:
    """Say which variant serves a problem on a GPU, which tier chose it, why the others do not, what would change it."""
    if from_trace is not None:
        _explain_trace(from_trace, arch, top, json)
        return
    if missing := [words for name, words in NEEDED.items() if context.params[name] is None]:
        raise InvalidInput(f"{', '.join(missing)} must be given, or --from-trace FILE")
    decision = ops.explain(**{name: context.params[name] for name in signature(ops.explain).parameters})
    if json:
        print_json(decision.to_dict())
    else:
        _show(decision)


def _show(decision: Decision) -> None:
    text = Text(str(decision))
    text.highlight_words([decision.variant.name], "bold green")
    text.highlight_words(["tiers", "ranked", "rejected", "would change it"], "bold")
    console().print(text, soft_wrap=True)


def _explain_trace(file: Path, arch: str | None, top: int, json: bool) -> None:
    named = representative(arch) if arch is not None else None
    replayed = replay(trace_file.read(file), partial(_decide, named))
    summary = by_tier(replayed)
    if json:
        problems = [one.to_dict() for one in replayed[:top]]
        print_json({"problems": problems, "left_out": len(replayed) - len(problems), "tiers": summary})
    else:
        _show_replayed(replayed, summary, top)


def _decide(named: DeviceInfo | None, problem: Problem, device: DeviceInfo) -> Decision:
    return decide_now(named or device, problem, current(), builtin())


def _show_replayed(replayed: Sequence[Replayed], summary: dict[str, dict[str, int]], top: int) -> None:
    shown = table("", ("calls", "problem", "device", "served by", "would now be served by"), right=("calls",))
    for one in replayed[:top]:
        then = "\n".join(f"{served.variant} ({served.tier})" for served in one.then)
        now = f"{one.now.variant.name} ({one.now.tier}), {one.now.ranked[0]}" if one.now else one.error
        shown.add_row(str(one.calls), problem_text(one.problem), one.device.name, then, now)
    console().print(shown)
    if len(replayed) > top:
        console().print(f"... and {len(replayed) - top} more: --top {len(replayed)}")
    tiers = table("calls by tier", ("tier", "then", "now"), right=("then", "now"))
    counts: list[dict[str, Any]] = [summary["then"], summary["now"]]
    for tier in dict.fromkeys((*summary["then"], *summary["now"])):
        tiers.add_row(tier, *(str(count.get(tier, 0)) for count in counts))
    console().print(tiers)
