"""The parameter struct against the kernels' header, byte by byte, and its filling."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest

import tilery
from tilery.launch import GemmParams, Pointers, Strides, fill, template
from tilery.problem import Problem

FIELDS = [name for name, _ in GemmParams._fields_]
HEADER = Path(tilery.__file__).parent / "templates" / "gemm_params.h"


def test_offsets_are_the_contracts() -> None:
    pointers = {"a": 0, "b": 8, "c": 16, "d": 24, "bias": 32}
    others = {"a_row": 40, "d_col": 96, "a_batch": 104, "bias_batch": 144, "m": 152, "batch": 164, "alpha": 168}
    tail = {"beta": 172, "activation": 176, "out_dtype": 180, "bias_dtype": 184, "pad": 188}
    expected = pointers | others | tail
    assert {name: getattr(GemmParams, name).offset for name in expected} == expected
    assert ctypes.sizeof(GemmParams) == 192


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
def test_struct_is_the_headers_field_by_field(tmp_path: Path) -> None:
    lines = "".join(
        f'printf("{name} %zu %zu\\n", offsetof(GemmParams, {name}), sizeof(GemmParams::{name}));' for name in FIELDS
    )
    codes = 'printf("codes %d %d %d %d %d %d %d %d\\n", F32, F16, BF16, S32, NO_ACTIVATION, RELU, GELU, SILU);'
    source = tmp_path / "layout.cpp"
    source.write_text(
        f'#include <cstddef>\n#include <cstdio>\n#include "{HEADER}"\n'
        f'int main() {{ {lines} printf("sizeof %zu 0\\n", sizeof(GemmParams)); {codes} }}\n'
    )
    subprocess.run(["g++", "-Wall", "-Werror", "-o", str(tmp_path / "layout"), str(source)], check=True)
    found = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout.splitlines()
    ours = [f"{name} {getattr(GemmParams, name).offset} {getattr(GemmParams, name).size}" for name in FIELDS]
    assert found == [*ours, f"sizeof {ctypes.sizeof(GemmParams)} 0", "codes 0 1 2 3 0 1 2 3"]


def test_fill_puts_each_value_into_its_field() -> None:
    problem = Problem("gemm", 3, 5, 7, 2, "s8", "f32", "nt", 16, bias=True, activation="gelu", accumulate=True)
    strides = (Strides(70, 1, 210), Strides(1, -8, 2**40), Strides(11, 12, 13), Strides(21, 22, 23), Strides(0, 31, 32))
    form = template(problem, *strides, "f32")
    params = fill(form, Pointers(2**47, 20, 30, 40, 50), 1.5, -2.0)
    found = {name: getattr(params, name) for name in FIELDS}
    assert found == {
        "a": 2**47, "b": 20, "c": 30, "d": 40, "bias": 50,
        "a_row": 70, "a_col": 1, "b_row": 1, "b_col": -8, "c_row": 11, "c_col": 12, "d_row": 21, "d_col": 22,
        "a_batch": 210, "b_batch": 2**40, "c_batch": 13, "d_batch": 23, "bias_stride": 31, "bias_batch": 32,
        "m": 3, "n": 5, "k": 7, "batch": 2, "alpha": 1.5, "beta": -2.0,
        "activation": 2, "out_dtype": 0, "bias_dtype": 0, "pad": 0,
    }  # fmt: skip


def test_fill_leaves_the_form_as_it_was_and_absent_operands_null() -> None:
    problem = Problem("gemm", 1, 1, 1, 1, "bf16", "bf16", "nn", 2)
    form = template(problem, Strides(), Strides(), Strides(), Strides(), Strides(), "bf16")
    before = bytes(form)
    params = fill(form, Pointers(8, 8, 0, 8, 0), math.nan, 0)
    assert params.c is None
    assert params.bias is None
    assert math.isnan(params.alpha)
    assert params.out_dtype == 2
    assert form == before
