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
from tests.host.harness import build
from tilery.errors import HostError
from tilery.host import Library
from tilery.trial import Case, Epilogue, Odd, Shape, fit

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
NEXT_PASS = """acc[i + GROUP / 16][j][e];
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
        NEXT_PASS,
        NEXT_PASS.replace("__syncthreads();", ""),
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
    "barrier in a divergent branch": Fault(
        "gemm_mma.cuh",
        NEXT_PASS,
        NEXT_PASS.replace("__syn", "if (warp == 0) __syncthreads();\n            else __syn"),
        r"deadlock: 32 threads \(from 0 on\) wait at __syncthreads \(gemm_mma.cuh:(\d+)\); "
        r"\d+ threads \(from 32 on\) wait at __syncthreads \(gemm_mma.cuh:(?!\1\))\d+\)$",
    ),
    "barrier of odd lanes": Fault(
        "gemm_mma.cuh",
        NEXT_PASS,
        NEXT_PASS.replace("__syn", "if (threadIdx.x % 2) __syn"),
        r"(deadlock|race): ",
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


def mutated(fault: Fault, folder: Path) -> Path:
    """A copy of the templates with the fault in it; fails where the text that it replaces is no longer there once."""
    templates = Path(shutil.copytree(TEMPLATES, folder / "templates"))
    text = (templates / fault.file).read_text()
    found = text.count(fault.old)
    assert found == 1, f"{fault.file} has {found} of {fault.old!r}: plant this fault in its present text"
    (templates / fault.file).write_text(text.replace(fault.old, fault.new))
    return templates


RUNS = [(name, True) for name in FAULTS] + [(name, False) for name, fault in FAULTS.items() if fault.plain]


@pytest.mark.parametrize(("name", "checked"), RUNS, ids=[f"{name}-{'checked' * on or 'plain'}" for name, on in RUNS])
def test_planted_fault(tmp_path: Path, name: str, checked: bool) -> None:
    fault = FAULTS[name]
    templates = mutated(fault, tmp_path)
    variant = variants_of(*fault.point)[0]
    library = build({variant.name: render(variant, templates)}, tmp_path / "b", check=checked, templates=templates)
    shape = fit(variant, Shape(125, 131, 202))
    case = Case(variant, shape, Epilogue(variant.dtype), Odd(pad=fault.pad))
    found = [outcome(case, library, order) for order in range(4)]
    wanted = fault.error if checked or "deadlock" in fault.error else "."
    assert any(re.search(wanted, text) for text in found), found


def outcome(case: Case, library: Library, order: int) -> str:
    """What one launch showed; empty where all seems right."""
    try:
        case.run(library, order=order)
    except HostError as error:
        return str(error)
    error = case.error()
    return f"wrong: {error} times what is allowed" if error > 1 else ""
