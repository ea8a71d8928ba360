"""Specialise: sizes and strides as compile-time constants, for forms of a call that were seen often.

A form is the bytes of the parameter struct that are not pointers, alpha or beta. A kernel with constants is launched
only for parameters whose bytes are those that its constants were read from, so it cannot be given others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from . import background, device
from .launch import GemmParams

Constants = tuple[tuple[str, int], ...]
Launcher = Callable[..., tuple[Any]]

NAMES = ("m", "n", "k", "batch", "a_row", "a_col", "b_row", "b_col", "d_row", "d_col", "activation", "out_dtype")
# Sizes and strides lie together in the struct, the codes behind alpha and beta.
_SIZES = slice(GemmParams.a_row.offset, GemmParams.alpha.offset)
_CODES = slice(GemmParams.activation.offset, GemmParams.pad.offset)
# Forms of one Problem that are counted, and that get a kernel of their own: a cap on memory and compilations.
MAX_COUNTED = 64
MAX_SPECIALISED = 4


def form_of(params: ctypes.Structure) -> bytes:
    """What of a call's parameters is the same in all calls of its form."""
    raw = bytes(params)
    return raw[_SIZES] + raw[_CODES]


def constants_of(params: ctypes.Structure) -> Constants | None:
    """The constants for a form, or None where one is negative, which a kernel's name cannot hold."""
    found = tuple((name, int(getattr(params, name))) for name in NAMES)
    return None if any(value < 0 for _, value in found) else found


class Forms:
    """The forms in which the calls of one Plan come, and the kernels of those that came often.

    Args:
        after: so many calls make a form frequent.
        make: constants → the launch of a kernel that has them; called in the background.
        workers: threads in the background.
    """

    def __init__(self, after: int, make: Callable[[Constants], Launcher | None], workers: int) -> None:
        self._after, self._make, self._workers = after, make, workers
        self._ready: dict[bytes, Launcher] = {}
        self._counts: dict[bytes, int] = {}
        self._asked: set[bytes] = set()

    def launcher(self, params: ctypes.Structure, stream: int, ordinal: int) -> Launcher | None:
        """The launch of the kernel for these parameters, or None where the general one serves."""
        form = form_of(params)
        launch = self._ready.get(form)
        if launch is None and form not in self._asked:
            self._count(form, params, stream, ordinal)
        return launch

    def _count(self, form: bytes, params: ctypes.Structure, stream: int, ordinal: int) -> None:
        seen = self._counts.get(form, 0) + 1
        if seen > 1 or len(self._counts) < MAX_COUNTED:
            self._counts[form] = seen
        if seen < self._after or len(self._asked) >= MAX_SPECIALISED or device.capturing(stream, ordinal):
            return
        self._asked.add(form)
        constants = constants_of(params)
        if constants is not None:
            background.workers.submit(partial(self._specialise, form, constants), self._workers)

    def _specialise(self, form: bytes, constants: Constants) -> None:
        launch = self._make(constants)
        if launch is not None:
            self._ready[form] = launch
