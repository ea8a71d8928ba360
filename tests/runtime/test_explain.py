"""explain: from words to a Decision."""

from __future__ import annotations

from typing import Any

import pytest

import tilery
from tilery.errors import InvalidInput, TileryError, UnknownName


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"op": "gem"}, UnknownName, "did you mean 'gemm'"),
        ({"dtype": "bf61"}, UnknownName, "bf16"),
        ({"dtype": "int32"}, UnknownName, "dtype of inputs"),
        ({"dtype": "tf32"}, UnknownName, "precision='tf32'"),
        ({"layout": "nx"}, UnknownName, "layout"),
        ({"m": -1}, InvalidInput, "m = -1"),
        ({"align": 3}, InvalidInput, "align"),
        ({"out_dtype": "s32"}, InvalidInput, "cannot write s32"),
    ],
)
def test_explain_refuses_what_has_no_meaning(change: dict[str, Any], kind: type[TileryError], message: str) -> None:
    question: dict[str, Any] = {"op": "gemm", "m": 8, "n": 8, "k": 8, "dtype": "f32", "arch": "sm_90a"}
    with pytest.raises(kind, match=message):
        tilery.explain(**question | change)


@pytest.fixture
def pack(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runtime import simulated
    from tilery import jit
    from tilery import pack as packs

    made = simulated.pack()
    monkeypatch.setattr(packs, "builtin", lambda: made)
    monkeypatch.setattr(jit, "toolchain", lambda: simulated.NVRTC)


@pytest.mark.usefixtures("pack")
def test_explain_decides_for_a_named_arch() -> None:
    decision = tilery.explain(
        "gemm", m=512, n=512, k=512, dtype="bfloat16", layout="nt", arch="sm_90a", activation="relu"
    )
    assert decision.problem == tilery.Problem("gemm", 512, 512, 512, 1, "bf16", "bf16", "nt", 16, activation="relu")
    assert decision.device.cc == (9, 0)
    assert decision.variant.name in str(decision)
    with pytest.raises(UnknownName, match="sm_90a"):
        tilery.explain("gemm", m=8, n=8, k=8, dtype="f32", arch="sm_90")


@pytest.mark.usefixtures("pack")
def test_explain_without_a_gpu_and_arch_lists_the_archs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilery import device

    monkeypatch.setattr(device, "devices", lambda: ())
    with pytest.raises(InvalidInput, match=r"arch=.*sm_90a"):
        tilery.explain("gemm", m=8, n=8, k=8, dtype="f32")


@pytest.mark.usefixtures("pack")
@pytest.mark.parametrize(
    ("layout", "m", "n", "k", "align"),
    [
        ("nt", 33, 65, 64, 16),
        ("nt", 64, 64, 33, 2),
        ("nn", 64, 66, 64, 4),
        ("tn", 12, 64, 33, 8),
        ("any", 64, 64, 64, 2),
    ],
)
def test_explain_takes_packed_arrays(layout: str, m: int, n: int, k: int, align: int) -> None:
    question: dict[str, Any] = {"m": m, "n": n, "k": k, "dtype": "bf16", "layout": layout, "arch": "sm_90a"}
    assert tilery.explain("gemm", **question).problem.align == align
    assert tilery.explain("gemm", **question, align=2).problem.align == 2
    if align < 16:
        with pytest.raises(InvalidInput, match=f"whole pieces of {align} bytes only"):
            tilery.explain("gemm", **question, align=16)
