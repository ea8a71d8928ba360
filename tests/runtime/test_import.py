"""What importing tilery costs and touches, and the examples of its docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys

import pytest

import tilery

FOREIGN = ("cuda", "torch", "jax", "cupy", "jinja2", "typer", "rich", "filelock", "platformdirs", "ml_dtypes")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "use", ["pass", "tilery.gemm; tilery.linear; tilery.explain; tilery.Problem; tilery.InvalidInput"]
)
def test_import_loads_no_foreign_module_and_calls_need_none_either(use: str) -> None:
    found = python(f"import sys, tilery; {use}; print([m for m in {FOREIGN} if m in sys.modules])")
    assert found.strip() == "[]"


def test_a_cpu_call_loads_no_foreign_module_but_what_finds_the_store() -> None:
    """The first call looks whether the user's store has findings of `tilery verify`; platformdirs knows where it is."""
    call = "tilery.gemm(numpy.ones((2, 2), 'f4'), numpy.ones((2, 2), 'f4'))"
    foreign = [name for name in FOREIGN if name != "platformdirs"]
    found = python(f"import sys, numpy, tilery; {call}; print([m for m in {foreign} if m in sys.modules])")
    assert found.strip() == "[]"


def test_stats_stays_a_function_whatever_is_imported() -> None:
    assert python("import tilery, tilery.plan, tilery.stats as s; print(callable(tilery.stats), s is tilery.stats)")
    assert python("import tilery.plan, tilery; print('calls' in tilery.stats())").strip() == "True"


def test_every_public_name_is_there_documented_and_listed() -> None:
    for name in tilery.__all__:
        value = getattr(tilery, name)
        assert name == "__version__" or inspect.getdoc(value), f"{name} has no docstring"
        assert name in dir(tilery)


def test_unknown_attribute_lists_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'gem'.*gemm"):
        _ = tilery.gem  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "module",
    ["", ".errors", ".problem", ".dtypes", ".geometry", ".arrays", ".reference", ".operands", ".launch", ".ops"],
)
def test_examples_in_docstrings(module: str) -> None:
    loaded = importlib.import_module(f"tilery{module}") if module else tilery
    assert doctest.testmod(loaded).failed == 0


@pytest.mark.parametrize("name", ["gemm", "linear"])
def test_operators_have_an_example_that_runs(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(tilery, name)) or "")
