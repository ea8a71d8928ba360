"""Verify: every variant of the pack against the reference, in child processes, and what was wrong on the blocklist."""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from . import blocklist, image, jit
from .blocklist import Finding, Subject
from .device import DeviceInfo
from .errors import TileryError, UnknownName
from .examine import Job, Outcome, Pipe, work
from .generator.variant import Variant
from .pack import Pack
from .policy import Policy
from .problem import Problem
from .requirements import features, features_present, shared_fits
from .store import Store

Worker = Callable[[Pipe, Job], None]

LIMIT_S = 120.0
# A process that is killed while the driver works for it ends when the driver lets it.
END_S = 20.0
# Until a process has imported what it needs, on a slow disk.
START_S = 120.0


class Chosen(NamedTuple):
    """What is to be verified, and what is not, with the reason."""

    variants: tuple[Variant, ...]
    skipped: dict[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one variant.

    Attributes:
        variant, source, arch: what was run; no arch for what is compiled at run time.
        hash: of its source and headers.
        outcome: what was found.
        seconds: what it took.
        block: what was done about it: ``blocked``, ``unblocked`` or "", or why neither could be done.
    """

    variant: str
    source: str
    arch: str
    hash: str
    outcome: Outcome
    seconds: float
    block: str = ""

    @property
    def ok(self) -> bool:
        """Whether every case was right."""
        return self.outcome.status == "ok"

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it; an infinite error is null."""
        error = self.outcome.error if math.isfinite(self.outcome.error) else None
        mine = {key: getattr(self, key) for key in ("variant", "source", "arch", "hash", "seconds", "block")}
        return mine | asdict(self.outcome) | {"error": error}


@dataclass
class Report:
    """What became of all variants.

    Attributes:
        identity: GPU, driver, toolchain and pack.
        seed: of the data, to repeat the run.
        results: as they came.
        skipped: variants that were not run, with the reason.
        seconds: from begin to end.
    """

    identity: dict[str, Any]
    seed: int
    results: list[Result] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Result]:
        """Those that are not right."""
        return [result for result in self.results if not result.ok]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return self.identity | {
            "seed": self.seed,
            "ok": not self.failed,
            "seconds": self.seconds,
            "results": [result.to_dict() for result in self.results],
            "skipped": self.skipped,
        }

    def write(self, file: Path) -> None:
        """Write it to a file, as JSON.

        Raises:
            TileryError: it cannot be written.
        """
        try:
            file.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise TileryError(f"the report cannot be written: {error}") from None


def choose(pack: Pack, gpu: DeviceInfo, pattern: str = "*", compiled: bool = False) -> Chosen:
    """The variants to verify on a GPU: those with an image for it, and with ``compiled`` those that the JIT compiles.

    Raises:
        UnknownName: no variant is called so.
        TileryError: none of them can be run here.
    """
    named = [variant for name, variant in pack.variants.items() if fnmatchcase(name, pattern)]
    if not named:
        raise UnknownName("variant", pattern, pack.variants, "A pattern may hold * and ?.")
    reasons = {variant.name: _why_not(variant, pack, gpu, compiled) for variant in named}
    skipped = {name: reason for name, reason in reasons.items() if reason}
    if len(skipped) == len(named):
        why = next(iter(skipped.values()))
        raise TileryError(f"none of {len(named)} variants called {pattern!r} can be verified on {gpu}: {why}")
    return Chosen(tuple(variant for variant in named if variant.name not in skipped), skipped)


def _why_not(variant: Variant, pack: Pack, gpu: DeviceInfo, compiled: bool) -> str:
    """Why a variant is not verified, or ""."""
    present = features(pack, image.order(pack.archs, gpu.cc))
    problem = Problem(variant.op, 1, 1, 1, 1, "f32", "f32", "nn", 1)
    if why := shared_fits(variant, problem, gpu, present) or features_present(variant, problem, gpu, present):
        return why
    if compiled or blocklist.source_of(variant, gpu, pack)[0] == "image":
        return ""
    return "no image for this device has it; --jit verifies what is compiled at run time"


def identity(pack: Pack, gpu: DeviceInfo) -> dict[str, Any]:
    """What a report is about."""
    return {
        "tilery": pack.version,
        "device": gpu.to_dict(),
        "driver": blocklist.driver(gpu),
        "images_cuda": sorted({one.cuda for images in pack.images.values() for one in images.values()}),
        "nvrtc": jit.toolchain().version,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@dataclass
class Verifier:
    """One run on one GPU.

    Attributes:
        pack, gpu: what is verified where.
        store: whose blocklist is kept.
        limit_s: how long a variant may take to be made ready, and to run.
        worker: what the child processes run.
    """

    pack: Pack
    gpu: DeviceInfo
    store: Store
    limit_s: float = LIMIT_S
    worker: Worker = work

    def run(
        self, chosen: Chosen, seed: int, settings: Policy, progress: Callable[[Result], None] = lambda result: None
    ) -> Report:
        """Examine each variant, keep what is wrong on the blocklist, and take off it what is right.

        Args:
            chosen: what to examine.
            seed: of the data.
            settings: the policy of the child processes.
            progress: called with each Result as it comes.
        """
        began = before = time.perf_counter()
        report = Report(identity(self.pack, self.gpu), seed, skipped=dict(chosen.skipped))
        known = list(blocklist.findings(self.store))
        names = tuple(variant.name for variant in chosen.variants)
        for name, outcome in outcomes(Job(names, self.gpu.ordinal, seed, settings), self):
            now = time.perf_counter()
            result = self._result(self.pack.variants[name], outcome, now - before, known)
            before = now
            report.results.append(result)
            progress(result)
        report.seconds = time.perf_counter() - began
        return report

    def _result(self, variant: Variant, outcome: Outcome, seconds: float, known: list[Finding]) -> Result:
        source, arch = blocklist.source_of(variant, self.gpu, self.pack)
        subject = blocklist.subject(variant, source, self.gpu, self.pack)
        about = [one for one in known if one.subject.place == subject.place]
        block = ""
        if outcome.status == "wrong":
            block = self._block(subject, outcome.fault, about)
        elif outcome.status == "ok" and about:
            block = self._unblock(about)
        return Result(variant.name, source, arch, subject.hash, outcome, seconds, block)

    def _block(self, subject: Subject, fault: str, about: list[Finding]) -> str:
        today = datetime.now(UTC).date().isoformat()
        why_not = blocklist.put(self.store, subject, self.gpu.name, today, fault)
        if why_not:
            return f"not blocked: {why_not}"
        for one in about:  # of an earlier driver, say
            if one.subject != subject:
                blocklist.remove(one)
        return "blocked"

    def _unblock(self, about: list[Finding]) -> str:
        left = {one: why for one in about if (why := blocklist.remove(one))}
        blocking = [why for one, why in left.items() if not blocklist.outdated(one.subject, self.gpu, self.pack)]
        return f"still blocked: {blocking[0]}" if blocking else "unblocked" if len(left) < len(about) else ""


def outcomes(job: Job, run: Verifier) -> Iterator[tuple[str, Outcome]]:
    """The Outcome of each variant of a job. One child works through them; where it dies, the next goes on."""
    left, began = list(job.names), True
    while left and began:
        began = False
        with _child(run.worker, job._replace(names=tuple(left))) as (process, pipe):
            for name, outcome in _listen(process, pipe, run.limit_s):
                began = True
                left.remove(name)
                yield name, outcome
                if not left:
                    process.join(END_S)
                    return
    for name in left:
        yield name, Outcome("not run", fault="the process that was to run it ended before it began; its error is above")


@contextmanager
def _child(worker: Worker, job: Job) -> Iterator[tuple[BaseProcess, Connection]]:
    """A process with its pipe, and its end. CUDA does not survive a fork."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=worker, args=(sending, job), daemon=True)
    process.start()
    sending.close()
    try:
        yield process, receiving
    finally:
        process.kill()
        process.join(END_S)
        receiving.close()


def _listen(process: BaseProcess, pipe: Connection, limit_s: float) -> Iterator[tuple[str, Outcome]]:
    """What a child tells until it ends or takes too long; the variant under way is then the one at fault."""
    step, name, patience = "", "", START_S
    while True:
        try:
            message = pipe.recv() if pipe.poll(patience) else None
        except (EOFError, OSError):
            break
        if message is None:
            process.kill()
            if name:
                yield name, _cut_off(step, f"no end within {limit_s:g} s")
            return
        (step, name), patience = message[:2], limit_s
        if step == "done":
            yield name, message[2]
            name = ""
    process.join(END_S)
    if name:
        yield name, _cut_off(step, f"its process ended with {_ending(process.exitcode)}")


def _cut_off(step: str, fault: str) -> Outcome:
    """Only a variant that ran is known to be wrong."""
    return Outcome("wrong", fault=fault) if step == "run" else Outcome("not run", fault=f"while made ready: {fault}")


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
