"""Faults planted in the templates: each is caught, by an error with template line numbers or by wrong numbers."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from generator.load import TEMPLATES
from generator.render import render
from tests.host.conftest import variants_of
from tests.host.harness import CHECK, HostFault, build
from tests.host.problems import Case, Epilogue, Shape

MMA, SIMT = ("gemm_mma", "bf16", "nt", 16), ("gemm_simt", "f32", "nt", 16)
NAIVE = ("gemm_naive", "f32", "any", 1)
UNALIGNED = ("gemm_mma", "bf16", "nt", 1)


@dataclass(frozen=True)
class Fault:
    file: str
    old: str
    new: str
    error: str  # what the checks find
    plain: bool = True  # shows in the numbers of the unchecked build too
    point: tuple[str, str, str, int] = MMA
    pad: int = 0


WAIT = """if constexpr (ASYNC) copy_async_wait<C::STAGES - 2>();
                    __syncthreads();
"""
FAULTS = {
    "removed barrier": Fault(
        "gemm_mma.cuh",
        WAIT,
        WAIT.replace("__syncthreads();", ""),
        r"gemm_mma.cuh:\d+, (with no barrier|before the wait)",
    ),
    "removed barrier between passes": Fault(
        "gemm_mma.cuh",
        "pass * GROUP);\n            __syncthreads();",
        "pass * GROUP);",
        r"race: (reads|writes) byte \d+ .*, with no barrier since it was (read|written)",
        False,
    ),
    "removed barrier before staging": Fault(
        "gemm_mma.cuh",
        "copy_async_wait<0>();\n        __syncthreads();",
        "copy_async_wait<0>();",
        r"writes byte .*gemm_mma.cuh:\d+, (with no barrier|before the wait)",
        False,
    ),
    "removed wait": Fault(
        "gemm_mma.cuh", WAIT, "__syncthreads();\n", r"reads .* at gemm_mma.cuh:\d+, before the wait for the cp.async"
    ),
    "wait for too few": Fault("gemm_mma.cuh", WAIT, WAIT.replace("- 2", "- 1"), r"before the wait for the cp.async"),
    "off-by-one store": Fault(
        "epilogue.cuh",
        "store_from_float(p.d, at.d + e * p.d_col,",
        "store_from_float(p.d, at.d + e * p.d_col + 1,",
        r"writes .* at epilogue.cuh:\d+",
    ),
    "swapped fragment row": Fault(
        "gemm_mma.cuh", "{f.a[2 * i][0], f.a[2 * i + 1][0],", "{f.a[2 * i + 1][0], f.a[2 * i][0],", "^wrong"
    ),
    "wrong row mask": Fault(
        "tile.cuh",
        "return row(i) < across() && along() > 0;",
        "return row(i) <= across() && along() > 0;",
        r"at gemm_mma.cuh:\d+, up to \d+ bytes after",
        False,
    ),
    "wrong k mask": Fault(
        "tile.cuh",
        "max(0, along()) * SIZE)",
        "max(0, along() + 1) * SIZE)",
        r"reads 1 bytes at device.cuh:\d+",
        point=UNALIGNED,
        pad=3,
    ),
    "mask of words": Fault(
        "device.cuh", "if (valid < 4) v[i] &=", "if (valid < 0) v[i] &=", "^wrong", point=UNALIGNED, pad=3
    ),
    "read of unwritten": Fault(
        "gemm_simt.cuh", "            store_both(shared);\n", "", r"which nobody has written", point=SIMT
    ),
    "removed simt barrier": Fault(
        "gemm_simt.cuh",
        "* STAGE);\n            __syncthreads();",
        "* STAGE);",
        r"(race: )?\w+ byte \d+ .*gemm_simt.cuh:\d+, (with no|which no)",
        False,
        SIMT,
    ),
    "barrier after some have left": Fault(
        "gemm_naive.cuh",
        "|| j >= p.n) return;",
        "|| j >= p.n) return;\n    __syncthreads();",
        r"deadlock: \d+ threads .* wait at __syncthreads \(gemm_naive.cuh:\d+\); \d+ threads .* have returned",
        point=NAIVE,
    ),
    "misplaced swizzle": Fault("gemm_mma.cuh", "(lane_offset ^ (step * 32))", "(lane_offset + step * 32)", "."),
}


@pytest.mark.parametrize(
    ("name", "checked"),
    [(name, checked) for name, fault in FAULTS.items() for checked in ((True, False) if fault.plain else (True,))],
)
def test_planted_fault(tmp_path: Path, name: str, checked: bool) -> None:
    fault = FAULTS[name]
    templates = Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))
    text = (templates / fault.file).read_text()
    assert text.count(fault.old) == 1, f"{fault.file} has {text.count(fault.old)} of {fault.old!r}"
    (templates / fault.file).write_text(text.replace(fault.old, fault.new))

    variant = variants_of(*fault.point)[0]
    library = build(
        {variant.name: render(variant, templates)},
        tmp_path / "build",
        templates=templates,
        flags=CHECK if checked else (),
    )
    found = ""
    for seed in range(4):
        case = Case(
            variant, Shape(125, 131, 202 + 6 * (variant.align > 1)), Epilogue(variant.dtype), seed=seed, pad=fault.pad
        )
        try:
            case.run(library, check=checked)
            if (error := case.error()) > 1:
                found = found or f"wrong: {error} times what is allowed"
        except HostFault as raised:
            found = str(raised)
    assert re.search(fault.error if checked else ".", found), found or "nothing found"
