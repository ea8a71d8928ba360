"""Names of dtypes: the short ones that tilery uses, and those of the array libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import UnknownName

LONG_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "s32": "int32", "s8": "int8"}
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}
_ALIASES = SHORT_NAMES | {short: short for short in LONG_NAMES} | {"half": "f16", "i32": "s32", "i8": "s8"}


def canonical_dtype(dtype: Any) -> str:
    """The short name of a dtype given as a string or as an object of NumPy, PyTorch or JAX.

    >>> canonical_dtype("bfloat16"), canonical_dtype(np.float32)
    ('bf16', 'f32')
    """
    text = _dtype_text(dtype)
    if text not in _ALIASES:
        advice = "tf32 is a precision of f32 inputs: pass precision='tf32'" if text == "tf32" else ""
        raise UnknownName("dtype", text, _ALIASES, advice)
    return _ALIASES[text]


def _dtype_text(dtype: Any) -> str:
    if isinstance(dtype, str):
        return dtype.lower().removeprefix("torch.")
    if library_of(type(dtype)) == "torch":
        return str(dtype).removeprefix("torch.")
    try:
        return str(np.dtype(dtype if isinstance(dtype, type) else getattr(dtype, "dtype", dtype)).name)
    except TypeError:
        return repr(dtype)


def library_of(kind: type) -> str:
    """The root module of a type's module, e.g. ``torch``."""
    return kind.__module__.partition(".")[0]
