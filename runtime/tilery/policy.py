"""The user's settings: one dataclass, who has which at the moment, and the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .errors import InvalidInput, UnknownName

JIT_MODES = ("auto", "background", "off", "require")
STORE_WORDS = ("user", "off")
NUMERICS = ("fast", "deterministic", "batch_invariant")
TUNE_MODES = ("off", "on_repeat", "read_only")

VARIABLES = {
    "TILERY_JIT": "auto: compile what no image covers; background: the same, while something else serves; off: never "
    "compile; require: never use the fallback kernel",
    "TILERY_FORCE_VARIANT": "name of the only variant that may serve; a name that is unknown or does not fit raises",
    "TILERY_STORE": "absolute folder of compiled kernels; user: the user's cache folder; off: keep nothing on disk. "
    "Read-only stores to look in before it may follow, separated by colons",
    "TILERY_NUMERICS": "fast: any variant; deterministic: equal calls give equal bits; batch_invariant: a row's bits "
    "do not depend on how many rows there are",
    "TILERY_TUNE": "off: never measure, use what was measured before; on_repeat: measure in the background what is "
    "called often; read_only: use what the pack and the read-only stores have, so that all ranks choose alike",
    "TILERY_TRACE": "absolute path of a file to which each new Problem and its Decision are written, as JSON lines",
    "TILERY_NVTX": "1: a range with the variant's name around each launch, for profilers",
}
"""Every variable that the runtime reads, with its meaning, as ``tilery doctor`` lists them."""

# Least values of the numbers of a Policy.
LEAST = {
    "compile_deadline_s": 0,
    "compile_workers": 1,
    "specialise_after": 0,
    "tune_after": 1,
    "tune_budget_ms": 1,
    "trace_max_mib": 1,
    "store_max_mib": 1,
    "store_max_entries": 1,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """How choices are made, what may be compiled, and when.

    Attributes:
        jit: what happens where no image covers a Problem. ``auto`` compiles, and the call waits. ``background``
            compiles in another thread: what is compiled already or the fallback kernel serves until it is done.
            ``off`` never compiles: the fallback kernel serves. ``require`` compiles, and raises rather than serve with
            the fallback kernel.
        force_variant: the only variant that may serve, or None.
        store: folder of the store, ``"user"`` for the user's cache folder, or None to keep nothing on disk.
        seeds: folders of read-only stores, looked in before ``store``.
        store_max_mib, store_max_entries: bounds of the store's folder.
        compile_deadline_s: how long to wait for another process that compiles the same kernel.
        compile_workers: compilations at a time, in the background and in `tilery.prepare`.
        specialise_after: compile a kernel with sizes and strides as constants, in the background, for what was called
            so many times alike; 0 for never. Only where ``jit`` is ``auto`` or ``background``.
        numerics: what the variants must promise: ``fast`` nothing beyond the error bound, ``deterministic`` equal bits
            from equal calls, ``batch_invariant`` that the bits of a row do not depend on the number of rows.
        tune: ``off`` never measures, and uses what was measured before. ``on_repeat`` measures the variants for a
            Problem that was called ``tune_after`` times, in the background, for at most ``tune_budget_ms`` of GPU time.
            ``read_only`` uses what the pack and the seeds have and nothing else, so that all ranks choose alike.
        trace: file to which each new Problem and its Decision are written, or None; at most ``trace_max_mib``.
        nvtx: whether each launch is in an NVTX range with the variant's name.

    Raises:
        UnknownName: a value that has no meaning; the message has the nearest one.
        InvalidInput: a number below its least value.

    >>> Policy.from_env({"TILERY_JIT": "off"}).jit
    'off'
    """

    jit: str = "auto"
    force_variant: str | None = None
    store: str | Path | None = "user"
    seeds: tuple[Path, ...] = ()
    store_max_mib: int = 2048
    store_max_entries: int = 10_000
    compile_deadline_s: float = 60.0
    compile_workers: int = 2
    specialise_after: int = 0
    numerics: str = "fast"
    tune: str = "off"
    tune_after: int = 32
    tune_budget_ms: int = 200
    trace: Path | None = None
    trace_max_mib: int = 64
    nvtx: bool = False
    # A Policy is part of the key of every call's Plan.
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        if self.jit not in JIT_MODES:
            raise UnknownName("jit policy", self.jit, JIT_MODES)
        if self.numerics not in NUMERICS:
            raise UnknownName("numerics contract", self.numerics, NUMERICS)
        if self.tune not in TUNE_MODES:
            raise UnknownName("tune policy", self.tune, TUNE_MODES)
        if isinstance(self.store, str) and self.store != "user":
            raise UnknownName("store", self.store, STORE_WORDS, "A folder is given as a Path.")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise InvalidInput(f"{name} = {getattr(self, name)} of a Policy must be at least {least}")
        object.__setattr__(self, "seeds", tuple(Path(seed) for seed in self.seeds))
        object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in names())))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Policy:
        """The policy that the variables of ``environ`` (default: the process's) ask for."""
        env = os.environ if environ is None else environ
        _reject_misspelt(env)
        first, *seeds = (env.get("TILERY_STORE") or "user").split(os.pathsep)
        store = first if first in STORE_WORDS else _folder("TILERY_STORE", first)
        trace = env.get("TILERY_TRACE")
        return cls(
            jit=_one_of(env, "TILERY_JIT", JIT_MODES),
            force_variant=env.get("TILERY_FORCE_VARIANT") or None,
            store=None if store == "off" else store,
            seeds=tuple(_folder("TILERY_STORE", seed) for seed in seeds),
            numerics=_one_of(env, "TILERY_NUMERICS", NUMERICS),
            tune=_one_of(env, "TILERY_TUNE", TUNE_MODES),
            trace=_folder("TILERY_TRACE", trace) if trace else None,
            nvtx=_one_of(env, "TILERY_NVTX", ("0", "1")) == "1",
        )


def names() -> tuple[str, ...]:
    """The settings by name, in the order of the fields."""
    return tuple(field.name for field in fields(Policy) if field.init)


def _one_of(env: Mapping[str, str], variable: str, values: tuple[str, ...]) -> str:
    """The value of a variable; the first of ``values`` where it is not set."""
    value = env.get(variable) or values[0]
    if value not in values:
        raise UnknownName(f"value of {variable}", value, values)
    return value


def _folder(variable: str, value: str) -> Path:
    path = Path(value).expanduser()
    if not path.is_absolute():
        words = STORE_WORDS if variable == "TILERY_STORE" else ()
        raise UnknownName(f"value of {variable}", value, words, "It is given as an absolute path.")
    return path


def _reject_misspelt(env: Mapping[str, str]) -> None:
    """A variable one slip away from a known one would be ignored without a word: refuse it."""
    suffixes = [name.removeprefix("TILERY_") for name in VARIABLES]
    for name in env:
        unknown = name.startswith("TILERY_") and name not in VARIABLES
        # 0.8 catches a slip of the pen, and not the build's own variables such as TILERY_ARCHS.
        if unknown and get_close_matches(name.removeprefix("TILERY_"), suffixes, n=1, cutoff=0.8):
            raise UnknownName("variable", name, VARIABLES)


_process: Policy | None = None
_scoped: ContextVar[Policy | None] = ContextVar("tilery_policy", default=None)


def current() -> Policy:
    """The policy of the caller: that of the innermost `scope`, else what `use` set, else that of the environment.

    The environment is read at the first call.
    """
    return _scoped.get() or _process or _from_environment()


def _from_environment() -> Policy:
    global _process
    _process = Policy.from_env()
    return _process


def use(policy: Policy | None) -> None:
    """Make ``policy`` the one of this process; None goes back to the environment, which is read again."""
    global _process
    _process = policy


@contextmanager
def scope(policy: Policy | None = None, /, **changes: Any) -> Iterator[Policy]:
    """Another policy for the calls in a ``with`` block, in this thread or asynchronous task alone.

    Args:
        policy: the policy; default: the caller's.
        changes: settings by name that differ from it.

    Raises:
        UnknownName: a setting or a value that does not exist; the message has the nearest one.

    >>> with scope(jit="off"):
    ...     current().jit
    'off'
    """
    for name in changes:
        if name not in names():
            raise UnknownName("setting of a Policy", name, names())
    chosen = replace(policy or current(), **changes)
    token = _scoped.set(chosen)
    try:
        yield chosen
    finally:
        _scoped.reset(token)
