"""A small pack and GPUs of every kind, made up for the tests of the choice; no image file exists."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tilery.device import DeviceInfo
from tilery.generator.variant import Variant
from tilery.jit import Toolchain
from tilery.pack import Pack, from_table
from tilery.problem import Problem

DEVICES = {
    cc: DeviceInfo(f"GPU of {cc[0]}.{cc[1]}", cc, sms, shared, l2, 1500, bandwidth)
    for cc, sms, shared, l2, bandwidth in [
        ((7, 5), 40, 65536, 4 << 20, 320),
        ((8, 0), 108, 166912, 40 << 20, 2039),
        ((8, 6), 84, 101376, 6 << 20, 936),
        ((8, 9), 128, 101376, 72 << 20, 1008),
        ((9, 0), 132, 232448, 60 << 20, 4800),
        ((10, 0), 148, 232448, 126 << 20, 8000),
        ((10, 3), 148, 232448, 126 << 20, 8000),
        ((12, 0), 170, 101376, 96 << 20, 1792),
        ((12, 1), 48, 101376, 24 << 20, 300),
        ((13, 0), 160, 232448, 126 << 20, 9000),
    ]
}
H200 = DEVICES[9, 0]

NVRTC = Toolchain("13.0", "1", (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121))
NO_NVRTC = Toolchain(why_none="NVRTC cannot be loaded: pip install nvidia-cuda-nvrtc")

AMPERE = ("cp_async", "mma", "bf16")
ARCHS = {
    "compute_75": ((), 65536, (7, 5)),
    "compute_80": (AMPERE, 101376, (8, 0)),
    "sm_80": (AMPERE, 166912, (8, 0)),
    "sm_90a": (AMPERE, 232448, (9, 0)),
    "sm_100f": (AMPERE, 232448, (10, 0)),
    "sm_120f": (AMPERE, 101376, (12, 0)),
}
_MODEL = {"tile_clocks": 1000, "line_clocks": 1, "scalar_clocks": 0.5, "memory": 0.9, "l2_bytes": 50}
COST: dict[str, dict[str, Any]] = {
    "gemm_naive": _MODEL
    | {
        "rate": {"f32": 128, "f16": 128, "bf16": 128, "s8": 128},
        "efficiency": 0.04,
        "step_clocks": 40,
        "start_us": 2.0,
    },
    "gemm_simt": _MODEL | {"rate": {"f32": 128, "f16": 128}, "efficiency": 0.7, "step_clocks": 300, "start_us": 2.0},
    "gemm_mma": _MODEL
    | {
        "rate": {"f16": 1024, "bf16": 1024, "tf32": 512},
        "efficiency": 0.6,
        "step_clocks": 250,
        "start_us": 3.0,
    },
}


def _variants() -> list[Variant]:
    naive = [
        Variant("gemm_naive", "gemm", dtype, "any", 1, (("tile", (16, 16, 1)),), "core", 256)
        for dtype in ("f32", "f16", "bf16", "s8")
    ]
    simt = [
        Variant(
            "gemm_simt",
            "gemm",
            "f32",
            layout,
            align,
            (("tile", (t, t, 16)), ("thread", (t // 16,) * 2)),
            tier,
            256,
            t * 384,
        )
        for layout, tier in (("nn", "core"), ("nt", "core"), ("tt", "wide"))
        for align in (1, 16)
        for t in (64, 128)
    ]
    mma = [
        Variant(
            "gemm_mma", "gemm", dtype, layout, align, (("tile", tile), ("stages", stages)), tier, 128, shared, AMPERE
        )
        for dtype in ("bf16", "tf32")
        for layout, tier in (("nn", "core"), ("nt", "core"), ("tt", "wide"))
        for align in (1, 16)
        for tile, stages, shared in (((128, 128, 32), 4, 65536), ((64, 64, 64), 3, 49152), ((128, 256, 64), 4, 196608))
    ]
    return naive + simt + mma


def _sums(variant: Variant) -> dict[str, str]:
    """How the families of these names sum."""
    if variant.dtype == "s8":
        return {"accumulator": "s32", "reduction": "exact"}
    mma = "mma_k8" if variant.dtype == "tf32" else "mma_k16"
    return {"accumulator": "f32", "reduction": mma if variant.family == "gemm_mma" else "fma"}


VARIANTS = {variant.name: replace(variant, **_sums(variant)) for variant in _variants()}


def _row(variant: Variant) -> dict[str, Any]:
    plain = [field.name for field in fields(Variant) if field.name != "constants"]
    return {key: getattr(variant, key) for key in plain} | {"hash": f"hash of {variant.name}"}


def _images(features: tuple[str, ...], shared: int) -> dict[str, Any]:
    images: dict[str, Any] = {}
    for variant in VARIANTS.values():
        if variant.tier == "core" and set(variant.features) <= set(features) and variant.shared_bytes <= shared:
            image = images.setdefault(variant.image, {"sha256": "0" * 64, "bytes": 1, "variants": []})
            image["variants"].append(variant.name)
    return images


def _gpu(cc: tuple[int, int]) -> dict[str, Any]:
    d = DEVICES[cc]
    keys = ("name", "cc", "sms", "shared_bytes", "l2_bytes", "clock_mhz", "bandwidth_gbs")
    return {key: getattr(d, key) for key in keys}


def table() -> dict[str, Any]:
    """The names of a ``_table.py``, free to be changed."""
    return copy.deepcopy(
        {
            "SCHEMA": 2,
            "VERSION": "0.0.0",
            "TIER": "core",
            "ARCHS": {
                name: {"status": "compiled", "lineage": (), "features": f, "shared_bytes": s, "gpu": _gpu(cc)}
                for name, (f, s, cc) in ARCHS.items()
            },
            "COST": COST,
            "FALLBACK": {"gemm": "gemm_naive"},
            "REDUCTIONS": {"gemm": ("mma_k16", "mma_k8", "exact", "fma")},
            "VARIANTS": {name: _row(variant) for name, variant in VARIANTS.items()},
            "IMAGES": {name: _images(features, shared) for name, (features, shared, _) in ARCHS.items()},
            "TABLE": [],
            "RECORDS": {},
            "COEFFICIENTS": {},
            "REGRET": {},
        }
    )


def pack(**changes: Any) -> Pack:
    """The pack, with some names of its table replaced."""
    return from_table(table() | changes, Path("images"))


def problem(m: int = 512, n: int = 512, k: int = 512, **changes: Any) -> Problem:
    """A bf16 problem of layout nt, with some fields replaced."""
    fields: dict[str, Any] = {"batch": 1, "dtype": "bf16", "layout": "nt", "align": 16} | changes
    fields.setdefault("out_dtype", "s32" if fields["dtype"] == "s8" else fields["dtype"])
    return Problem("gemm", m, n, k, **fields)
