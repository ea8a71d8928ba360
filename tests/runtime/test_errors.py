"""Wording and types of errors: what a user reads, and what a program catches."""

from __future__ import annotations

import pytest

from tilery.errors import (
    CompileError,
    DriverError,
    InvalidInput,
    PackError,
    TileryError,
    UnknownName,
    UnsupportedProblem,
    near_names,
)


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (InvalidInput, ValueError),
        (UnknownName, LookupError),
        (UnsupportedProblem, TileryError),
        (PackError, TileryError),
        (CompileError, TileryError),
        (DriverError, TileryError),
    ],
)
def test_every_error_is_a_tilery_error_and_a_builtin_where_one_fits(
    kind: type[Exception], also: type[Exception]
) -> None:
    assert issubclass(kind, TileryError)
    assert issubclass(kind, also)


def test_unknown_name_gives_nearest_first_and_all_known() -> None:
    error = UnknownName("variant", "gemm_nave", ["gemm_simt", "gemm_naive"], "Run `tilery list`.")
    assert str(error) == (
        "unknown variant 'gemm_nave': did you mean 'gemm_naive' or 'gemm_simt'? "
        "Known: gemm_naive, gemm_simt. Run `tilery list`."
    )
    assert error.name == "gemm_nave"


def test_unknown_name_without_neighbours_and_with_many_known() -> None:
    text = str(UnknownName("arch", "zzz", [f"sm_{i}" for i in range(100)]))
    assert "did you mean" not in text
    assert "(100 in all)" in text
    assert str(UnknownName("arch", "x", [])) == "unknown arch 'x': Known: none"


def test_unknown_name_takes_any_object() -> None:
    assert "None" in str(UnknownName("dtype", None, ["f32"]))


@pytest.mark.parametrize(("typed", "meant"), [("RELU", "relu"), ("silo", "silu"), ("glu", "gelu")])
def test_near_names(typed: str, meant: str) -> None:
    assert near_names(typed, ["relu", "gelu", "silu"])[0] == meant


def test_compile_error_shows_log_options_source_and_advice() -> None:
    error = CompileError(
        "cannot compile x", log="x.cu(3): error: no\n", options=("-a", "-b"), source_path="/s/x.cu", advice="Do y."
    )
    for part in ("cannot compile x", "x.cu(3): error: no", "-a -b", "/s/x.cu", "Do y."):
        assert part in str(error)
    assert (error.log, error.options, error.source_path) == ("x.cu(3): error: no\n", ("-a", "-b"), "/s/x.cu")


def test_driver_error_names_call_result_and_advice() -> None:
    error = DriverError("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", "invalid argument", "Do z.")
    assert str(error) == "cuLaunchKernel failed with CUDA_ERROR_INVALID_VALUE (invalid argument). Do z."


def test_unsupported_problem_lists_each_reason_on_a_line() -> None:
    error = UnsupportedProblem("nothing serves x", ["a: too large", "b: no image"])
    assert str(error).splitlines() == ["nothing serves x", "  - a: too large", "  - b: no image"]
    assert error.reasons == ("a: too large", "b: no image")
