"""The problems that every variant is run on."""

from __future__ import annotations

from collections.abc import Iterator

from generator.variant import Variant
from tests.host.harness import SANITIZED
from tilery.errors import HostError
from tilery.host import Library
from tilery.problem import OUT_DTYPES
from tilery.trial import PACKED, Case, Epilogue, Odd, Shape, chunk, fit, input_dtype


def out_dtype(variant: Variant) -> str:
    return OUT_DTYPES[input_dtype(variant)][0]


def shapes(variant: Variant) -> list[Shape]:
    """Both sides of every tile edge, one element, and no k at all."""
    tile_m, tile_n, tile_k = variant["tile"]
    deep = variant["stages"] * tile_k if "stages" in dict(variant.config) else 2 * tile_k
    wanted = [
        Shape(1, 1, 1),
        Shape(tile_m, tile_n, 0),
        Shape(tile_m - 1, tile_n + 1, tile_k),
        Shape(tile_m + 1, tile_n - 1, tile_k + 1),
        Shape(3, 2 * tile_n + 5, deep - 1),
        Shape(2 * tile_m + 7, 9, deep + tile_k + 1),
        Shape(17, 33, 2 * tile_k - 1, batch=3),
    ]
    return [fit(variant, shape) for shape in wanted]


def odd(variant: Variant) -> Odd:
    """Pads, shifts and steps as odd as a variant allows."""
    if variant.align > 1:
        return Odd(pad=3 * chunk(variant))
    return Odd(pad=3, shift=1, step=2 if variant.layout == "any" else 1)


def edges(variant: Variant) -> Iterator[Case]:
    for seed, shape in enumerate(shapes(variant)):
        yield Case(variant, shape, Epilogue(out_dtype(variant)), PACKED, seed)


def odd_edges(variant: Variant) -> Iterator[Case]:
    for seed, shape in enumerate(shapes(variant)):
        yield Case(variant, shape, Epilogue(out_dtype(variant)), odd(variant), seed)


def epilogues(variant: Variant) -> Iterator[Case]:
    shape = fit(variant, Shape(variant["tile"][0] + 5, 23, 40))
    for seed, activation in enumerate(("none", "relu") if variant.dtype == "s8" else ("relu", "gelu", "silu")):
        epilogue = Epilogue(out_dtype(variant), alpha=-3, beta=2, bias=True, activation=activation)
        yield Case(variant, shape, epilogue, odd(variant), seed)


def told(case: Case, order: int) -> str:
    """All that is needed to repeat a launch; printed before it under sanitizers, which end the process."""
    text = f"{case.variant.name} {case.shape} {case.epilogue} {case.odd} seed {case.seed} order {order}"
    if SANITIZED:
        print(text, flush=True)
    return text


def check(case: Case, library: Library, *, watched: bool = True) -> None:
    """Run a case, its seed also that of the order of threads, and compare it with the reference."""
    text = told(case, case.seed)
    try:
        case.run(library, order=case.seed, check=watched)
    except HostError as error:
        error.add_note(text)
        raise
    assert case.error() <= 1, f"{text}: {case.wrong()}"


# A run under sanitizers takes three times as long, and finds by accesses rather than by numbers.
SEEDS = (1, 2) if SANITIZED else (1, 2, 3)
