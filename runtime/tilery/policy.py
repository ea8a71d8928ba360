"""The user's settings: one dataclass, and the only reader of the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from .errors import UnknownName

JIT_MODES = ("auto", "off", "require")
STORE_WORDS = ("user", "off")

VARIABLES = {
    "TILERY_JIT": "auto: compile what no image covers; off: never compile; require: never use the fallback kernel",
    "TILERY_FORCE_VARIANT": "name of the only variant that may serve; a name that is unknown or does not fit raises",
    "TILERY_STORE": "absolute folder of compiled kernels; user: the user's cache folder; off: keep nothing on disk",
}
"""Every variable that the runtime reads, with its meaning, as ``tilery doctor`` lists them."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How choices are made and what may be compiled.

    Attributes:
        jit: ``auto`` compiles what no image covers; ``off`` never compiles; ``require`` raises rather than
            serve a Problem with the fallback kernel.
        force_variant: the only variant that may serve, or None.
        store: folder of the store, ``"user"`` for the user's cache folder, or None to keep nothing on disk.
        compile_deadline_s: how long to wait for another process that compiles the same kernel.

    Raises:
        UnknownName: a value that has no meaning; the message has the nearest one.

    >>> Policy.from_env({"TILERY_JIT": "off"}).jit
    'off'
    """

    jit: str = "auto"
    force_variant: str | None = None
    store: str | Path | None = "user"
    compile_deadline_s: float = 60.0

    def __post_init__(self) -> None:
        if self.jit not in JIT_MODES:
            raise UnknownName("jit policy", self.jit, JIT_MODES)
        if isinstance(self.store, str) and self.store != "user":
            raise UnknownName("store", self.store, STORE_WORDS, "A folder is given as a Path.")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Policy:
        """The policy that the variables of ``environ`` (default: the process's) ask for."""
        env = os.environ if environ is None else environ
        _reject_misspelt(env)
        jit = env.get("TILERY_JIT") or "auto"
        if jit not in JIT_MODES:
            raise UnknownName("value of TILERY_JIT", jit, JIT_MODES)
        return cls(jit, env.get("TILERY_FORCE_VARIANT") or None, _store(env.get("TILERY_STORE") or "user"))


def _store(value: str) -> str | Path | None:
    if value in STORE_WORDS:
        return None if value == "off" else value
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise UnknownName("value of TILERY_STORE", value, STORE_WORDS, "A folder is given as an absolute path.")
    return path


def _reject_misspelt(env: Mapping[str, str]) -> None:
    """A variable one slip away from a known one would be ignored without a word: refuse it."""
    suffixes = [name.removeprefix("TILERY_") for name in VARIABLES]
    for name in env:
        unknown = name.startswith("TILERY_") and name not in VARIABLES
        # 0.8 catches a slip of the pen, and not the build's own variables such as TILERY_ARCHS.
        if unknown and get_close_matches(name.removeprefix("TILERY_"), suffixes, n=1, cutoff=0.8):
            raise UnknownName("variable", name, VARIABLES)


_current: Policy | None = None


def current() -> Policy:
    """The policy of this process: what `use` set, else what the environment says at the first call."""
    global _current
    if _current is None:
        _current = Policy.from_env()
    return _current


def use(policy: Policy | None) -> None:
    """Make ``policy`` the one of this process; None goes back to the environment, which is read again."""
    global _current
    _current = policy
