"""What was measured on a GPU, and under which key a Problem's measurements are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from .device import DeviceInfo
from .generator.cost import Coefficients
from .generator.records import Gpu, Key, epilogue_of, same_silicon
from .pack import Measured, Pack
from .problem import OUT_DTYPES, Problem
from .requirements import compute_dtype

T = TypeVar("T")


def record_key(problem: Problem) -> Key:
    """The key of a Problem's record."""
    p = problem
    epilogue = epilogue_of(p.accumulate, p.bias, p.activation)
    return Key(p.op, compute_dtype(p), p.layout, p.align, p.m, p.n, p.k, p.batch, p.out_dtype, epilogue)


def plain_key(problem: Problem) -> Key:
    """The key of the same product without an epilogue, in the default output dtype."""
    return record_key(problem)._replace(out_dtype=OUT_DTYPES[problem.dtype][0], epilogue="")


def of_silicon(by_gpu: Mapping[Gpu, T], device: DeviceInfo) -> T | None:
    """What was found on GPUs of this silicon."""
    gpu = device.gpu
    return next((found for one, found in by_gpu.items() if same_silicon(one, gpu)), None)


def records(pack: Pack, device: DeviceInfo) -> Mapping[Key, Measured]:
    """The pack's measurements on GPUs of this silicon."""
    return of_silicon(pack.records, device) or {}


def coefficients(pack: Pack, device: DeviceInfo) -> Mapping[str, Coefficients]:
    """The cost model's coefficients for a GPU: fitted on its silicon, else on a GPU of its compute capability.

    They are in clocks and parts, so that on another GPU its own clock, SMs and bandwidth count.
    """
    if device.is_host:
        return {}
    related = (found for gpu, found in pack.coefficients.items() if gpu.cc == device.cc)
    return of_silicon(pack.coefficients, device) or next(related, {})
