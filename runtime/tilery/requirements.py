"""What a variant needs of a Problem and a GPU: one predicate each, which gives the reason against or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from .device import DeviceInfo
from .generator.variant import UNORDERED, Variant
from .generator.work import ceil_div
from .pack import Pack
from .problem import ITEM_BYTES, Problem

Features = frozenset[str]
Requirement = Callable[[Variant, Problem, DeviceInfo, Features], str | None]
Sums = tuple[str, str]
"""(accumulator, reduction), see `Variant.sums`."""

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


KIND: tuple[Requirement, ...] = (dtype_matches, layout_matches)
"""Whether a variant computes such products at all."""
REQUIREMENTS: tuple[Requirement, ...] = (
    *KIND,
    align_suffices,
    whole_elements,
    shared_fits,
    features_present,
    grid_fits,
)


def order_is_fixed(variant: Variant, problem: Problem, device: DeviceInfo, features: Features) -> str | None:
    """What ``deterministic`` asks: the variant sums k in one order, each time."""
    if variant.reduction != UNORDERED:
        return None
    return "the order in which it sums differs from run to run, and the policy is numerics='deterministic'"


def sums_as(
    wanted: Sums | None, variant: Variant, problem: Problem, device: DeviceInfo, features: Features
) -> str | None:
    """What ``batch_invariant`` asks: the variant sums as all that may serve this dtype on this GPU."""
    if variant.sums == wanted and variant.reduction != UNORDERED:
        return None
    own, policy = _in_words(variant.sums), "the policy is numerics='batch_invariant'"
    if wanted is None:
        return f"it sums as {own}, no variant has a fixed order for {compute_dtype(problem)} here, and {policy}"
    return f"it sums as {own}, and {policy}, which is {_in_words(wanted)} here for {compute_dtype(problem)}"


def _in_words(sums: Sums) -> str:
    return f"{sums[1]} in {sums[0]}"


def common_sums(problem: Problem, device: DeviceInfo, pack: Pack, features: Features) -> Sums | None:
    """How every variant has to sum that may serve under ``batch_invariant``: the op's best way that the GPU has.

    It follows from the dtype, the precision, the GPU and the pack, never from a size, a layout or an alignment.
    """
    order = pack.reductions[problem.op]
    rules = (dtype_matches, features_present, shared_fits)
    ways = {
        variant.sums
        for variant in pack.variants.values()
        if variant.op == problem.op
        and variant.reduction != UNORDERED
        and not any(rule(variant, problem, device, features) for rule in rules)
    }
    return min(ways, key=lambda sums: (order.index(sums[1]), sums), default=None)


def contract(
    numerics: str, problem: Problem, device: DeviceInfo, pack: Pack, features: Features
) -> tuple[Requirement, ...]:
    """What a numerics contract requires of a variant, beyond `REQUIREMENTS`."""
    if numerics == "batch_invariant":
        return (partial(sums_as, common_sums(problem, device, pack, features)),)
    return (order_is_fixed,) if numerics == "deterministic" else ()
