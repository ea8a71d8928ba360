"""What a variant needs of a Problem and a GPU: one predicate each, which gives the reason against or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .cost import ceil_div
from .device import DeviceInfo
from .generator.variant import Variant
from .pack import Pack
from .problem import ITEM_BYTES, Problem

Features = frozenset[str]
Requirement = Callable[[Variant, Problem, DeviceInfo, Features], str | None]

MAX_BLOCKS = 2**31 - 1  # of a grid, along x


def compute_dtype(problem: Problem) -> str:
    """The dtype that the problem is computed in: tf32 where f32 inputs may be rounded to it."""
    return "tf32" if problem.precision == "tf32" else problem.dtype


def features(pack: Pack, archs: Iterable[str]) -> Features:
    """What a GPU can do, given the archs of the pack that serve it."""
    return frozenset(feature for arch in archs for feature in pack.archs[arch].features)


def dtype_matches(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """An f32 variant also serves a problem that would allow tf32."""
    if variant.dtype in (problem.dtype, compute_dtype(problem)):
        return None
    return f"it computes in {variant.dtype}, the problem in {compute_dtype(problem)}"


def layout_matches(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """The variant's layout is the problem's, or ``any``."""
    if variant.layout in (problem.layout, "any"):
        return None
    return f"its layout is {variant.layout}, the problem's {problem.layout}"


def align_suffices(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """Pointers and rows are aligned to what the variant loads at once."""
    if variant.align <= problem.align:
        return None
    return f"it needs rows aligned to {variant.align} bytes, the problem's are to {problem.align}"


def whole_elements(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """Addresses within an element, which only the CPU takes, need a kernel that reads element by element."""
    if problem.align >= ITEM_BYTES[problem.dtype] or variant.layout == "any" or not device.is_host:
        return None
    return f"it reads whole {problem.dtype} elements, and the problem's begin at odd addresses"


def shared_fits(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """A block's shared memory fits in the GPU's."""
    if variant.shared_bytes <= device.shared_bytes:
        return None
    return f"a block needs {variant.shared_bytes} bytes of shared memory, {device.name} gives {device.shared_bytes}"


def features_present(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """The GPU has what the code uses."""
    missing = [feature for feature in variant.features if feature not in features]
    return f"it needs {', '.join(missing)}, which {device.name} does not have" if missing else None


def grid_fits(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """The tiles of one product are one dimension of the grid."""
    tile_m, tile_n, _ = variant["tile"]
    blocks = ceil_div(problem.m, tile_m) * ceil_div(problem.n, tile_n)
    return f"it would take {blocks} blocks, a grid has at most {MAX_BLOCKS}" if blocks > MAX_BLOCKS else None


REQUIREMENTS: tuple[Requirement, ...] = (
    dtype_matches,
    layout_matches,
    align_suffices,
    whole_elements,
    shared_fits,
    features_present,
    grid_fits,
)
