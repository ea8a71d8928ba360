"""Advice: what would change a Decision, found by deciding again with one thing changed. `tilery.explain` alone asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from . import image
from .decision import Advice, Decision
from .device import DeviceInfo
from .errors import TileryError
from .generator.variant import Variant
from .geometry import alignment
from .pack import Image, Pack
from .policy import Policy
from .problem import ITEM_BYTES, SIZE_LIMIT, Problem

Decide = Callable[[Problem, Policy, Pack], Decision]

# A change of the caller's data is named only where it is worth this much of the time.
WORTH = 0.95
WIDEST = 16
LAYOUTS = ("nn", "nt", "tn", "tt")

SETTINGS: tuple[tuple[str, str, Any, str], ...] = (
    ("force_variant", "", None, "without TILERY_FORCE_VARIANT"),
    ("jit", "off background", "auto", "TILERY_JIT=auto"),
    ("numerics", "deterministic batch_invariant", "fast", "TILERY_NUMERICS=fast"),
)
"""A setting, the values of it that are changed ("" for any), the value that it gets, and how to say so."""


def explained(problem: Problem, device: DeviceInfo) -> Decision:
    """The Decision that a call would get now, with advice.

    Raises:
        UnsupportedProblem: nothing can serve the problem.
    """
    from .pack import builtin
    from .policy import current

    settings, pack = current(), builtin()
    chosen = decide_now(device, problem, settings, pack)
    return replace(chosen, advice=advise(chosen, settings, pack, partial(decide_now, device)))


def decide_now(device: DeviceInfo, problem: Problem, settings: Policy, pack: Pack) -> Decision:
    """The Decision that a call would get now on a device, present or described."""
    if device.is_host:
        from .host import plan as host

        return host.decide(problem, pack, settings)
    from . import plan

    return plan.decide(problem, device, pack, settings)


def advise(chosen: Decision, settings: Policy, pack: Pack, decide: Decide) -> tuple[Advice, ...]:
    """What would change a Decision, each found with ``decide``.

    Args:
        chosen: the Decision.
        settings: the policy that it was made under.
        pack: what it was chosen from.
        decide: the choice for a Problem, policy and pack, on the same GPU, pure.
    """

    def again(problem: Problem, policy: Policy, other: Pack = pack) -> Decision | None:
        try:
            return decide(problem, policy, other)
        except TileryError:
            return None

    found = [*_settings(chosen, settings, again), *_image(chosen, settings, pack, again)]
    return (*found, *_data(chosen, settings, again), *_tune(chosen))


Again = Callable[..., Decision | None]


def _instead(chosen: Decision, other: Decision, verb: str = "serve with") -> str:
    return f"would {verb} {other.variant.name}, {other.ranked[0]} against {chosen.us:.1f}"


def _settings(chosen: Decision, settings: Policy, again: Again) -> Iterator[Advice]:
    for name, changed, value, words in SETTINGS:
        have = getattr(settings, name)
        if have == value or (changed and have not in changed.split()):
            continue
        other = again(chosen.problem, replace(settings, **{name: value}))
        if other and other.variant != chosen.variant:
            compiles = other.source == "jit" and chosen.source != "jit"
            yield Advice(words, _instead(chosen, other, "compile" if compiles else "serve with"))


def _image(chosen: Decision, settings: Policy, pack: Pack, again: Again) -> Iterator[Advice]:
    """Machine code of what would otherwise be compiled, or replaced by PTX or the fallback."""
    archs = [arch for arch in image.order(pack.archs, chosen.device.cc) if image.is_sass(arch)]
    if chosen.source == "image" and chosen.tier not in ("portable", "fallback"):
        return
    best = again(chosen.problem, replace(settings, jit="auto", force_variant=None)) or chosen
    if not archs or (best.tier == "fallback" and chosen.tier == "fallback"):
        return
    other = again(chosen.problem, settings, with_image(pack, archs[0], best.variant))
    if other and (other.source, other.arch) == ("image", archs[0]):
        built = [f"TILERY_ARCHS={archs[0]}"] if not chosen.device.is_host else []
        built += [f"TILERY_TIER={best.variant.tier}"] if best.variant.tier != "core" else []
        yield Advice(
            f"an image of {best.variant.name} for {archs[0]} (build with {', '.join(built) or 'the host device'})",
            f"would serve without compiling, {other.ranked[0]}",
        )


def with_image(pack: Pack, arch: str, variant: Variant) -> Pack:
    """The pack as it would be with an image of the variant for an arch."""
    images = dict(pack.images.get(arch, {}))
    names = images[variant.image].variants if variant.image in images else ()
    images[variant.image] = Image(arch, variant.image, Path(variant.image), "", 0, (*names, variant.name))
    return replace(pack, images={**pack.images, arch: images})


def _data(chosen: Decision, settings: Policy, again: Again) -> Iterator[Advice]:
    """Other data: alignment, layout, precision."""
    p = chosen.problem
    if (aligned := _aligned(p)) and (other := _better(chosen, settings, again, aligned[1])):
        yield Advice(aligned[0], _instead(chosen, other))
    layouts = [_packed(replace(p, layout=layout, align=1)) for layout in LAYOUTS if layout != p.layout]
    others = [other for problem in layouts if (other := _better(chosen, settings, again, problem))]
    if others:
        least = min(one.us for one in others)
        near = (one for one in others if WORTH * one.us <= least)
        other = min(near, key=lambda one: (len(_copied(p.layout, one.problem.layout)), one.us))
        copied = " and ".join(_copied(p.layout, other.problem.layout))
        words = f"{copied} copied to layout {other.problem.layout} (the copy is not counted)"
        yield Advice(words, _instead(chosen, other))
    if p.dtype == "f32" and p.precision == "ieee":
        other = _better(chosen, settings, again, replace(p, precision="tf32"))
        if other:
            yield Advice("precision='tf32', where inputs may be rounded to 11 bits", _instead(chosen, other))


def _better(chosen: Decision, settings: Policy, again: Again, problem: Problem) -> Decision | None:
    other = again(problem, settings)
    return other if other and other.us < WORTH * chosen.us else None


def _packed(problem: Problem) -> Problem:
    """The problem for packed arrays."""
    item = ITEM_BYTES[problem.dtype]
    return replace(problem, align=alignment(*(size * item for size in problem.row_lengths)))


def _aligned(p: Problem) -> tuple[str, Problem] | None:
    """The problem with rows aligned to 16 bytes, and what that takes: padded sizes, where rows end in between."""
    if p.align >= WIDEST or p.layout == "any":
        return None
    rows = {"k" if p.layout[0] == "n" else "m", "n" if p.layout[1] == "n" else "k"}
    step = WIDEST // ITEM_BYTES[p.dtype]
    sizes = {name: -(-getattr(p, name) // step) * step for name in sorted(rows)}
    if max(sizes.values()) >= SIZE_LIMIT:
        return None
    padded = [f"{name} padded from {getattr(p, name)} to {size}" for name, size in sizes.items()]
    padded = [words for words, (name, size) in zip(padded, sizes.items(), strict=True) if size != getattr(p, name)]
    words = f"pointers and rows aligned to {WIDEST} bytes"
    return f"{words}{', with ' if padded else ''}{' and '.join(padded)}", replace(p, **sizes, align=WIDEST)


def _copied(old: str, new: str) -> str:
    """The inputs that another layout asks to copy."""
    if old == "any":
        return "AB"
    return "".join(name for name, before, after in zip("AB", old, new, strict=True) if before != after)


def _tune(chosen: Decision) -> Iterator[Advice]:
    if chosen.tier in ("forced", "fallback") or chosen.device.is_host or len(chosen.ranked) < 2:
        return
    if chosen.basis == "predicted":
        count = len(chosen.ranked)
        yield Advice("`tilery tune`", f"would replace the predictions for {count} variants by measurements")
