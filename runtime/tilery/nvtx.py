"""NVTX: a range with the variant's name around each launch, for profilers; by the optional package ``nvtx``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .errors import InvalidInput

DOMAIN = "tilery"

Launch = Callable[..., tuple[Any]]


def ranged(launch: Launch, name: str) -> Launch:
    """The launch within a range of the domain ``tilery``.

    Args:
        launch: what to call.
        name: of the range: the variant's.

    Raises:
        InvalidInput: the package nvtx is not installed, or does not work.
    """
    try:
        domain = import_module("nvtx").get_domain(DOMAIN)
    except ImportError as error:
        raise InvalidInput(
            f"the policy asks for NVTX ranges, and the package nvtx cannot be imported ({error}): "
            "pip install 'tilery[nvtx]', or leave TILERY_NVTX and nvtx=True out"
        ) from None
    attributes = domain.get_event_attributes(message=name)
    push, pop = domain.push_range, domain.pop_range

    def within(*args: Any) -> tuple[Any]:
        push(attributes)
        try:
            return launch(*args)
        finally:
            pop()

    return within
