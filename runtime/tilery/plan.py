"""Plan: a Decision made ready to launch, memoised per Problem and GPU."""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from typing import Any

from . import device, image, jit, policy
from .cost import ceil_div
from .decision import Decision, problem_text
from .dispatch import choose
from .errors import CompileError, DriverError, PackError, TileryError, UnsupportedProblem
from .pack import Pack, builtin
from .policy import Policy
from .problem import Problem
from .stats import count, track
from .store import open_store

MAX_GRID_Z = 65535
# What an exception of these kinds says is wrong with one variant's code; the next candidate may serve.
FAILURES = (CompileError, DriverError, PackError)


class Plan:
    """A Decision with its kernel, ready to launch.

    Attributes:
        decision: the choice that it comes from.
        ordinal: the GPU.
        grid, block: dimensions of the launch.
        shared_bytes: dynamic shared memory of a block.
        calls: launches so far; may lack a few where threads share the Plan.
    """

    __slots__ = ("_context", "_launch", "block", "calls", "decision", "grid", "ordinal", "shared_bytes")

    def __init__(self, decision: Decision, ordinal: int, kernel: Any) -> None:
        variant, problem = decision.variant, decision.problem
        tile_m, tile_n, _ = variant["tile"]
        self.decision = decision
        self.ordinal = ordinal
        self.grid = (ceil_div(problem.m, tile_m) * ceil_div(problem.n, tile_n), 1, min(problem.batch, MAX_GRID_Z))
        self.block = (variant.threads, 1, 1)
        self.shared_bytes = variant.shared_bytes
        self.calls = 0
        self._context = int(device.primary_context(ordinal))
        self._launch = partial(device.function("cuLaunchKernel"), kernel, *self.grid, *self.block, self.shared_bytes)

    @property
    def tier(self) -> str:
        """The tier that answered."""
        return self.decision.tier

    def launch(self, params: ctypes.Structure, stream: int = 0) -> None:
        """Launch on a stream of the Plan's GPU; nothing is launched where the result is empty.

        Args:
            params: the kernel's parameter struct; copied before this returns.
            stream: a CUstream handle; 0 is the legacy default stream.

        Raises:
            DriverError: the driver refuses the launch.
        """
        if not (self.grid[0] and self.grid[2]):
            return
        # A kernel runs in its stream's context. The default streams have none: they are those of the current one.
        if stream in device.DEFAULT_STREAMS and device.current_context() != self._context:
            with device.current(self.ordinal):
                self._go(params, stream)
        else:
            self._go(params, stream)

    def _go(self, params: ctypes.Structure, stream: int) -> None:
        # kernelParams is an array of pointers, here of one.
        array = ctypes.c_void_p(ctypes.addressof(params))
        (status,) = self._launch(stream, ctypes.addressof(array), 0)
        if status:
            raise self._failed(status)
        self.calls += 1

    def _failed(self, status: Any) -> DriverError:
        chosen = self.decision
        advice = (
            f"Launched: {chosen.variant.name} ({chosen.source} {chosen.arch}) for {problem_text(chosen.problem)}, "
            f"grid {self.grid}, block {self.block}, {self.shared_bytes} bytes shared. An earlier kernel's fault can "
            "surface here: CUDA_LAUNCH_BLOCKING=1 shows whose it is. TILERY_FORCE_VARIANT can name another variant."
        )
        return device.driver_error("cuLaunchKernel", status, advice)


_plans: dict[tuple[Problem, int, Policy], Plan] = {}
_building: dict[tuple[Problem, int, Policy], threading.Lock] = {}
_failed: dict[int, dict[tuple[str, str, str], str]] = {}


def plan_for(problem: Problem, ordinal: int, stream: int | None = None) -> Plan:
    """The Plan of a Problem on a GPU under the current policy; built at the first call.

    Args:
        problem: what is asked.
        ordinal: the GPU.
        stream: the stream of the launch. While a CUDA graph is captured on it, nothing is compiled or loaded.

    Raises:
        UnknownName: the policy forces a variant that is unknown or does not fit.
        UnsupportedProblem: nothing can serve it, or only something that must not be loaded during a capture.
        CompileError, DriverError, PackError: what was forced or required could not be made ready.
    """
    key = (problem, ordinal, policy.current())
    plan = _plans.get(key)
    if plan is None:
        with _building.setdefault(key, threading.Lock()):
            plan = _plans.get(key)
            if plan is None:
                plan = _plans[key] = _build(*key, stream)
                _building.pop(key, None)
    return plan


def _build(problem: Problem, ordinal: int, settings: Policy, stream: int | None) -> Plan:
    """Choose and make ready; what turns out unusable is remembered for the process, and the next candidate serves."""
    pack, gpu = builtin(), device.info(ordinal)
    failed = _failed.setdefault(ordinal, {})
    last: TileryError | None = None
    while True:
        try:
            decision = choose(problem, gpu, pack, settings, dict(failed))
        except UnsupportedProblem as error:
            raise error from last
        if stream is not None and device.capturing(stream, ordinal):
            _check_loaded(decision, pack, ordinal)
        try:
            kernel = _load(decision, pack, settings, ordinal)
        except FAILURES as error:
            if not _may_go_on(error, decision, settings):
                raise
            last = error
            _remember(failed, decision, pack, error)
            continue
        return _counted(Plan(decision, ordinal, kernel), pack)


def _counted(plan: Plan, pack: Pack) -> Plan:
    track(plan)
    if plan.tier == "fallback":
        count("fallbacks", plan.decision.silent[-1][1])
    return plan


def _load(decision: Decision, pack: Pack, settings: Policy, ordinal: int) -> Any:
    variant = decision.variant
    if decision.source == "image":
        found = pack.image_of(decision.arch, variant)
        assert found is not None, f"{variant.name} was chosen from an image that {decision.arch} does not have"
        return image.load(found, variant, ordinal)
    store = open_store(settings.store, settings.compile_deadline_s)
    key = _jit_key(decision)
    if not image.is_loaded(key, variant, ordinal):
        code = jit.compile_variant(variant, decision.arch, pack=pack, store=store)
        return image.load_code(key, code, variant, ordinal, f"NVRTC {jit.toolchain().version} for {decision.arch}")
    return image.load_code(key, b"", variant, ordinal, "memory")


def _jit_key(decision: Decision) -> str:
    """A variant is compiled once per arch in a process."""
    return f"jit {decision.arch} {decision.variant.name}"


def _check_loaded(decision: Decision, pack: Pack, ordinal: int) -> None:
    """Refuse to compile or load while a graph is captured: either would break the capture."""
    found = pack.image_of(decision.arch, decision.variant) if decision.source == "image" else None
    if image.is_loaded(found.sha256 if found else _jit_key(decision), decision.variant, ordinal):
        return
    raise UnsupportedProblem(
        f"{problem_text(decision.problem)} would have to load {decision.variant.name} while a CUDA graph is being "
        "captured on its stream. Call it once with these sizes before the capture."
    )


def _may_go_on(error: TileryError, decision: Decision, settings: Policy) -> bool:
    """Whether another candidate may serve: not for a forced variant, nor for a compile that jit='require' asks for."""
    if decision.tier == "forced" or (settings.jit == "require" and decision.source == "jit"):
        return False
    return not isinstance(error, DriverError) or error.name in image.IMAGE_FAULTS


def _remember(failed: dict[tuple[str, str, str], str], decision: Decision, pack: Pack, error: TileryError) -> None:
    reason = str(error).splitlines()[0]
    names = [decision.variant.name]
    whole = isinstance(error, PackError) or (isinstance(error, DriverError) and error.call == "cuLibraryLoadData")
    if decision.source == "image" and whole and (found := pack.image_of(decision.arch, decision.variant)):
        names = list(found.variants)
    count("rejected", reason)
    failed.update({(decision.source, decision.arch, name): reason for name in names})


def clear() -> None:
    """Forget all Plans and what failed; loaded code stays loaded."""
    _failed.clear()
    _plans.clear()
