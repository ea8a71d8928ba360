"""``tilery explain``: the Decision for a problem, in words."""

from __future__ import annotations

from typing import Annotated

from rich.text import Text
from typer import Argument, Option

from .. import ops
from .output import Json, console, print_json


def explain(
    op: Annotated[str, Argument(help="The operator: gemm.")],
    m: Annotated[int, Option("--m", help="Rows of the result.")],
    n: Annotated[int, Option("--n", help="Columns of the result.")],
    k: Annotated[int, Option("--k", help="What is summed over.")],
    dtype: Annotated[str, Option(help="Of the inputs: f32, f16, bf16 or s8.")],
    layout: Annotated[
        str, Option(help="nn, nt, tn, tt or any; first A (n: (m, k) row-major), second B (n: (k, n)).")
    ] = "nn",
    arch: Annotated[
        str | None, Option(help="For the GPU that stands for it, as sm_90a. Default: the first GPU here.")
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
    json: Json = False,
) -> None:
    """Say which variant serves a problem on a GPU, which tier chose it, and why the others do not."""
    decision = ops.explain(
        op,
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        layout=layout,
        arch=arch,
        batch=batch,
        align=align,
        out_dtype=out_dtype,
        precision=precision,
        bias=bias,
        activation=activation,
        accumulate=accumulate,
    )
    if json:
        print_json(decision.to_dict())
    else:
        text = Text(str(decision))
        text.highlight_words([decision.variant.name], "bold green")
        text.highlight_words(["tiers", "ranked", "rejected"], "bold")
        console().print(text, soft_wrap=True)
