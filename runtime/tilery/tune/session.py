"""A tuning session: problem after problem on one GPU, each record kept as soon as it is known."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from .. import device as devices
from .. import policy
from ..decision import problem_text
from ..errors import DriverError, TileryError, first_line
from ..generator.records import Record, ranked
from ..pack import builtin
from ..problem import Problem
from ..store import Store, store_for
from ..store.lock import FileLock
from .book import Book, keeper, read
from .buffers import Skip
from .candidates import compile_ahead, target_of
from .gpu import OUT_OF_MEMORY, Gpu
from .identity import Clock, lock_path, uuid_of
from .measure import Found, Measured
from .result import Report, Result
from .tuner import Asked, Tuner

log = logging.getLogger(__name__)

# How long to wait for another process that measures on the same GPU.
LOCK_DEADLINE_S = 3600.0
STOPPED = "stopped from the keyboard"

Progress = Callable[[Result], None]


def tune(
    problems: Iterable[Problem],
    device: int = 0,
    jit: bool = False,
    out: Path | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    budget_s: float | None = None,
    specialise: int = 0,
) -> Report:
    """Measure the candidates of each problem on a GPU, and keep a record of each.

    A problem of which there is a record of all its candidates as they are now is not measured again, so a session that
    was stopped goes on where it was. `KeyboardInterrupt` stops it with what there is.

    Args:
        problems: what is measured; each different one once.
        device: the GPU.
        jit: also measure the variants without an image, compiled by NVRTC before anything is measured.
        out: file of records, one a line, to begin or to add to.
        store: where dispatch on this machine looks for records, or None.
        progress: called with each Result as it comes.
        budget_s: seconds after which no further problem is begun.
        specialise: for so many of the best variants of each problem, also measure a kernel with sizes and strides as
            constants. They are reported and stand in no record: dispatch serves them by ``specialise_after`` alone.

    Raises:
        InvalidInput: there is no such GPU, or ``out`` holds something else.
        TileryError: another process measures on the GPU for too long, or nothing can be compiled and ``jit`` asks to.
        DriverError: a kernel's fault; the records so far are kept.
    """
    info, pack = devices.info(device), builtin()
    book = Book(info.gpu, pack, None if out is None else read(out), store, keeper(out, store, pack))
    options = Options(jit, specialise, budget_s, store_for(policy.current()) if store is None else store)
    return run(list(dict.fromkeys(problems)), device, book, options, progress)


class Options(NamedTuple):
    """What of a session is the same for all GPUs.

    Attributes:
        jit, specialise, budget_s: as in `tune`.
        store: where compiled code is kept, and where it is known which variants are wrong.
    """

    jit: bool
    specialise: int
    budget_s: float | None
    store: Store


def run(asked: list[Problem], device: int, book: Book, options: Options, progress: Progress | None = None) -> Report:
    """Measure problems on a GPU; see `tune`."""
    info, pack, started = devices.info(device), builtin(), time.monotonic()
    settings = replace(policy.current(), numerics="fast", force_variant=None)
    target = target_of(info, pack) if options.jit or options.specialise else None
    until = math.inf if options.budget_s is None else started + options.budget_s
    results: list[Result] = []
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        gpu = stack.enter_context(Gpu(device))
        uuid = uuid_of(device)
        notes = stack.enter_context(alone(uuid))
        clock = stack.enter_context(Clock(uuid))
        tuner = Tuner(gpu, pack, settings, options.store, target, options.jit)
        session = Session(tuner, book, clock, options.specialise)
        try:
            failed = session.compile(asked) if options.jit else {}
            for problem in asked:
                if time.monotonic() >= until:
                    break
                results.append(session.one(problem))
                if progress is not None:
                    progress(results[-1])
        except KeyboardInterrupt:
            notes = [*notes, STOPPED]
    seconds = time.monotonic() - started
    return Report(str(info), tuple(results), len(asked), seconds, failed | tuner.failed, tuple(notes))


@contextmanager
def alone(uuid: str, deadline_s: float = LOCK_DEADLINE_S) -> Iterator[list[str]]:
    """Keep other tuners of this machine off the GPU; yields notes about what could not be done.

    Raises:
        TileryError: another has had it until the deadline.
    """
    path = lock_path(uuid)
    lock = FileLock(path)
    try:
        held = lock.acquire(time.monotonic())
        if not held:
            log.warning("another process measures on %s: waiting for it, at most %.0f s", uuid, deadline_s)
            held = lock.acquire(time.monotonic() + deadline_s)
    except OSError as error:
        yield [f"{path} cannot be locked ({error}): another tuner on this GPU would not be noticed"]
        return
    if not held:
        raise TileryError(
            f"another process has been measuring on {uuid} for {deadline_s:.0f} s, and two at once disturb each "
            f"other: wait for it, or end it (it holds {path})"
        )
    try:
        yield []
    finally:
        lock.release()


@dataclass
class Session:
    """Problem after problem on one GPU."""

    tuner: Tuner
    book: Book
    clock: Clock
    constants: int = 0

    def compile(self, problems: Iterable[Problem]) -> dict[str, str]:
        """Compile what the problems will need; by variant, why some could not be."""
        tuner = self.tuner
        wanted = {one.variant.name: one for problem in problems for one in tuner.ask(problem).candidates}
        return compile_ahead(wanted.values(), tuner.pack, tuner.store)

    def one(self, problem: Problem) -> Result:
        """Measure one problem, and keep its record."""
        started = time.monotonic()
        asked = self.tuner.ask(problem)
        if not asked.candidates:
            return Result(problem, "skipped", "no variant of the pack with code for this GPU fits", asked.default)
        if self.book.holds(problem, self.tuner.hashes(asked)):
            return Result(problem, "kept", "there is a record of every candidate", asked.default)
        try:
            found, special = self.tuner.measure(asked, constants=self.constants)
        except Skip as reason:
            return Result(problem, "skipped", str(reason), asked.default)
        except DriverError as error:
            if error.name != OUT_OF_MEMORY:
                raise
            return Result(problem, "skipped", first_line(error), asked.default)
        except TileryError as error:
            return Result(problem, "failed", first_line(error), asked.default)
        return self._result(asked, found, special.times, time.monotonic() - started)

    def _result(self, asked: Asked, found: Found, special: dict[str, Measured], seconds: float) -> Result:
        for name, reason in found.wrong.items():
            log.warning("%s is wrong for %s, and is not timed: %s", name, problem_text(asked.problem), reason)
        status, reason, best = verdict(asked, found)
        if status == "measured":
            self.book.add(self.record(asked, found.times))
        return Result(
            problem=asked.problem,
            status=status,
            reason=reason,
            default=asked.default,
            best=best,
            times=found.times,
            wrong=found.wrong,
            specialised=special,
            seconds=seconds,
            gpu_ms=found.gpu_us / 1e3,
        )

    def record(self, asked: Asked, times: dict[str, Measured]) -> Record:
        """The record of what was measured."""
        return self.tuner.record(asked, times, self.clock.mhz)


def verdict(asked: Asked, found: Found) -> tuple[str, str, str]:
    """Status, reason and best variant: noise must not put another variant in the place of the default."""
    if not found.times:
        return "failed", "no candidate gave a right result", ""
    best = ranked({name: one.us for name, one in found.times.items()}, asked.default)[0]
    if found.noisy and best != asked.default:
        spread = found.times[best].spread
        return "noisy", f"times spread by {spread:.0%}: does something else run on the GPU?", asked.default
    return "measured", "", best
