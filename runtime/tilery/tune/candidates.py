"""The variants that may serve a problem, and their kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from .. import device, image, jit
from ..device import DeviceInfo
from ..dispatch import FALLBACK_FLOPS
from ..errors import TileryError, first_line
from ..generator.variant import Variant
from ..pack import Pack
from ..problem import Problem
from ..requirements import REQUIREMENTS, features
from ..store import Store


class Candidate(NamedTuple):
    """A variant, and where its code comes from: ``image`` or ``jit``, of which arch."""

    variant: Variant
    source: str
    arch: str


def candidates(
    problem: Problem,
    gpu: DeviceInfo,
    pack: Pack,
    *,
    target: str | None = None,
    blocked: Mapping[str, str] | None = None,
    first: Iterable[str] = (),
) -> list[Candidate]:
    """The variants whose requirements hold and that can run on a GPU, the most promising first.

    Args:
        problem: what is asked.
        gpu: where.
        pack: what there is.
        target: the arch for which NVRTC compiles variants without an image, or None to leave these out.
        blocked: variants that `tilery verify` found wrong.
        first: names in the order in which dispatch ranks them; the others follow by name.
    """
    archs = image.order(pack.archs, gpu.cc)
    present = features(pack, archs)
    small = 2.0 * problem.m * problem.n * problem.k * problem.batch <= FALLBACK_FLOPS
    found = []
    for variant in pack.variants.values():
        out = variant.op != problem.op or variant.name in (blocked or {})
        out = out or (variant.family == pack.fallback.get(problem.op) and not small)
        if not out and not any(rule(variant, problem, gpu, present) for rule in REQUIREMENTS):
            found += _code(variant, archs, pack, target)
    place = {name: index for index, name in enumerate(first)}
    return sorted(found, key=lambda one: (place.get(one.variant.name, len(place)), one.variant.name))


def _code(variant: Variant, archs: Iterable[str], pack: Pack, target: str | None) -> list[Candidate]:
    arch = next((arch for arch in archs if pack.image_of(arch, variant)), None)
    if arch is not None:
        return [Candidate(variant, "image", arch)]
    return [Candidate(variant, "jit", target)] if target else []


def target_of(gpu: DeviceInfo, pack: Pack) -> str:
    """The arch for which NVRTC compiles for a GPU.

    Raises:
        TileryError: there is no NVRTC, or it has no target for this GPU.
    """
    tools = jit.toolchain()
    found = jit.target(gpu.cc, pack.archs, tools)
    if found is None:
        raise TileryError(
            f"nothing can be compiled for {gpu}: {tools.why_none or f'NVRTC {tools.version} has no target for it'}. "
            "Without --jit only the variants with an image are measured."
        )
    return found


def load(candidate: Candidate, pack: Pack, ordinal: int, store: Store) -> Any:
    """The kernel of a candidate on a GPU; compiled now where it is neither in an image nor in the store.

    Raises:
        CompileError, DriverError, PackError: it cannot be made ready.
    """
    variant, arch = candidate.variant, candidate.arch
    if candidate.source == "image":
        found = pack.image_of(arch, variant)
        assert found is not None, f"{variant.name} is a candidate from an image that {arch} does not have"
        with device.relaxed():
            return image.load(found, variant, ordinal)
    key = f"jit {arch} {variant.name}"  # the same as in plan.py, so that nothing is loaded twice
    data = b""
    if not image.is_loaded(key, variant, ordinal):
        data = jit.compile_variant(variant, arch, pack=pack, store=store).data
    with device.relaxed():
        return image.load_code(key, data, variant, ordinal, f"NVRTC for {arch}", jit.toolchain().version)


def compile_ahead(
    found: Iterable[Candidate], pack: Pack, store: Store, progress: Callable[[str], None] = lambda name: None
) -> dict[str, str]:
    """Compile what comes from NVRTC, on all cores at once; by name, why some could not be compiled.

    Args:
        found: the candidates of all problems; those with an image are left alone.
        pack: theirs.
        store: where the code is kept.
        progress: called with each name, from any thread.
    """
    todo = {one.variant.name: one for one in found if one.source == "jit"}
    failed: dict[str, str] = {}

    def compile_one(one: Candidate) -> None:
        try:
            jit.compile_variant(one.variant, one.arch, pack=pack, store=store)
        except TileryError as error:
            failed[one.variant.name] = first_line(error)
        progress(one.variant.name)

    if todo:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(compile_one, todo.values()))
    return failed
