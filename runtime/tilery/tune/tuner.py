"""One problem on one GPU: its candidates made ready, compared, and written down as a Record."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import blocklist, image, jit, specialise
from ..decision import Decision
from ..dispatch import choose
from ..errors import CompileError, DriverError, PackError, TileryError, first_line
from ..generator.records import HASH_DIGITS, Record, Time
from ..generator.variant import Variant
from ..lookup import record_key
from ..pack import Pack
from ..policy import Policy
from ..problem import Problem
from ..store import Store
from .candidates import Candidate, candidates, load
from .gpu import Gpu
from .measure import Found, Measured, compare
from .trials import Trials

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """A problem with what may serve it.

    Attributes:
        problem: what is asked.
        candidates: the most promising first.
        decision: what the pack alone would choose, or None where nothing can serve.
    """

    problem: Problem
    candidates: list[Candidate]
    decision: Decision | None

    @property
    def default(self) -> str:
        """The variant that serves before anything is measured here, or ""."""
        return self.decision.variant.name if self.decision else ""


@dataclass
class Tuner:
    """Measures problems on a GPU.

    Attributes:
        gpu: the GPU, whose context is current.
        pack: whose variants are measured.
        settings: the policy; a forced variant does not matter here.
        store: where compiled code is kept, and what is blocked.
        target: the arch for which NVRTC compiles, or None where it is not needed.
        jit: whether variants without an image are candidates.
        failed: by variant, why it could not be made ready.
        resident: by variant, blocks of it that an SM holds at once.
    """

    gpu: Gpu
    pack: Pack
    settings: Policy
    store: Store
    target: str | None = None
    jit: bool = False
    failed: dict[str, str] = field(default_factory=dict)
    resident: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocked = blocklist.known({}, self.store, self.gpu.info, self.pack)

    def ask(self, problem: Problem) -> Asked:
        """The candidates for a problem, and what the pack alone would choose."""
        try:
            settings = replace(self.settings, force_variant=None)
            decision = choose(problem, self.gpu.info, self.pack, settings, blocked=self.blocked)
        except TileryError:
            decision = None
        first = [one[0] for one in decision.ranked] if decision else ()
        target, out = self.target if self.jit else None, {**self.blocked, **self.failed}
        found = candidates(problem, self.gpu.info, self.pack, target=target, blocked=out, first=first)
        return Asked(problem, found, decision)

    def measure(self, asked: Asked, budget_us: float = math.inf, constants: int = 0) -> tuple[Found, Found]:
        """Compare the candidates.

        Args:
            asked: the problem.
            budget_us: time of the GPU that may be taken.
            constants: so many of the best are also compared with kernels that have sizes and strides as constants.

        Returns:
            What was found of the candidates, and of the kernels with constants.

        Raises:
            Skip: there is no memory, no work or no time for it.
            DriverError: a kernel's fault.
        """
        layout = self.gpu.layout(asked.problem)
        kernels = self._kernels(asked.candidates)
        if not kernels:
            return Found(), Found()
        operands = self.gpu.place(layout)
        with Trials(operands, kernels) as trials:
            found = compare(trials, list(kernels), asked.default, budget_us)
        if not constants or not found.times:
            return found, Found()
        best = sorted(found.times, key=lambda name: found.times[name].us)[:constants]
        baked = specialise.constants_of(operands.params(0))
        special = [self._special(kernels[name][0], baked) for name in best]
        with Trials(operands, {best[0]: kernels[best[0]]} | self._kernels(special)) as trials:
            return found, compare(trials, list(trials.names), best[0], budget_us)

    def _special(self, variant: Variant, constants: Any) -> Candidate:
        assert self.target is not None, "kernels with constants need NVRTC"
        return Candidate(replace(variant, constants=constants), "jit", self.target)

    def _kernels(self, found: Iterable[Candidate]) -> dict[str, tuple[Variant, Any]]:
        kernels: dict[str, tuple[Variant, Any]] = {}
        for one in found:
            try:
                kernel = load(one, self.pack, self.gpu.ordinal, self.store)
                kernels[one.variant.name] = one.variant, kernel
                if one.variant.name not in self.resident:
                    self.resident[one.variant.name] = image.resident(kernel, one.variant)
            except (CompileError, DriverError, PackError) as error:
                if isinstance(error, DriverError) and error.name not in image.IMAGE_FAULTS:
                    raise
                self.failed[one.variant.name] = first_line(error)
                log.warning("%s is not measured: %s", one.variant.name, first_line(error))
        return kernels

    def hashes(self, asked: Asked) -> dict[str, str]:
        """The first digits of the content hash of each candidate."""
        names = [one.variant.name for one in asked.candidates]
        return {name: self.pack.hashes[name][:HASH_DIGITS] for name in names}

    def record(self, asked: Asked, times: Mapping[str, Measured], clock_mhz: int) -> Record:
        """The record of what was measured."""
        hashes = self.hashes(asked)
        found = {n: Time(one.us, one.spread, hashes[n], self.resident[n]) for n, one in times.items()}
        driver = blocklist.driver(self.gpu.info)
        return Record(
            "measured", self.gpu.info.gpu, self._toolchain(asked), driver, clock_mhz, record_key(asked.problem), found
        )

    def _toolchain(self, asked: Asked) -> str:
        for one in asked.candidates:
            found = self.pack.image_of(one.arch, one.variant) if one.source == "image" else None
            if found is not None and found.cuda:
                return found.cuda
        return jit.toolchain().version
