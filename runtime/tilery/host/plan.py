"""Plans of the host device: a Decision with its library, memoised per Problem."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from functools import partial

from .. import background, blocklist, image, policy, trace
from ..decision import Decision
from ..device import representative
from ..dispatch import choose
from ..errors import CompileError, HostError, PackError, TileryError, UnsupportedProblem, first_line
from ..generator.archs import HOST
from ..launch import grid
from ..memo import Memo
from ..pack import Pack, builtin
from ..policy import Policy
from ..problem import Problem
from ..stats import count, count_plan
from ..store import store_for
from . import jit
from .library import Library

log = logging.getLogger(__name__)

Key = tuple[Problem, Policy]
Failed = dict[tuple[str, str, str], str]


class HostPlan:
    """A Decision with its library, ready to launch.

    Attributes:
        decision: the choice that it comes from.
        grid, block: dimensions of the launch.
        shared_bytes: dynamic shared memory of a block.
        calls: launches so far; may lack a few where threads share the Plan.
        origin: where the code was: ``memory`` (loaded before), ``image``, ``store``, or ``compiler``, which made it.
        seconds: what choosing and making ready took.
    """

    __slots__ = ("_library", "block", "calls", "decision", "grid", "origin", "seconds", "shared_bytes")

    def __init__(self, decision: Decision, library: Library, origin: str, seconds: float = 0.0) -> None:
        variant, problem = decision.variant, decision.problem
        self.decision = decision
        self.grid = grid(variant, problem.m, problem.n, problem.batch)
        self.block = (variant.threads, 1, 1)
        self.shared_bytes = variant.shared_bytes
        self.calls = 0
        self.origin = origin
        self.seconds = seconds
        self._library = library

    @property
    def tier(self) -> str:
        """The tier that answered."""
        return self.decision.tier

    def launch(self, params: ctypes.Structure) -> None:
        """Run the kernel to its end on all cores; nothing is run where the result is empty.

        Raises:
            HostError: the kernel failed.
        """
        if not (self.grid[0] and self.grid[2]):
            return
        name = self.decision.variant.name
        try:
            self._library.run(name, params, self.grid, self.block, self.shared_bytes)
        except HostError as error:
            advice = f"`tilery debug {name}` shows where; TILERY_FORCE_VARIANT can name another variant."
            raise HostError(f"{error}. {advice}") from None
        self.calls += 1


class Memory:
    """What this process remembers.

    Attributes:
        plans: the Plan of each Problem and policy; None where the reference computes it.
        libraries: those loaded, by what identifies them.
        failed: what did not compile or load, with the reason.
        compiled: the variants that the compiler made and that are loaded, with their arch.
        errors: by variant, the compiler's error: it would be the same again.
        blocked: by store, the variants that `tilery verify` found wrong on this CPU.
        lock: under which Plans are made.
    """

    def __init__(self) -> None:
        self.plans: Memo[Key, HostPlan] = Memo()
        self.libraries: dict[str, Library] = {}
        self.failed: Failed = {}
        self.compiled: dict[str, str] = {}
        self.errors: dict[str, CompileError] = {}
        self.blocked: blocklist.Memo = {}
        self.lock = threading.RLock()


_memory = Memory()


def plan_for(problem: Problem) -> HostPlan | None:
    """The Plan of a Problem under the current policy; built at the first call. None where the reference has to serve.

    Raises:
        UnknownName: the policy forces a variant that is unknown or does not fit.
        UnsupportedProblem: the policy is jit='require', and nothing but the fallback could serve; or it has a numerics
            contract, and nothing but the reference could.
        CompileError, PackError: what was forced or required could not be made ready.
    """
    memory, key = _memory, (problem, policy.current())
    try:
        return memory.plans[key]
    except KeyError:
        return _first(memory, key)


def unblocked(problem: Problem) -> HostPlan:
    """The Plan of the variant that the policy forces, also where `tilery verify` found it wrong; it is not kept.

    Raises:
        UnknownName: the variant is unknown or does not fit.
        CompileError, PackError: it could not be made ready.
    """
    pack, settings = builtin(), policy.current()
    decision = choose(problem, representative(HOST, pack), pack, settings)
    return HostPlan(decision, *_load(_memory, decision, pack, settings))


def _first(memory: Memory, key: Key) -> HostPlan | None:
    problem, settings = key
    with memory.lock:
        if key in memory.plans:
            return memory.plans[key]
        try:
            plan = _build(memory, problem, settings)
        except (UnsupportedProblem, PackError) as error:
            if settings.force_variant is not None or settings.jit == "require" or settings.numerics != "fast":
                raise
            _without(memory, key, error)
            return None
        _publish(memory, key, plan)
    if plan.decision.pending:
        count("background", "queued")
        background.workers.submit(partial(_finish, memory, key, plan.decision.pending), settings.compile_workers)
    return plan


def _without(memory: Memory, key: Key, error: TileryError) -> None:
    reason = f"the reference computes on the CPU: {error.args[0]}"
    if None not in memory.plans.values():
        log.warning("%s", reason)
    count("fallbacks", reason.partition("\n")[0])
    memory.plans.keep(key, None)


def _publish(memory: Memory, key: Key, plan: HostPlan) -> None:
    count_plan(plan, plan.decision, plan.origin)
    trace.built(key[1], plan, plan.origin, plan.seconds, swap=key in memory.plans)
    memory.plans.keep(key, plan)


def _finish(memory: Memory, key: Key, pending: str) -> None:
    """In the background: make ready what was pending, and let it serve. An error is remembered, and not tried again."""
    try:
        plan = _build(memory, *key, waits=True)
    except Exception as error:
        memory.failed["background", HOST, pending] = reason = first_line(error)
        count("background", "failures")
        count("rejected", reason)
        return
    _publish(memory, key, plan)
    count("background", "swaps")


def decide(problem: Problem, pack: Pack, settings: Policy, *, waits: bool = False) -> Decision:
    """The Decision that a call would get now, with what this process compiled, or could not, taken into account."""
    return _choose(_memory, problem, pack, settings, waits)


def _choose(memory: Memory, problem: Problem, pack: Pack, settings: Policy, waits: bool) -> Decision:
    if HOST not in pack.archs:
        raise PackError("the pack was built without the host device")
    cpu, failed, compiled = representative(HOST, pack), dict(memory.failed), dict(memory.compiled)
    # Images need no store: none is made for a call that they serve.
    any_blocked = blocklist.any_for(settings)
    blocked = blocklist.known(memory.blocked, store_for(settings), cpu, pack) if any_blocked else {}
    return choose(problem, cpu, pack, settings, failed, compiled=compiled, waits=waits, blocked=blocked)


def _build(memory: Memory, problem: Problem, settings: Policy, *, waits: bool = False) -> HostPlan:
    """Choose and make ready; what turns out unusable is remembered for the process, and the next candidate serves."""
    started, pack = time.perf_counter(), builtin()
    last: TileryError | None = None
    while True:
        try:
            decision = _choose(memory, problem, pack, settings, waits)
        except UnsupportedProblem as error:
            raise error from last
        try:
            return HostPlan(decision, *_load(memory, decision, pack, settings), time.perf_counter() - started)
        except (CompileError, PackError) as error:
            if decision.tier == "forced" or (settings.jit == "require" and decision.source == "jit"):
                raise
            last = error
            _remember(memory, decision, pack, error)


def _load(memory: Memory, decision: Decision, pack: Pack, settings: Policy) -> tuple[Library, str]:
    variant = decision.variant
    if decision.source == "jit":
        return _load_compiled(memory, decision, pack, settings)
    found = pack.image_of(HOST, variant)
    assert found is not None, f"{variant.name} was chosen from an image that {HOST} does not have"
    with memory.lock:
        origin = "memory" if found.sha256 in memory.libraries else "image"
        if origin == "image":
            image.read(found)
            memory.libraries[found.sha256] = Library(found.path)
        memory.libraries[found.sha256].kernel(variant.name)
        return memory.libraries[found.sha256], origin


def _load_compiled(memory: Memory, decision: Decision, pack: Pack, settings: Policy) -> tuple[Library, str]:
    variant = decision.variant
    if variant.name in memory.errors:
        raise memory.errors[variant.name]
    if variant.name in memory.libraries:
        return memory.libraries[variant.name], "memory"
    try:
        data, origin = jit.compile_variant(variant, pack, store_for(settings))
    except CompileError as error:
        memory.errors[variant.name] = error
        raise
    library = jit.load(data, variant.name)
    library.kernel(variant.name)
    memory.libraries[variant.name] = library
    memory.compiled[variant.name] = HOST
    return library, origin


def _remember(memory: Memory, decision: Decision, pack: Pack, error: TileryError) -> None:
    reason = first_line(error)
    count("rejected", reason)
    names = [decision.variant.name]
    if decision.source == "image":  # all images are one library
        names = [name for group in pack.images[HOST].values() for name in group.variants]
    memory.failed.update({(decision.source, HOST, name): reason for name in names})


def clear() -> None:
    """Forget all Plans and what failed; loaded code stays loaded."""
    global _memory
    libraries = _memory.libraries
    _memory = Memory()
    _memory.libraries = libraries


os.register_at_fork(after_in_child=clear)
