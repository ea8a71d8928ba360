"""``tilery demo``: real problems, on the GPU where there is one, else decided, compiled and computed without."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console
from typer import Option

from .. import device, image, jit, policy
from ..decision import Decision
from ..device import DeviceInfo
from ..dispatch import choose
from ..errors import TileryError
from ..generator.render import content_hash
from ..pack import Arch, Pack, builtin
from ..stats import stats
from ..store import Store, store_for
from . import matrix, problems
from .output import Json, console, mib, print_json, progress, styled, table
from .problems import DemoProblem
from .runs import Result, guarded, on_cpu, on_gpu

# What two cores do in a few seconds, a product of one row counted as the 16 that the smallest tile has.
CPU_MACS = 1 << 29
LEAST_ROWS = 16


class Covered(NamedTuple):
    """An arch that the pack serves, with the GPU that stands for it."""

    arch: str
    gpu: DeviceInfo
    status: str
    images: int
    bytes: int


class Choice(NamedTuple):
    """A problem, and the Decision for it or why there is none."""

    case: DemoProblem
    decision: Decision | None
    fault: str = ""


def covered(pack: Pack) -> list[Covered]:
    """The archs that have images, machine code of the newest first, the CPU last; all where there is no image."""
    built = [name for name, images in pack.images.items() if images] or list(pack.archs)
    rows = []
    for name in sorted(built, key=lambda name: _preference(pack.archs[name]), reverse=True):
        images = pack.images.get(name, {}).values()
        files = {held.path: held.bytes for held in images}
        gpu, status = device.representative(name, pack), pack.archs[name].status
        rows.append(Covered(name, gpu, status, len(images), sum(files.values())))
    return rows


def _preference(arch: Arch) -> tuple[bool, tuple[int, int]]:
    return image.is_sass(arch.name) and not arch.gpu.is_host, arch.gpu.cc


def decide(cases: list[DemoProblem], gpu: DeviceInfo, pack: Pack) -> list[Choice]:
    """What would serve each problem on a GPU."""
    choices = []
    for case in cases:
        try:
            choices.append(Choice(case, choose(case.request(), gpu, pack, policy.current())))
        except TileryError as error:
            choices.append(Choice(case, None, str(error)))
    return choices


def compile_uncovered(choices: list[Choice], pack: Pack) -> dict[str, Any]:
    """Compile the problem that the table does not cover, as its first call on such a GPU would."""
    case, decision = next((choice.case, choice.decision) for choice in choices if choice.case.uncovered)
    if decision is None or decision.source != "jit":
        reason = "the policy is jit='off'" if policy.current().jit == "off" else jit.toolchain().why_none
        return {"problem": str(case), "fault": reason or "the images of this pack cover it"}
    store = store_for(policy.current())
    before, started = stats()["jit"].get("compiles", 0), time.perf_counter()
    code = jit.compile_variant(decision.variant, decision.arch, pack=pack, store=store)
    return {
        "problem": str(case),
        "variant": decision.variant.name,
        "gpu": decision.device.name,
        "arch": decision.arch,
        "nvrtc": jit.toolchain().version,
        "bytes": len(code.data),
        "seconds": time.perf_counter() - started,
        "compiled": stats()["jit"].get("compiles", 0) > before,
        "path": _stored(store, decision, pack),
        "fault": "",
    }


def _stored(store: Store, decision: Decision, pack: Pack) -> str | None:
    """Where the code is kept: its file, else the folder; None where nothing is."""
    if store.root is None:
        return None
    variant = decision.variant
    # The pack's hash is stale in an edited checkout; the entry is then under that of the source.
    for content in (pack.hashes[variant.name], content_hash(variant)):
        if found := store.path(jit.key(variant, decision.arch, content, pack.version, jit.toolchain())):
            return str(found)
    return str(store.root)


def demo(
    seed: Annotated[int | None, Option(min=0, help="Of the random data. Default: a new one each time.")] = None,
    gpu: Annotated[int, Option(help="Number of the GPU to run on.")] = 0,
    json: Json = False,
) -> None:
    """Run layers of public models and some odd problems, and compare each result with float64."""
    matrix.register()
    policy.current()  # a variable that has no meaning is told first
    seed = secrets.randbits(32) if seed is None else seed
    screen = console()
    screen.quiet = json
    cases = problems.load()
    found = device.info(gpu) if device.devices() else None
    report = _with_gpu(cases, found, seed, screen) if found else _without_gpu(cases, seed, screen)
    if json:
        print_json(report)
    if not report["ok"]:
        raise typer.Exit(1)


def _with_gpu(cases: list[DemoProblem], gpu: DeviceInfo, seed: int, screen: Console) -> dict[str, Any]:
    assert gpu.ordinal is not None
    screen.print(f"GPU {gpu.ordinal}: {gpu}, random data of seed {seed}")
    rng = np.random.default_rng(seed)
    run = partial(on_gpu, gpu.ordinal)
    results = [guarded(run, case, rng) for case in progress(cases, "running on the GPU")]
    columns = ("problem (m x n x k)", "variant", "tier", "us", "TFLOP/s", "TB/s", "error/bound", "")
    shown = table("", columns, right=("us", "TFLOP/s", "TB/s", "error/bound"))
    for r in results:
        numbers = (f"{r.us:.1f}", f"{r.tflops:.1f}", f"{r.tbs:.2f}", f"{r.comparison.ratio:.2g}")
        shown.add_row(str(r.case), r.variant, r.tier, *numbers, styled("ok" if r.ok else "FAIL"))
    screen.print(shown)
    screen.print("us: median of a call by CUDA events, each with a cold L2. jit: compiled by NVRTC at its first call.")
    return {"gpu": gpu.to_dict(), "reason": "", "seed": seed} | _verdict(results, screen)


def _verdict(results: list[Result], screen: Console) -> dict[str, Any]:
    wrong = [result for result in results if not result.ok]
    for result in wrong:
        why = result.fault or f"the error is {result.comparison.ratio:.3g} times what rounding allows"
        screen.print(f"{result.case}: {why}", style="red", soft_wrap=True)
    screen.print(
        f"{len(results) - len(wrong)} of {len(results)} results are within the componentwise bound of float64.",
        style="red" if wrong else "green",
    )
    return {"results": [result.to_dict() for result in results], "ok": not wrong}


def _without_gpu(cases: list[DemoProblem], seed: int, screen: Console) -> dict[str, Any]:
    pack, reason = builtin(), device.why_none()
    screen.print(f"No NVIDIA GPU was found: {reason}.", style="yellow", soft_wrap=True)
    served = covered(pack)
    _print_covered(served, screen)
    gpus = list({row.gpu.name: row.gpu for row in served}.values())
    choices = {gpu.name: decide(cases, gpu, pack) for gpu in gpus}
    first = choices[gpus[0].name]
    _print_choices(gpus[0], first, screen)
    _print_counts({name: chosen for name, chosen in choices.items() if chosen is not first}, screen)
    compiled = compile_uncovered(first, pack)
    _print_compiled(compiled, screen)
    rng = np.random.default_rng(seed)
    small = [case for case in cases if max(case.m, LEAST_ROWS) * case.n * case.k <= CPU_MACS]
    results = [guarded(on_cpu, case, rng) for case in progress(small, "computing on the CPU")]
    _print_cpu(results, seed, screen)
    verdict = _verdict(results, screen)
    decided = [_choice_row(name, choice) for name, chosen in choices.items() for choice in chosen]
    return {
        "gpu": None,
        "reason": reason,
        "seed": seed,
        "covered": [row._asdict() | {"gpu": row.gpu.to_dict()} for row in served],
        "decisions": decided,
        "compiled": compiled,
        "results": verdict["results"],
        "ok": verdict["ok"] and not any(row["fault"] for row in decided),
    }


def _choice_row(gpu: str, choice: Choice) -> dict[str, Any]:
    row = {"gpu": gpu} | choice.case.to_dict() | {"fault": choice.fault}
    if (decision := choice.decision) is None:
        return row | dict.fromkeys(("variant", "tier", "source", "arch", "us", "basis"))
    keys = ("tier", "source", "arch", "us", "basis")
    return row | {"variant": decision.variant.name} | {key: getattr(decision, key) for key in keys}


def _print_covered(rows: list[Covered], screen: Console) -> None:
    columns = ("arch", "for example", "status", "images", "size")
    shown = table("GPUs that this installation covers", columns, right=("images",))
    for row in rows:
        size = mib(row.bytes) if row.images else "compiled at first use"
        shown.add_row(row.arch, str(row.gpu), row.status, str(row.images), size)
    screen.print(shown)


def _print_choices(gpu: DeviceInfo, choices: list[Choice], screen: Console) -> None:
    columns = ("problem (m x n x k)", "variant", "tier", "time")
    shown = table(f"What would serve on {gpu}", columns, right=("time",))
    for case, decision, fault in choices:
        if decision:
            shown.add_row(str(case), decision.variant.name, decision.tier, str(decision.ranked[0]))
        else:
            shown.add_row(str(case), fault.partition("\n")[0], styled("error"), "")
    screen.print(shown)
    screen.print("`tilery explain gemm` says why, for any problem and arch.")


def _print_counts(choices: dict[str, list[Choice]], screen: Console) -> None:
    for name, chosen in choices.items():
        tiers = Counter(choice.decision.tier if choice.decision else "nothing" for choice in chosen)
        parts = ", ".join(f"{count} by {tier}" for tier, count in tiers.most_common())
        screen.print(f"{name}: {parts}", soft_wrap=True)


def _print_compiled(row: dict[str, Any], screen: Console) -> None:
    screen.print(f"\nNot in the table: {row['problem']}", style="bold", soft_wrap=True)
    if row["fault"]:
        screen.print(f"not compiled: {row['fault']}", soft_wrap=True)
        return
    how = f"compiled by NVRTC {row['nvrtc']}" if row["compiled"] else "found in the store, compiled by an earlier run"
    screen.print(f"{row['variant']} for {row['arch']} ({row['gpu']}): {how}", soft_wrap=True)
    kept = f"kept at {row['path']}" if row["path"] else "kept in memory only"
    screen.print(f"{row['bytes']} bytes of cubin in {row['seconds']:.2f} s, {kept}", soft_wrap=True)


def _print_cpu(results: list[Result], seed: int, screen: Console) -> None:
    columns = ("problem (m x n x k)", "variant", "compared", "ms", "error/bound", "")
    title = f"\nComputed on the CPU, random data of seed {seed}, compared with NumPy's float64"
    shown = table(title, columns, right=("compared", "ms", "error/bound"))
    for r in results:
        numbers = (str(r.comparison.elements), f"{r.us / 1e3:.0f}", f"{r.comparison.ratio:.2g}")
        shown.add_row(str(r.case), r.variant, *numbers, styled("ok" if r.ok else "FAIL"))
    screen.print(shown)
