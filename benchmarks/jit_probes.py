"""The processes that jit.py starts: each measures one thing and prints it as one line of JSON.

python benchmarks/jit_probes.py NAME FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

SIZE = 1024
SMALL = 64
# Dtypes whose both-transposed layout no image has: each is a variant that is compiled when first asked for, at a size
# for which the fallback is not the fastest.
UNCOVERED, UNCOVERED_SIZE = ("bfloat16", "float16", "int8"), 128


def ms_of(work: Callable[[], Any]) -> float:
    """Milliseconds until the GPU is done."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def operands(dtype: str, size: int, transposed: bool = True) -> tuple[Any, Any]:
    kind = getattr(torch, dtype)
    make = lambda: torch.randn(size, size, device="cuda").to(kind)  # noqa: E731
    return (make().t(), make().t()) if transposed else (make(), make())


def use(folder: Path, **settings: Any) -> None:
    import tilery
    from tilery import plan

    plan.clear()
    tilery.policy.use(tilery.Policy(store=folder, **settings))


def first(folder: Path) -> dict[str, Any]:
    """First result of uncovered GEMMs; from NVRTC where the folder is empty, else from the store."""
    import tilery

    use(folder)
    tilery.gemm(*operands("bfloat16", SIZE, transposed=False))  # a covered call: context, driver and pack are there
    found: dict[str, Any] = {}
    for name, dtype in (("", "bfloat16"), ("second_", "float16")):
        a, b = operands(dtype, SIZE)
        before = tilery.stats()["jit"].get("seconds", 0.0)
        found[f"{name}ms"] = ms_of(lambda a=a, b=b: tilery.gemm(a, b))
        found[f"{name}compile_ms"] = (tilery.stats()["jit"].get("seconds", 0.0) - before) * 1e3
    return found | {"origins": tilery.stats()["origins"]}


def memo(folder: Path) -> dict[str, Any]:
    """Host time of a call that NVRTC's kernel serves, and of one that an image's serves, in turn."""
    import tilery

    use(folder)
    calls = {}
    for name, transposed in (("jit", True), ("image", False)):
        a, b = operands("bfloat16", SMALL, transposed)
        out = tilery.gemm(a, b)
        calls[name] = lambda a=a, b=b, out=out: tilery.gemm(a, b, out=out)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(31):
        for name, call in calls.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(500):
                call()
            times[name].append((time.perf_counter() - began) / 500 * 1e6)
    return {f"{name}_us": median(values) for name, values in times.items()}


def latencies(call: Callable[[], Any], go_on: Callable[[], bool]) -> list[float]:
    """Microseconds of the calls, one by one."""
    found = []
    while go_on():
        began = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - began) / 1e3)
        if len(found) % 64 == 0:
            torch.cuda.synchronize()
    return found


def during(folder: Path) -> dict[str, Any]:
    """The p99 of calls while NVRTC compiles in the background, and of the same calls without."""
    import tilery

    rounds = [one_round(folder, dtype) for dtype in UNCOVERED]
    return {"rounds": rounds, "swaps": tilery.stats()["background"].get("swaps", 0)}


def one_round(folder: Path, dtype: str) -> dict[str, Any]:
    import tilery
    from tilery import background

    size = UNCOVERED_SIZE
    a, b = operands(dtype, size)
    out = torch.empty(size, size, dtype=torch.int32 if dtype == "int8" else a.dtype, device="cuda")

    def call() -> None:
        tilery.gemm(a, b, out=out)

    def quiet() -> list[float]:
        use(folder, jit="off")
        call()
        until = time.perf_counter() + 0.7
        return latencies(call, lambda: time.perf_counter() < until)

    without = quiet()
    use(folder, jit="background")
    least = time.perf_counter() + 0.01
    compiling = latencies(call, lambda: time.perf_counter() < least or not background.workers.wait(0))
    without += quiet()
    at, base = quantiles(compiling, n=100), quantiles(without, n=100)
    return {
        "dtype": dtype,
        "calls": len(compiling),
        "p50_ratio": at[49] / base[49],
        "p99_us": at[98],
        "p99_ratio": at[98] / base[98],
        "max_ms": max(compiling) / 1e3,
    }


def parallel(folder: Path) -> dict[str, Any]:
    """NVRTC itself: loading it, and compilations one after another against side by side."""
    from tilery import jit
    from tilery.generator import render
    from tilery.pack import builtin

    began = time.perf_counter()
    jit.toolchain()
    found: dict[str, Any] = {"load_ms": (time.perf_counter() - began) * 1e3}
    variant = next(
        v for v in builtin().variants.values() if (v.family, v.dtype, v.layout) == ("gemm_mma", "bf16", "tt")
    )
    source, headers = render.render(variant), render.headers(variant.family)

    def compile_one() -> None:
        jit.compile_source(source, variant.name, headers, jit.options("sm_90a"))

    def seconds(threads: int) -> float:
        began = time.perf_counter()
        running = [threading.Thread(target=compile_one) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return time.perf_counter() - began

    compile_one()
    found["one_s"] = min(seconds(1) for _ in range(3))
    found["eight_s"] = seconds(8)
    return found


def triton(folder: Path) -> dict[str, Any]:
    """Triton's first call of a GEMM; from its cache where the folder is not empty."""
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    import jit_triton

    a, b = operands("bfloat16", SIZE)
    out = torch.empty(SIZE, SIZE, dtype=a.dtype, device="cuda")
    return {"ms": ms_of(lambda: jit_triton.gemm(a, b, out))}


def inductor(folder: Path, **options: Any) -> dict[str, Any]:
    """Inductor's first call of a GEMM with an epilogue, without which it would only call cuBLAS."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    a, b = operands("bfloat16", SIZE)
    call = torch.compile(lambda a, b: torch.relu(a @ b), **options)
    return {"ms": ms_of(lambda: call(a, b))}


PROBES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "first": first,
    "memo": memo,
    "during": during,
    "parallel": parallel,
    "triton": triton,
    "inductor": inductor,
    "autotune": lambda folder: inductor(folder, mode="max-autotune-no-cudagraphs"),
}

if __name__ == "__main__":
    print(json.dumps(PROBES[sys.argv[1]](Path(sys.argv[2]))))
