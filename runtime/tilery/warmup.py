"""Warm-up: compile, load and set attributes of kernels before traffic, or before a CUDA graph is captured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import device as devices
from . import jit, policy
from .decision import problem_text
from .device import DeviceInfo
from .errors import InvalidInput, TileryError
from .pack import builtin
from .plan import decide, plan_for
from .problem import Problem

# What one compilation of the largest kernels took at most, generously.
COMPILE_BYTES = 256 << 20
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of one Problem.

    Attributes:
        problem: what was asked.
        variant, tier: what will serve it, and which tier chose it; "" where nothing will.
        origin: where its code was: ``memory`` (loaded before), ``image``, ``store`` (compiled earlier), or ``nvrtc``
            or ``compiler``, which compiled it now.
        seconds: what it took, with the time spent waiting for another Problem's compilation of the same variant.
        error: why nothing will serve it, or "".
    """

    problem: Problem
    variant: str = ""
    tier: str = ""
    origin: str = ""
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of all Problems. ``str()`` tells it in words.

    Attributes:
        results: one for each different Problem, in the order in which they were given.
        seconds: from begin to end.
    """

    results: tuple[Prepared, ...]
    seconds: float

    @property
    def errors(self) -> tuple[Prepared, ...]:
        """Those that nothing will serve."""
        return tuple(result for result in self.results if result.error)

    @property
    def origins(self) -> dict[str, int]:
        """Problems by where their code was."""
        return dict(Counter(result.origin for result in self.results if result.origin))

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"seconds": self.seconds, "origins": self.origins, "results": [asdict(one) for one in self.results]}

    def __str__(self) -> str:
        found = ", ".join(f"{count} from {origin}" for origin, count in sorted(self.origins.items()))
        lines = [f"{len(self.results)} problems in {self.seconds:.1f} s: {found or 'none'}, {len(self.errors)} failed"]
        lines += [f"  {problem_text(one.problem)}: {one.error}" for one in self.errors]
        return "\n".join(lines)


def prepare(
    problems: Iterable[Problem],
    *,
    device: int = 0,
    arch: str | None = None,
    workers: int | None = None,
    progress: Callable[[Prepared], None] | None = None,
) -> Report:
    """Compile, load and set up the kernels of these Problems, so that their calls find them ready.

    What the store has is not compiled again, so a run that was interrupted goes on where it was. With
    ``jit="background"`` this waits all the same.

    Args:
        problems: of `tilery.Problem`; `tilery.request` makes one from sizes, dtype and layout.
        device: the GPU.
        arch: compile for the GPU that stands for this arch into the store, and load nothing; needs no GPU. ``host`` is
            this machine's CPU.
        workers: compilations at a time; default: the policy's ``compile_workers``. Fewer where memory is short.
        progress: called with each result as it comes, in the caller's thread.

    Returns:
        The Report. A Problem that nothing can serve is in its ``errors`` and stops no other.

    Raises:
        InvalidInput: there is no such GPU, or ``workers`` is below 1.
        UnknownName: there is no such arch; the message has the nearest ones.
    """
    started, settings = time.perf_counter(), policy.current()
    wanted = settings.compile_workers if workers is None else workers
    if wanted < 1:
        raise InvalidInput(f"workers = {workers} must be at least 1")
    gpu = devices.representative(arch) if arch is not None else devices.info(device)
    unique = list(dict.fromkeys(problems))
    found: dict[Problem, Prepared] = {}
    for result in _each(unique, partial(_prepare, gpu, device if arch is None else None, settings), _fitting(wanted)):
        found[result.problem] = result
        if progress is not None:
            progress(result)
    return Report(tuple(found[problem] for problem in unique), time.perf_counter() - started)


def _each(problems: list[Problem], make: Callable[[Problem], Prepared], workers: int) -> Iterator[Prepared]:
    """The results as they come."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="tilery-prepare")
    try:
        futures = [pool.submit(copy_context().run, make, problem) for problem in problems]
        for future in as_completed(futures):
            yield future.result()
    finally:  # an interrupted run ends with the compilations that are under way
        pool.shutdown(cancel_futures=True)


def _prepare(gpu: DeviceInfo, ordinal: int | None, settings: policy.Policy, problem: Problem) -> Prepared:
    started = time.perf_counter()
    waiting = "auto" if settings.jit == "background" else settings.jit
    try:
        with policy.scope(settings, jit=waiting):
            served = _on_host(problem) if gpu.is_host else _stored(problem, gpu) if ordinal is None else None
            served = served or _loaded(problem, ordinal or 0)
        if ordinal is not None and waiting != settings.jit:
            plan_for(problem, ordinal)  # also the Plan that the calls will look for
    except TileryError as error:
        return Prepared(problem, seconds=time.perf_counter() - started, error=str(error))
    return Prepared(problem, *served, time.perf_counter() - started)


def _loaded(problem: Problem, ordinal: int) -> tuple[str, str, str]:
    plan = plan_for(problem, ordinal)
    return plan.decision.variant.name, plan.tier, plan.ready.origin


def _stored(problem: Problem, gpu: DeviceInfo) -> tuple[str, str, str]:
    """For a GPU that need not be here."""
    pack = builtin()
    chosen = decide(problem, gpu, pack, policy.current())
    origin = "image"
    if chosen.source == "jit":
        origin = jit.compile_variant(chosen.variant, chosen.arch, pack=pack).origin
    return chosen.variant.name, chosen.tier, origin


def _on_host(problem: Problem) -> tuple[str, str, str]:
    from .host import plan as host

    plan = host.plan_for(problem)
    return ("reference", "", "memory") if plan is None else (plan.decision.variant.name, plan.tier, plan.origin)


def _fitting(workers: int) -> int:
    """As many of the workers as memory has room for, at least one."""
    return max(1, min(workers, _free_bytes() // COMPILE_BYTES))


def _free_bytes() -> int:
    """Memory that is free on this machine and within the limit of this control group."""
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) << 10
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:  # no control group of version 2
        return free
    return free if limit == "max" else min(free, int(limit) - int(used))
