"""What the tests let child processes run in place of `tilery.examine.work`. They are found by their names there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tilery.errors import DriverError
from tilery.examine import Job, Outcome, Pipe
from tilery.launch import GemmParams
from tilery.problem import Problem

RIGHT = Outcome("ok", 6, 0.25)
WRONG = Outcome("wrong", 6, 3.2, "error 3.2 times the bound", "m=1 n=1 k=1")
LIBRARY, ASTRAY = "PLANTED_LIBRARY", "ASTRAY_VARIANT"


def steps(pipe: Pipe, name: str, outcome: Outcome) -> None:
    for message in (("start", name), ("run", name), ("done", name, outcome)):
        pipe.send(message)


def wrong_simt(pipe: Pipe, job: Job) -> None:
    for name in job.names:
        steps(pipe, name, WRONG if "simt" in name else RIGHT)


def right(pipe: Pipe, job: Job) -> None:
    for name in job.names:
        steps(pipe, name, RIGHT)


def faulty(pipe: Pipe, job: Job) -> None:
    """Each way to fail, by what the name holds."""
    for name in job.names:
        pipe.send(("start", name))
        if "128x256" in name:
            os._exit(3)
        pipe.send(("run", name))
        if "64x64" in name:
            os.kill(os.getpid(), signal.SIGKILL)
        if "naive_f32" in name:
            time.sleep(600)
        pipe.send(("done", name, RIGHT))
        if "f32_nt" in name:
            return  # as after a fault of the GPU's context


def dead(pipe: Pipe, job: Job) -> None:
    os._exit(9)


def not_run(pipe: Pipe, job: Job) -> None:
    for name in job.names:
        steps(pipe, name, Outcome("not run", fault=str(DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"))))


class Astray:
    """A Plan whose kernel writes where nothing is."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def launch(self, params: GemmParams) -> None:
        params.d = 16
        self.plan.launch(params)


def astray(pipe: Pipe, job: Job) -> None:
    """The real thing on a GPU, but for the variant that a variable names."""
    from tilery import examine

    real = examine._plan

    def make(problem: Problem, ordinal: int | None) -> Any:
        made = real(problem, ordinal)
        return Astray(made) if made.decision.variant.name == os.environ[ASTRAY] else made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine, "_plan", make)
        examine.work(pipe, job)


def planted(pipe: Pipe, job: Job) -> None:
    """The real thing, on the pack of the library that a variable names."""
    from tests.verify.planted import installed
    from tilery import examine

    with installed(Path(os.environ[LIBRARY])):
        examine.work(pipe, job)
