"""tilery: GPU operators whose kernels are chosen call by call, compiled ahead of time where a wheel covers them.

>>> import numpy as np, tilery
>>> tilery.gemm(np.float32([[1, 2]]), np.float32([[3], [4]]))
array([[11.]], dtype=float32)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not lazy: importing the module of the same name later would put it in the function's place.
from .stats import stats as stats

if TYPE_CHECKING:
    from . import policy as policy
    from .asked import request as request
    from .decision import Decision as Decision
    from .errors import CompileError as CompileError
    from .errors import DriverError as DriverError
    from .errors import HostError as HostError
    from .errors import InvalidInput as InvalidInput
    from .errors import PackError as PackError
    from .errors import TileryError as TileryError
    from .errors import UnknownName as UnknownName
    from .errors import UnsupportedProblem as UnsupportedProblem
    from .exposition import prometheus as prometheus
    from .ops import explain as explain
    from .ops import gemm as gemm
    from .ops import linear as linear
    from .policy import Policy as Policy
    from .problem import Problem as Problem
    from .warmup import prepare as prepare

    __version__: str

_ERRORS = (
    "CompileError",
    "DriverError",
    "HostError",
    "InvalidInput",
    "PackError",
    "TileryError",
    "UnknownName",
    "UnsupportedProblem",
)
# Public names and where they live: imported when first used, so that `import tilery` loads hardly anything.
_HOMES = {
    "Decision": ".decision",
    "Policy": ".policy",
    "Problem": ".problem",
    "explain": ".ops",
    "gemm": ".ops",
    "linear": ".ops",
    "prepare": ".warmup",
    "prometheus": ".exposition",
    "request": ".asked",
} | dict.fromkeys(_ERRORS, ".errors")

__all__ = [*sorted(_HOMES), "__version__", "policy", "stats"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tilery")
    except PackageNotFoundError:  # a bare checkout
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name == "policy":
        value = import_module(".policy", __name__)
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name], __name__), name)
    else:
        raise AttributeError(f"module 'tilery' has no attribute {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
