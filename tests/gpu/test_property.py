"""Any call that the documentation allows is right: sizes, strides, batches, dtypes and epilogues drawn at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilery
from tests.gpu.compare import DTYPES, Epilogue, check
from tests.gpu.memory import operand, random, result
from tilery.operands import BIAS_DTYPES
from tilery.problem import OUT_DTYPES

pytestmark = pytest.mark.gpu

SIZES = st.one_of(st.integers(0, 20), st.integers(0, 300), st.sampled_from([16, 32, 64, 128, 256]))
# Each leading axis: its size, and which of a and b have it (else 1).
LEADS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["both", "a", "b"])), max_size=3)
LAYOUTS = st.fixed_dictionaries(
    {
        "letter": st.sampled_from("nt"),
        "step": st.sampled_from([1, 1, 1, 2, 3]),
        "pad": st.one_of(st.just(0), st.integers(0, 20)),
        "offset": st.one_of(st.just(0), st.integers(0, 20)),
    }
)


@st.composite
def epilogues(draw: Any, dtype: str, out: str) -> dict[str, Any]:
    numbers = st.integers(-9, 9) if out == "s32" else st.sampled_from([0.0, 1.0, -0.5, 1.75])
    kinds = BIAS_DTYPES.get((dtype, out), (out, dtype, "f32"))
    return {
        "alpha": draw(numbers),
        "beta": draw(numbers),
        "bias": draw(st.sampled_from([None, *kinds])),
        "bias_per_batch": draw(st.booleans()),
        "activation": draw(st.sampled_from(["none", "relu"] if out == "s32" else ["none", "relu", "gelu", "silu"])),
    }


@st.composite
def calls(draw: Any) -> dict[str, Any]:
    dtype = draw(st.sampled_from(list(OUT_DTYPES)))
    out = draw(st.sampled_from(OUT_DTYPES[dtype]))
    return {
        "dtype": dtype,
        "out": out,
        "sizes": draw(st.tuples(SIZES, SIZES, SIZES)),
        "lead": draw(LEADS),
        "places": [draw(LAYOUTS) for _ in range(4)],
        "epilogue": draw(epilogues(dtype, out)),
        "into": draw(st.sampled_from(["new", "out", "c"])),
        "tf32": dtype == "f32" and draw(st.booleans()),
    }


@settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(calls())
def test_any_call(call: dict[str, Any]) -> None:
    (m, n, k), drawn, out = call["sizes"], call["epilogue"], DTYPES[call["out"]]
    at_a, at_b, at_c, at_out = call["places"]
    lead = tuple(size for size, _ in call["lead"])
    lead_a, lead_b = (tuple(s if who in ("both", one) else 1 for s, who in call["lead"]) for one in "ab")
    a = operand((*lead_a, m, k), DTYPES[call["dtype"]], **at_a)
    b = operand((*lead_b, k, n), DTYPES[call["dtype"]], **at_b)
    c = operand((*lead, m, n), out, **at_c) if drawn["beta"] else None
    bias = None
    if drawn["bias"]:
        bias = random((*lead, n) if drawn["bias_per_batch"] else (n,), DTYPES[drawn["bias"]])
    epilogue = Epilogue(drawn["alpha"], drawn["beta"], c, bias, drawn["activation"])
    before = epilogue.kept()
    placed = result((*lead, m, n), out, **at_out)
    into = {"new": None, "out": placed.view, "c": c}[call["into"]]
    extras: dict[str, Any] = {"out_dtype": call["out"], "precision": "tf32" if call["tf32"] else "ieee"}
    got = tilery.gemm(a, b, out=into, **epilogue.arguments(), **extras)
    assert got.dtype is out
    assert into is None or got is into
    check(got, a, b, before, tf32=call["tf32"])
    assert placed.untouched_around()
