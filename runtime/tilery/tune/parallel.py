"""Several GPUs side by side: a process for each, whose results the parent writes down."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .. import device as devices
from .. import policy
from ..device import DeviceInfo
from ..errors import TileryError, first_line
from ..generator.records import Record, same_silicon
from ..pack import builtin
from ..policy import Policy
from ..problem import Problem
from ..store import Store, store_for
from .book import Book, keeper, read
from .result import Report, Result
from .session import STOPPED, Options, Progress, run, tune

# A child that was interrupted ends with the problem that it measures; one that hangs is ended.
END_SECONDS = 60.0
POLL_SECONDS = 1.0


class Job(NamedTuple):
    """What one process does.

    Attributes:
        device: its GPU.
        problems: its share.
        known: the records of the file, or None where there is none.
        settings: the policy.
        stored: whether records also go to the store.
        jit, specialise, budget_s: as in `tilery.tune.session.tune`.
    """

    device: int
    problems: list[Problem]
    known: list[Record] | None
    settings: Policy
    stored: bool
    jit: bool
    specialise: int
    budget_s: float | None


def shares(problems: Sequence[Problem], gpus: Sequence[DeviceInfo]) -> dict[int, list[Problem]]:
    """The problems of each GPU by its number: dealt out among GPUs of one silicon, all of them to each silicon."""
    groups: list[list[DeviceInfo]] = []
    for gpu in gpus:
        alike = next((group for group in groups if same_silicon(group[0].gpu, gpu.gpu)), None)
        if alike is None:
            groups.append([gpu])
        else:
            alike.append(gpu)
    return {
        gpu.ordinal or 0: list(problems[index :: len(group)]) for group in groups for index, gpu in enumerate(group)
    }


def tune_all(
    problems: Iterable[Problem],
    numbers: Sequence[int],
    jit: bool = False,
    out: Path | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    budget_s: float | None = None,
    specialise: int = 0,
) -> Report:
    """Measure problems on several GPUs, see `tilery.tune.session.tune`; GPUs of one silicon share them.

    Raises:
        InvalidInput: there is no such GPU, or ``out`` holds something else.
        TileryError: a process failed; what the others measured is kept.
    """
    if len(numbers) == 1:
        return tune(problems, numbers[0], jit, out, store, progress, budget_s, specialise)
    gpus = [devices.info(number) for number in dict.fromkeys(numbers)]
    known, settings = None if out is None else read(out), policy.current()
    parts = shares(list(dict.fromkeys(problems)), gpus)
    jobs = [
        Job(number, part, known, settings, store is not None, jit, specialise, budget_s)
        for number, part in parts.items()
    ]
    return Parent(jobs, gpus, keeper(out, store, builtin()), progress).run()


class Parent:
    """Starts the processes, and writes down what they find."""

    def __init__(self, jobs: list[Job], gpus: list[DeviceInfo], keep: Any, progress: Progress | None) -> None:
        self._jobs, self._gpus, self._keep, self._progress = jobs, gpus, keep, progress
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._queue: Any = context.Queue()
        self._children = {job.device: context.Process(target=work, args=(job, self._queue)) for job in jobs}
        self._results: list[Result] = []
        self._ends: dict[int, Report | str] = {}
        self._notes: list[str] = []

    def run(self) -> Report:
        """All results, once every process has ended."""
        started = time.monotonic()
        for child in self._children.values():
            child.start()
        try:
            self._gather(float("inf"))
        except KeyboardInterrupt:  # the children get it too
            self._notes.append(STOPPED)
            with suppress(KeyboardInterrupt):
                self._gather(time.monotonic() + END_SECONDS)
        finally:
            self._end()
        return self._report(time.monotonic() - started)

    def _gather(self, until: float) -> None:
        while len(self._ends) < len(self._jobs) and time.monotonic() < until:
            try:
                kind, number, found = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self._look()
                continue
            self._take(kind, number, found)

    def _take(self, kind: str, number: int, found: Any) -> None:
        if kind == "record":
            self._keep(found)
        elif kind == "end":
            self._ends[number] = found
        else:
            self._results.append(found)
            if self._progress is not None:
                self._progress(found)

    def _look(self) -> None:
        """Note the children that ended without a word, once all that they said was taken."""
        for number, child in self._children.items():
            if number not in self._ends and child.exitcode is not None:
                self._ends[number] = f"its process ended with code {child.exitcode}"

    def _end(self) -> None:
        for child in self._children.values():
            child.join(POLL_SECONDS)
            if child.is_alive():
                child.terminate()
                child.join()

    def _report(self, seconds: float) -> Report:
        failed = {number: end for number, end in self._ends.items() if isinstance(end, str)}
        if failed and STOPPED not in self._notes:
            found = "; ".join(f"GPU {number}: {reason}" for number, reason in sorted(failed.items()))
            raise TileryError(f"{found}. What was measured before is kept: run the same again to go on")
        reports = [end for end in self._ends.values() if isinstance(end, Report)]
        uncompiled = {name: why for one in reports for name, why in one.uncompiled.items()}
        notes = dict.fromkeys([*self._notes, *(note for one in reports for note in one.notes)])
        names = ", ".join(str(gpu) for gpu in self._gpus)
        asked = sum(len(job.problems) for job in self._jobs)
        return Report(names, tuple(self._results), asked, seconds, uncompiled, tuple(notes))


def work(job: Job, found: Any) -> None:
    """In the child: measure, and send what comes: ("record" | "result" | "end", number of the GPU, it)."""
    number = job.device
    try:
        with policy.scope(replace(job.settings)):  # its hash is that of the parent's process
            found.put(("end", number, _work(job, found)))
    except TileryError as error:
        found.put(("end", number, first_line(error)))


def _work(job: Job, found: Any) -> Report:
    number, store = job.device, store_for(job.settings)
    stored = store if job.stored else None
    book = Book(
        devices.info(number).gpu, builtin(), job.known, stored, lambda record: found.put(("record", number, record))
    )
    options = Options(job.jit, job.specialise, job.budget_s, store)
    return run(job.problems, number, book, options, lambda result: found.put(("result", number, result)))
