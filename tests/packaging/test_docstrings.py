"""The examples in the docstrings of the package, its generator included, hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tilery

MODULES = [module.name for module in pkgutil.walk_packages(tilery.__path__, "tilery.")]


@pytest.mark.parametrize("name", ["tilery", *(name for name in MODULES if not name.endswith("__main__"))])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
