"""The problems to tune: files of the user, and the lists of shapes that come with tilery."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from .. import requests
from ..errors import InvalidInput, UnknownName
from ..problem import OPS, OUT_DTYPES, Problem

FOLDER = Path(__file__).parent.parent / "shapes"
DTYPES = (*(dtype for dtype in OUT_DTYPES), "tf32")


def names() -> list[str]:
    """Of the lists that come with tilery."""
    return sorted(path.stem for path in folder().glob("*.csv"))


def folder() -> Path:
    """Where the lists are."""
    return FOLDER


def problems(files: Iterable[Path], lists: Iterable[str], dtypes: Sequence[str], op: str = "gemm") -> list[Problem]:
    """Each different problem once, in the order of dtypes, then of files.

    Args:
        files: of problems, as `tilery.requests.read` takes them.
        lists: names of lists that come with tilery.
        dtypes: of the inputs, where a file does not say; ``tf32`` is f32 whose inputs may be rounded.
        op: the operator; problems of others are left out.

    Raises:
        InvalidInput, UnknownName: a file or name cannot be used, or there is no problem.
    """
    if op not in OPS:
        raise UnknownName("op", op, OPS)
    known = names()
    for name in lists:
        if name not in known:
            raise UnknownName("list of shapes", name, known)
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise UnknownName("dtype", dtype, DTYPES)
    paths = [*files, *(folder() / f"{name}.csv" for name in lists)]
    if not paths:
        raise InvalidInput(f"nothing to tune: name a file of problems or a trace, or pass --like {', '.join(known)}")
    found = [problem for dtype in dtypes for path in paths for problem in _read(path, dtype) if problem.op == op]
    if not found:
        raise InvalidInput(f"{', '.join(map(str, paths))}: no problem of {op}")
    return list(dict.fromkeys(found))


def _read(path: Path, dtype: str) -> list[Problem]:
    if dtype != "tf32":
        return requests.read(path, dtype)
    # A row that names its dtype is the same whatever the default is.
    pairs = zip(requests.read(path, "f32"), requests.read(path, "f16"), strict=True)
    return [replace(one, precision="tf32") if one.dtype != other.dtype else one for one, other in pairs]
