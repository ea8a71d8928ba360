"""Plan: a Decision made ready to launch, memoised per Problem and GPU."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

from . import background, blocklist, device, image, jit, local, nvtx, policy, trace
from .decision import Decision, problem_text
from .device import DeviceInfo
from .dispatch import choose
from .errors import CompileError, DriverError, PackError, TileryError, UnsupportedProblem, first_line
from .generator.records import ranked
from .generator.variant import Variant
from .launch import grid
from .memo import Memo
from .pack import Pack, builtin
from .policy import Policy
from .problem import Problem
from .specialise import Constants, Forms, Launcher
from .stats import count, count_plan
from .store import store_for

# What an exception of these kinds says is wrong with one variant's code; the next candidate may serve.
FAILURES = (CompileError, DriverError, PackError)


class Ready(NamedTuple):
    """A kernel that was made ready.

    Attributes:
        kernel: the driver's handle.
        origin: where its code was: ``memory`` (loaded before), ``image``, ``store``, or ``nvrtc``, which compiled it.
        seconds: what choosing and making ready took.
    """

    kernel: Any
    origin: str
    seconds: float = 0.0


class Plan:
    """A Decision with its kernel, ready to launch.

    Attributes:
        decision: the choice that it comes from.
        ordinal: the GPU.
        grid, block: dimensions of the launch.
        shared_bytes: dynamic shared memory of a block.
        calls: launches so far; may lack a few where threads share the Plan.
        ready: the kernel, and what it took to make it ready.
        forms: the forms of its calls and their specialised kernels, or None where the policy asks for none.
        ranges: whether each launch is in an NVTX range.
    """

    __slots__ = (
        "_context",
        "_launch",
        "block",
        "calls",
        "decision",
        "forms",
        "grid",
        "ordinal",
        "ranges",
        "ready",
        "shared_bytes",
    )

    def __init__(self, decision: Decision, ordinal: int, ready: Ready, ranges: bool = False) -> None:
        variant, problem = decision.variant, decision.problem
        self.decision = decision
        self.ordinal = ordinal
        self.grid = grid(variant, problem.m, problem.n, problem.batch)
        self.block = (variant.threads, 1, 1)
        self.shared_bytes = variant.shared_bytes
        self.calls = 0
        self._context = int(device.primary_context(ordinal))
        self.ready = ready
        self.forms: Forms | None = None
        self.ranges = ranges
        self._launch = self.launcher(ready.kernel, variant)

    @property
    def tier(self) -> str:
        """The tier that answered."""
        return self.decision.tier

    def launcher(self, kernel: Any, variant: Variant) -> Launcher:
        """The launch of a variant's kernel with this Plan's grid; what is left are stream, parameters and extra."""
        launch = partial(device.function("cuLaunchKernel"), kernel, *self.grid, *self.block, self.shared_bytes)
        return nvtx.ranged(launch, variant.name) if self.ranges else launch

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
        launch = self._launch
        if self.forms is not None:
            launch = self.forms.launcher(params, stream, self.ordinal) or launch
        (status,) = launch(stream, ctypes.addressof(array), 0)
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


Key = tuple[Problem, int, Policy]


class Memory:
    """What this process remembers.

    Attributes:
        plans: the Plan of each Problem, GPU and policy. A Plan is replaced as a whole, its kernel stays loaded.
        failed: by GPU, what did not compile or load, with the reason.
        compiled: by GPU, the variants that NVRTC compiled and that are loaded, with their arch.
        errors: by arch and variant, the compiler's error: it would be the same again.
        blocked: by store and GPU, the variants that `tilery verify` found wrong.
        tuned: the Problems that were measured because they were called often, and whether there is a record.
    """

    def __init__(self) -> None:
        self.plans: Memo[Key, Plan] = Memo()
        self.blocked: blocklist.Memo = {}
        self.failed: dict[int, dict[tuple[str, str, str], str]] = {}
        self.compiled: dict[int, dict[str, str]] = {}
        self.errors: dict[str, CompileError] = {}
        self.tuned: dict[tuple[Problem, int], bool] = {}
        self._locks: dict[Any, threading.Lock] = {}

    def lock(self, key: Any) -> threading.Lock:
        """The lock under which one Plan or one variant is made."""
        return self._locks.setdefault(key, threading.Lock())

    def publish(self, key: Key, plan: Plan) -> None:
        """Let a Plan serve from now on."""
        count_plan(plan, plan.decision, plan.ready.origin)
        trace.built(key[2], plan, plan.ready.origin, plan.ready.seconds, swap=key in self.plans)
        if key[2].tune == "on_repeat":
            from .tune import repeat

            repeat.watch(self, key, plan, partial(_rebuild, self, key))
        self.plans.keep(key, plan)
        self._locks.pop(key, None)


_memory = Memory()


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
    plan = _memory.plans.get(key)
    return _first(_memory, key, stream) if plan is None else plan


def decide(problem: Problem, gpu: DeviceInfo, pack: Pack, settings: Policy) -> Decision:
    """The Decision that a call would get now, with what this process compiled, or could not, taken into account."""
    return _choose(_memory, problem, gpu, gpu.ordinal, pack, settings)


def _choose(
    memory: Memory,
    problem: Problem,
    gpu: DeviceInfo,
    ordinal: int | None,
    pack: Pack,
    settings: Policy,
    waits: bool = False,
) -> Decision:
    if ordinal is None:  # a GPU that is only described
        return choose(problem, gpu, pack, settings, waits=waits)
    failed, compiled = dict(memory.failed.get(ordinal, {})), dict(memory.compiled.get(ordinal, {}))
    blocked = blocklist.known(memory.blocked, store_for(settings), gpu, pack)
    ask = partial(choose, problem, gpu, pack, settings, failed, compiled=compiled, waits=waits, blocked=blocked)
    decision = ask()
    if decision.tier == "forced" or not (us := local.times(local.store_of(settings), problem, gpu.gpu, pack)):
        return decision
    return ask(local={name: us[name] for name in ranked(us, decision.variant.name)})


def unblocked(problem: Problem, ordinal: int) -> Plan:
    """The Plan of the variant that the policy forces, also where `tilery verify` found it wrong; it is not kept.

    Raises:
        UnknownName: the variant is unknown or does not fit.
        CompileError, DriverError, PackError: it could not be made ready.
    """
    memory, pack, settings = _memory, builtin(), policy.current()
    decision = choose(problem, device.info(ordinal), pack, settings)
    return Plan(decision, ordinal, _load(memory, decision, pack, settings, ordinal))


def _first(memory: Memory, key: Key, stream: int | None) -> Plan:
    if key[2].jit == "background" or key[2].specialise_after:
        jit.ready()
    with memory.lock(key):
        plan = memory.plans.get(key)
        if plan is not None:
            return plan
        capturing = stream is not None and device.capturing(stream, key[1])
        plan = _build(memory, *key, capturing=capturing)
        if plan.decision.pending and capturing:
            return plan  # nothing is compiled during a capture: a later call asks for it
        memory.publish(key, plan)
    if plan.decision.pending:
        count("background", "queued")
        background.workers.submit(partial(_finish, memory, key, plan.decision.pending), key[2].compile_workers)
    return plan


def _finish(memory: Memory, key: Key, pending: str) -> None:
    """In the background: make ready what was pending, and let it serve. An error is remembered, and not tried again."""
    try:
        plan = _build(memory, *key, waits=True)
    except Exception as error:
        reason = first_line(error)
        memory.failed.setdefault(key[1], {})["background", key[2].jit, pending] = reason
        count("background", "failures")
        count("rejected", reason)
        return
    memory.publish(key, plan)
    count("background", "swaps")


def _rebuild(memory: Memory, key: Key) -> None:
    """Choose again, and let that Plan serve."""
    memory.publish(key, _build(memory, *key, waits=True))


def _build(
    memory: Memory, problem: Problem, ordinal: int, settings: Policy, *, capturing: bool = False, waits: bool = False
) -> Plan:
    """Choose and make ready; what turns out unusable is remembered for the process, and the next candidate serves."""
    started, pack, gpu = time.perf_counter(), builtin(), device.info(ordinal)
    last: TileryError | None = None
    while True:
        try:
            decision = _choose(memory, problem, gpu, ordinal, pack, settings, waits)
        except UnsupportedProblem as error:
            raise error from last
        if capturing:
            _check_loaded(decision, pack, ordinal)
        try:
            ready = _load(memory, decision, pack, settings, ordinal)
        except FAILURES as error:
            if not _may_go_on(error, decision, settings):
                raise
            last = error
            _remember(memory.failed.setdefault(ordinal, {}), decision, pack, error)
            continue
        plan = Plan(decision, ordinal, ready._replace(seconds=time.perf_counter() - started), settings.nvtx)
        # Under a contract no other compiler's erf or exp may come in after some calls.
        wanted = settings.specialise_after and settings.numerics == "fast"
        if wanted and settings.jit in ("auto", "background") and not decision.pending:
            make = partial(_specialise, memory, plan, pack, settings)
            plan.forms = Forms(settings.specialise_after, make, settings.compile_workers)
        return plan


def _load(memory: Memory, decision: Decision, pack: Pack, settings: Policy, ordinal: int) -> Ready:
    variant = decision.variant
    if decision.source == "jit":
        return _load_compiled(memory, variant, decision.arch, pack, settings, ordinal)
    found = pack.image_of(decision.arch, variant)
    assert found is not None, f"{variant.name} was chosen from an image that {decision.arch} does not have"
    loaded = image.is_loaded(found.sha256, variant, ordinal)
    with device.relaxed():
        return Ready(image.load(found, variant, ordinal), "memory" if loaded else "image")


def _load_compiled(memory: Memory, variant: Variant, arch: str, pack: Pack, settings: Policy, ordinal: int) -> Ready:
    """One thread compiles a variant, however many wait for it; an error is every later caller's, without a compile."""
    key = _jit_key(variant, arch)
    with memory.lock(key):
        if key in memory.errors:
            raise memory.errors[key]
        code = None
        if not image.is_loaded(key, variant, ordinal):
            try:
                code = jit.compile_variant(variant, arch, pack=pack, store=store_for(settings))
            except CompileError as error:
                memory.errors[key] = error
                raise
        source, data = f"NVRTC for {arch}", code.data if code else b""
        with device.relaxed():
            kernel = image.load_code(key, data, variant, ordinal, source, jit.toolchain().version if code else "")
    memory.compiled.setdefault(ordinal, {})[variant.name] = arch
    return Ready(kernel, code.origin if code else "memory")


def _specialise(memory: Memory, plan: Plan, pack: Pack, settings: Policy, constants: Constants) -> Launcher | None:
    """In the background: the launch of a Plan's kernel with constants, or None where it cannot be made."""
    decision = plan.decision
    variant = replace(decision.variant, constants=constants)
    arch = jit.target(decision.device.cc, pack.archs, jit.toolchain())
    try:
        if arch is None:
            raise CompileError(f"NVRTC has no target that runs on {decision.device}")
        kernel = _load_compiled(memory, variant, arch, pack, settings, plan.ordinal).kernel
    except Exception as error:  # whatever it is, the general kernel goes on
        count("specialised", "failures")
        count("rejected", first_line(error))
        return None
    count("specialised", "kernels")
    trace.note(settings, "specialised", variant=variant.name)
    return plan.launcher(kernel, variant)


def _jit_key(variant: Variant, arch: str) -> str:
    """A variant is compiled once per arch in a process."""
    return f"jit {arch} {variant.name}"


def _check_loaded(decision: Decision, pack: Pack, ordinal: int) -> None:
    """Refuse to compile or load while a graph is captured: either would break the capture."""
    variant, p = decision.variant, decision.problem
    found = pack.image_of(decision.arch, variant) if decision.source == "image" else None
    if image.is_loaded(found.sha256 if found else _jit_key(variant, decision.arch), variant, ordinal):
        return
    count("captures", variant.name)
    raise UnsupportedProblem(
        f"{problem_text(p)} would have to {'load' if found else 'compile and load'} {variant.name} while a CUDA graph "
        f"is being captured on its stream. Before the capture, call\n    {prepare_call(p, ordinal)}"
    )


def prepare_call(problem: Problem, ordinal: int) -> str:
    """The call that makes a Problem ready, as text to paste."""
    given = [field for field in fields(Problem) if getattr(problem, field.name) != field.default]
    arguments = ", ".join(f"{field.name}={getattr(problem, field.name)!r}" for field in given)
    device_argument = f", device={ordinal}" if ordinal else ""
    return f"tilery.prepare([tilery.Problem({arguments})]{device_argument})"


def _may_go_on(error: TileryError, decision: Decision, settings: Policy) -> bool:
    """Whether another candidate may serve: not for a forced variant, nor for a compile that jit='require' asks for."""
    if decision.tier == "forced" or (settings.jit == "require" and decision.source == "jit"):
        return False
    return not isinstance(error, DriverError) or error.name in image.IMAGE_FAULTS


def _remember(failed: dict[tuple[str, str, str], str], decision: Decision, pack: Pack, error: TileryError) -> None:
    reason = first_line(error)
    names = [decision.variant.name]
    whole = isinstance(error, PackError) or (isinstance(error, DriverError) and error.call == "cuLibraryLoadData")
    if decision.source == "image" and whole and (found := pack.image_of(decision.arch, decision.variant)):
        names = list(found.variants)
    count("rejected", reason)
    failed.update({(decision.source, decision.arch, name): reason for name in names})


def clear() -> None:
    """Forget all Plans and what failed; loaded code stays loaded."""
    global _memory
    _memory = Memory()


os.register_at_fork(after_in_child=clear)
