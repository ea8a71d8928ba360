"""What the numerics contracts promise, bit by bit: rows that do not depend on the number of rows, calls that repeat."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilery
from tests.gpu.memory import random
from tilery import image, policy
from tilery.device import DeviceInfo
from tilery.errors import UnsupportedProblem
from tilery.generator.variant import Variant
from tilery.pack import builtin
from tilery.requirements import features, features_present, shared_fits

pytestmark = pytest.mark.gpu

DTYPES = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "tf32": torch.float32,
    "s8": torch.int8,
}
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}
MOST_ROWS = 4096
# Around the edges of tiles of 16, 32, 64, 128 and 256 rows.
SOME_ROWS = [1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 129, 255, 257, 300]


def bits(x: Any) -> Any:
    return x.contiguous().view(BITS[x.element_size()])


def options(dtype: str, bias: Any = None) -> dict[str, Any]:
    """The arguments of a call, plain or with a whole epilogue."""
    made: dict[str, Any] = {"precision": "tf32"} if dtype == "tf32" else {}
    if bias is not None:
        made |= {"bias": bias, "activation": "gelu", "alpha": 0.3}
        made |= {"out_dtype": "f32"} if dtype == "s8" else {}
    return made


def operands(dtype: str, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    a, b = random((m, k), DTYPES[dtype]), random((k, n), DTYPES[dtype])
    return a, b, random((n,), torch.float32 if dtype == "s8" else DTYPES[dtype])


def differing(a: Any, b: Any, rows: Any, **call: Any) -> list[int]:
    """The numbers of rows with which some row has other bits than among all; looked at once, when all are done."""
    whole = bits(tilery.gemm(a, b, **call))
    wrong = torch.zeros(len(rows), dtype=torch.bool, device="cuda")
    for i, m in enumerate(rows):
        torch.any(bits(tilery.gemm(a[:m], b, **call)) != whole[:m], out=wrong[i])
    return [rows[i] for i in wrong.nonzero().flatten().tolist()]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "tf32"])
def test_a_row_has_the_same_bits_for_every_m(dtype: str) -> None:
    a, b, _ = operands(dtype, MOST_ROWS, 256, 512)
    with policy.scope(numerics="batch_invariant"):
        assert differing(a, b, range(1, MOST_ROWS + 1), **options(dtype)) == []


@pytest.mark.parametrize("letter", ["n", "t"])
@pytest.mark.parametrize("k", [528, 77])
@pytest.mark.parametrize("dtype", DTYPES)
def test_with_an_epilogue_and_whatever_the_alignment(dtype: str, k: int, letter: str) -> None:
    a, b, bias = operands(dtype, SOME_ROWS[-1], 144, k)
    right = b if letter == "n" else b.t().contiguous().t()
    with policy.scope(numerics="batch_invariant"):
        assert differing(a, right, SOME_ROWS, **options(dtype, bias)) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layout_of_a_and_the_batch_do_not_matter(dtype: str) -> None:
    a, b, bias = operands(dtype, 300, 144, 528)
    call = options(dtype, bias)
    shifted = torch.empty(a.numel() + 1, dtype=a.dtype, device="cuda")[1:].view_as(a).copy_(a)
    with policy.scope(numerics="batch_invariant"):
        whole = bits(tilery.gemm(a, b, **call))
        for left in (shifted, a.t().contiguous().t(), shifted.t().contiguous().t()):
            assert torch.equal(bits(tilery.gemm(left, b, **call)), whole)
        stacked = tilery.gemm(torch.stack([a[:65]] * 3), torch.stack([b, b, b]), **call)
        assert all(torch.equal(product, whole[:65]) for product in bits(stacked))


def capable(gpu: DeviceInfo, dtype: str) -> list[Variant]:
    """The variants of a dtype that this GPU can run."""
    pack = builtin()
    present = features(pack, image.order(pack.archs, gpu.cc))
    sample = tilery.Problem("gemm", 1, 1, 1, 1, "bf16", "bf16", "nn", 16)
    rules = (features_present, shared_fits)
    fits = [v for v in pack.variants.values() if not any(rule(v, sample, gpu, present) for rule in rules)]
    return [variant for variant in fits if variant.dtype == dtype]


def laid_out(x: Any, letter: str) -> Any:
    return x.t().contiguous().t() if letter == "t" else x


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", DTYPES)
def test_variants_that_declare_the_same_sums_have_the_same_bits(gpu: DeviceInfo, dtype: str) -> None:
    """Each variant alone: images and compiled ones, every tile, layout and alignment."""
    a, b, bias = operands(dtype, 304, 144, 528)
    call = options(dtype, bias)
    first: dict[tuple[str, str], tuple[str, Any]] = {}
    wrong, variants = [], capable(gpu, dtype)
    for variant in variants:
        letters = "nn" if variant.layout == "any" else variant.layout
        with policy.scope(force_variant=variant.name):
            got = bits(tilery.gemm(laid_out(a, letters[0]), laid_out(b, letters[1]), **call))
        name, expected = first.setdefault(variant.sums, (variant.name, got))
        wrong += [] if torch.equal(got, expected) else [f"{variant.name} differs from {name}"]
    assert not wrong
    assert len(variants) > len(first)


def test_the_check_sees_a_choice_that_mixes_families() -> None:
    """Planted: some numbers of rows are served by a family that sums in another order."""
    a, b, _ = operands("bf16", 300, 144, 528)
    whole = bits(tilery.gemm(a, b))
    with policy.scope(force_variant="gemm_naive_bf16_any_16x16x1"):
        assert differing(a, b, SOME_ROWS) == []
        assert not torch.equal(bits(tilery.gemm(a, b)), whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_calls_have_equal_bits(dtype: str) -> None:
    a, b, bias = operands(dtype, 500, 256, 1024)
    call = options(dtype, bias)
    with policy.scope(numerics="deterministic"):
        first = bits(tilery.gemm(a, b, **call))
        assert all(torch.equal(bits(tilery.gemm(a.clone(), b.clone(), **call)), first) for _ in range(20))


def test_what_only_another_order_could_serve_is_refused() -> None:
    a, b, _ = operands("bf16", 64, 64, 128)
    with policy.scope(numerics="batch_invariant"), pytest.raises(UnsupportedProblem, match="pass copies"):
        tilery.gemm(a[:, ::2], b[::2])
    with policy.scope(numerics="deterministic"):
        tilery.gemm(a[:, ::2], b[::2])
