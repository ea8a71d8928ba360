"""A pack whose parts do not fit each other is refused, with names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runtime import simulated
from tilery.errors import PackError
from tilery.generator.cost import Coefficients
from tilery.pack import from_table

NAME = "gemm_mma_bf16_nt_128x128x32_s4_a16"


def test_a_whole_pack() -> None:
    pack = simulated.pack()
    assert pack.variants == simulated.VARIANTS
    image = pack.image_of("sm_90a", pack.variants[NAME])
    assert image is not None
    assert image.path == Path("images/sm_90a/gemm_mma_bf16_nt.fatbin")
    assert pack.image_of("compute_75", pack.variants[NAME]) is None
    assert pack.archs["sm_90a"].gpu == simulated.H200


def test_lists_in_a_config_become_tuples() -> None:
    table = simulated.table()
    table["VARIANTS"][NAME]["config"] = [["tile", [128, 128, 32]], ["stages", 4]]
    assert from_table(table, Path("images")).variants == simulated.VARIANTS


def test_a_row_without_a_field() -> None:
    table = simulated.table()
    del table["VARIANTS"][NAME]["threads"]
    with pytest.raises(PackError, match=f"{NAME} of _table.py lacks threads"):
        from_table(table, Path("images"))


def _misname(table: dict[str, Any]) -> None:
    table["VARIANTS"]["other"] = table["VARIANTS"].pop("gemm_naive_f32_any_16x16x1")
    table["IMAGES"] = {}


GPU = "New, 9.0, 132 SMs, 60 MiB L2, 4800 GB/s"
FAULTS = {
    "schema": (lambda t: t.update(SCHEMA=1), "schema 1, this runtime reads 2"),
    "table": (
        lambda t: t["TABLE"].append(("gemm", "bf16", "nt", 16, 1, 1, 1, GPU, ("gone_b", "gone_a"))),
        "gone_a, gone_b",
    ),
    "records": (
        lambda t: t["RECORDS"].update({GPU: {("gemm", "bf16", "nt", 16, *[1] * 4, "bf16", ""): (("gone", 1.0),)}}),
        "the records name variants .*: gone",
    ),
    "coefficients": (
        lambda t: t["COEFFICIENTS"].update({GPU: {"gone": (1,) * len(Coefficients._fields)}}),
        "coefficients of variants .*: gone",
    ),
    "image": (
        lambda t: t["IMAGES"]["sm_80"]["gemm_mma_bf16_nt"]["variants"].append("gone"),
        "images hold variants .*: gone",
    ),
    "arch": (lambda t: t["IMAGES"].update(sm_99={}), "archs .*: sm_99"),
    "fallback": (lambda t: t["FALLBACK"].update(gemm="gemm_none"), "gemm_none"),
    "cost": (lambda t: t["COST"]["gemm_mma"]["rate"].pop("tf32"), "gemm_mma of tf32"),
    "reduction": (
        lambda t: t["VARIANTS"][NAME].update(reduction="mma_k61"),
        f"{NAME} sums as 'mma_k61', which gemm does not list",
    ),
    "name": (_misname, "the row other describes gemm_naive_f32_any_16x16x1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_inconsistent_pack(fault: str) -> None:
    change, text = FAULTS[fault]
    table = simulated.table()
    change(table)
    with pytest.raises(PackError, match=text) as raised:
        from_table(table, Path("images"))
    assert "reinstall" in str(raised.value)
