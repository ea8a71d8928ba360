"""Repeat: the calls of a Plan are counted, and its Problem is measured in the background once they are many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from .. import background, device, local
from ..errors import first_line
from ..pack import builtin
from ..policy import Policy
from ..problem import Problem
from ..stats import count

Launch = Callable[..., tuple[Any]]
Key = tuple[Problem, int, Policy]


class Plan(Protocol):
    """What is used of a `tilery.plan.Plan`."""

    decision: Any
    _launch: Launch


class Memory(Protocol):
    """What is used of a `tilery.plan.Memory`."""

    tuned: dict[tuple[Problem, int], bool]

    @property
    def plans(self) -> Mapping[Key, Any]: ...

    def lock(self, key: Any) -> threading.Lock: ...


class Repeats:
    """A Plan's launch that counts its calls. It takes the place of the launch, so that other Plans count nothing.

    Args:
        launch: what is counted.
        after: so many calls are many.
        ordinal: the GPU.
        ask: called once, by the call that is the last of these, or by the first after it that is in no capture.
    """

    __slots__ = ("_after", "_ask", "_asked", "_launch", "_lock", "_ordinal", "_seen")

    def __init__(self, launch: Launch, after: int, ordinal: int, ask: Callable[[], None]) -> None:
        self._launch, self._after, self._ordinal, self._ask = launch, after, ordinal, ask
        self._seen, self._asked, self._lock = 0, False, threading.Lock()

    def __call__(self, stream: int, pointers: int, extra: int) -> tuple[Any]:
        if not self._asked:
            self._count(stream)
        return self._launch(stream, pointers, extra)

    def _count(self, stream: int) -> None:
        self._seen += 1
        if self._seen >= self._after and not device.capturing(stream, self._ordinal):
            self._ask_once()

    def _ask_once(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, True
        if not asked:
            self._ask()


def watch(memory: Memory, key: Key, plan: Plan, rebuild: Callable[[], None]) -> None:
    """Let the calls of a Plan be counted; nothing where it was forced, or its Problem was measured before.

    Under a contract nothing is counted: another variant that serves from some call on may sum in another order.

    Args:
        memory: what the process remembers.
        key: of the Plan.
        plan: not yet in use, or in use with its own launch.
        rebuild: chooses again, and lets a new Plan serve.
    """
    chosen, (_, ordinal, settings) = plan.decision, key
    if settings.numerics != "fast" or chosen.tier in ("forced", "exact") or chosen.pending or key[:2] in memory.tuned:
        return
    launch = plan._launch

    def ask() -> None:
        plan._launch = launch
        count("tune", "queued")
        background.workers.submit(partial(_tune, memory, key, rebuild), settings.compile_workers)

    plan._launch = Repeats(launch, settings.tune_after, ordinal, ask)


def _tune(memory: Memory, key: Key, rebuild: Callable[[], None]) -> None:
    """In the background: measure a Problem, once, keep its record, and let the variant serve that it names."""
    from . import online

    try:
        with memory.lock(("tune", *key[:2])):
            if key[:2] not in memory.tuned:
                memory.tuned[key[:2]] = _measured(*key)
        if memory.tuned[key[:2]]:
            rebuild()
            count("tune", "swaps")
    except online.Busy as reason:
        count("tune", f"put off, {reason.kind}")
        if (plan := memory.plans.get(key)) is not None:
            watch(memory, key, plan, rebuild)
    except Exception as error:  # whatever it is, the variant that serves goes on
        memory.tuned[key[:2]] = False
        count("tune", "failures")
        count("rejected", first_line(error))


def _measured(problem: Problem, ordinal: int, settings: Policy) -> bool:
    """Whether there is a record now."""
    from . import online

    pack = builtin()
    record = online.measure(problem, ordinal, pack, settings)
    if record is None:
        return False
    local.put(local.store_of(settings), record, pack)
    return True
