"""Exception classes, and the wording that their messages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def near_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names of ``known`` that look most like ``name``, best first.

    >>> near_names("gemm_nave", ["gemm_naive", "gemm_mma", "norm"])[0]
    'gemm_naive'
    """
    lowered: dict[str, str] = {}
    for candidate in known:
        lowered.setdefault(candidate.lower(), candidate)
    return [lowered[match] for match in get_close_matches(name.lower(), lowered, n=count, cutoff=0.5)]


class TileryError(Exception):
    """Base class of every error that tilery raises on purpose."""


class InvalidInput(TileryError, ValueError):
    """The arguments of a call contradict each other or a limit; nothing was launched or written."""


class UnsupportedProblem(TileryError):
    """A valid Problem that nothing can serve here; ``reasons`` holds one line for each thing tried."""

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join([message, *(f"  - {reason}" for reason in self.reasons)]))


class UnknownName(TileryError, LookupError):
    """A name that is not in its list.

    >>> print(UnknownName("activation", "rleu", ["relu", "gelu"]))
    unknown activation 'rleu': did you mean 'relu' or 'gelu'? Known: gelu, relu
    """

    def __init__(self, kind: str, name: object, known: Iterable[str], advice: str = "") -> None:
        self.kind, self.name, self.known = kind, name, tuple(sorted(known))
        near = near_names(str(name), self.known)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        shown = self.known if len(self.known) <= 20 else (*self.known[:20], f"... ({len(self.known)} in all)")
        text = f"unknown {kind} {name!r}: {hint}Known: {', '.join(shown) or 'none'}"
        super().__init__(f"{text}. {advice}" if advice else text)


class PackError(TileryError):
    """A pack whose parts do not fit each other: a truncated or foreign image, a table that names a missing variant."""


class CompileError(TileryError):
    """A run-time compilation failed.

    Attributes:
        log: the compiler's whole output.
        options: the options in the order in which the compiler got them.
        source_path: where the source that failed was written, or None where it could not be written.
    """

    def __init__(
        self,
        message: str,
        *,
        log: str = "",
        options: Sequence[str] = (),
        source_path: str | None = None,
        advice: str = "",
    ) -> None:
        self.log, self.options, self.source_path = log, tuple(options), source_path
        lines = [message, f"options: {' '.join(self.options)}", f"source: {source_path or 'not kept'}"]
        lines.append("log:\n" + (log.strip() or "(empty)"))
        super().__init__("\n".join(lines + ([advice] if advice else [])))


class HostError(TileryError):
    """A launch on the host device failed; the message names kernel, block and thread, and the lines of what went wrong.

    The result of such a call is undefined.
    """


class DriverError(TileryError):
    """A call of the CUDA driver failed.

    Attributes:
        call: what was called, e.g. ``cuLaunchKernel``.
        name: name of the CUresult, e.g. ``CUDA_ERROR_INVALID_VALUE``.
        text: the driver's own description.
    """

    def __init__(self, call: str, name: str, text: str = "", advice: str = "") -> None:
        self.call, self.name, self.text = call, name, text
        message = f"{call} failed with {name}" + (f" ({text})" if text else "")
        super().__init__(f"{message}. {advice}" if advice else message)


def first_line(error: Exception) -> str:
    """What went wrong, in one line: the first of a message of ours, else the exception as Python shows it."""
    return str(error).partition("\n")[0] if isinstance(error, TileryError) else repr(error)
