"""``tilery doctor``: what there is on this machine, what is wrong with it, and what to do about that."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any, NamedTuple

import typer
from rich.text import Text

from .. import __version__, blocklist, device, image, jit, policy
from ..errors import CompileError, TileryError
from ..pack import Pack, builtin
from ..store import Store, maintain, store_for
from ..store.aside import FAILED, QUARANTINE
from ..store.level import Level
from .output import Json, console, mib, print_json, progress, styled

OLDEST_DRIVER = 13000  # the first that loads what CUDA 13 made
DRIVER_ADVICE = "Install an NVIDIA driver for CUDA 13.0 or later (r580)."
REBUILD = "Install tilery from source on this machine, which compiles for its GPUs: `pip install .` in a checkout."
REQUIRED = ("numpy", "cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc")
OPTIONAL = ("torch", "cupy-cuda13x", "jax", "ml-dtypes", "nvtx")
PROBE = 'extern "C" __global__ void probe(int* p) { *p = 1; }'


class Finding(NamedTuple):
    """Something wrong: an ``error`` keeps what must work from working, a ``warning`` does not."""

    severity: str
    text: str
    advice: str


@dataclass
class Report:
    """What one check found: values for JSON, lines for people, and what is wrong."""

    data: Any
    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The worst of the findings, or ok."""
        return min((finding.severity for finding in self.findings), default="ok")  # "error" < "warning"

    def error(self, text: str, advice: str) -> None:
        """Add what keeps something from working."""
        self.findings.append(Finding("error", text, advice))

    def warn(self, text: str, advice: str) -> None:
        """Add what is only worse than it could be."""
        self.findings.append(Finding("warning", text, advice))


@dataclass
class Machine:
    """What several checks look at."""

    pack: Pack | None
    pack_error: str
    settings: policy.Policy
    settings_error: str


def look() -> Machine:
    """The pack and the policy, or what is wrong with them."""
    machine = Machine(None, "", policy.Policy(), "")
    try:
        machine.pack = builtin()
    except TileryError as error:
        machine.pack_error = str(error)
    try:
        machine.settings = policy.current()
    except TileryError as error:
        machine.settings_error = str(error)
    return machine


def check_driver(at: Machine) -> Report:
    """The driver and the CUDA version that it supports."""
    found = device.devices()
    if not found:
        report = Report({"version": None, "reason": device.why_none()}, ["none in use"])
        report.warn(f"No NVIDIA GPU was found: {device.why_none()}.", f"For a GPU: {DRIVER_ADVICE} NumPy arrays work.")
        return report
    number = found[0].driver_version or 0
    report = Report({"version": device.version_text(number), "reason": ""}, [f"CUDA {device.version_text(number)}"])
    if number < OLDEST_DRIVER:
        report.error(f"The driver supports CUDA {device.version_text(number)} only.", DRIVER_ADVICE)
    return report


def check_gpus(at: Machine) -> Report:
    """Each GPU, and the image that serves it."""
    report = Report([])
    for gpu in device.devices():
        memory = int(device.call("cuDeviceTotalMem", device.call("cuDeviceGet", gpu.ordinal)))
        built = image.order(at.pack.images, gpu.cc) if at.pack else ()
        row = gpu.to_dict() | {"memory_bytes": memory, "arch": built[0] if built else None, "status": None}
        served = "no image"
        if at.pack and built:
            row["status"] = at.pack.archs[built[0]].status
            served = f"image {built[0]} ({row['status']})"
        if not (built and image.is_sass(built[0])):
            _without_machine_code(report, gpu, built, at)
        report.data.append(row)
        report.lines.append(f"{gpu.ordinal}: {gpu}, {memory / 2**30:.0f} GiB, {served}")
    return report


def _without_machine_code(report: Report, gpu: device.DeviceInfo, built: tuple[str, ...], at: Machine) -> None:
    if built:
        report.warn(f"GPU {gpu.ordinal} is served by PTX ({built[0]}), compiled by the driver at first use.", REBUILD)
    elif at.settings.jit == "off" or not jit.target(gpu.cc, at.pack.archs if at.pack else (), jit.loaded()):
        report.error(f"GPU {gpu.ordinal} is served by no image, and nothing can be compiled for it.", REBUILD)
    else:
        report.warn(f"GPU {gpu.ordinal} is served by no image: NVRTC compiles each kernel at first use.", REBUILD)


def check_nvrtc(at: Machine) -> Report:
    """NVRTC: a tiny kernel is compiled, so that a broken installation shows here."""
    tools = jit.loaded()
    report = Report({"version": tools.version or None, "path": None, "archs": list(tools.archs)})
    if tools.why_none:
        wrong = report.warn if at.settings.jit == "off" else report.error
        wrong(tools.why_none, "Without it, what no image covers is served by the fallback kernel, if at all.")
        return report
    path = import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc").abs_path
    report.data["path"] = path
    archs = [f"{arch // 10}.{arch % 10}" for arch in tools.archs]
    report.lines = [f"{tools.version} at {path}", f"compiles for {', '.join(archs)}"]
    try:
        jit.compile_source(PROBE, "probe", {}, jit.options(f"sm_{max(tools.archs)}"))
    except CompileError as error:
        report.error(str(error), jit.INSTALL)
    return report


def check_images(at: Machine) -> Report:
    """Every image file, read and compared with the manifest."""
    report = Report([])
    if at.pack is None:
        report.error(at.pack_error, "Install tilery again: `pip install --force-reinstall tilery`.")
        return report
    for arch, images in at.pack.images.items():
        broken = 0
        for held in progress(tuple(images.values()), f"verifying {arch}"):
            try:
                image.read(held)
            except TileryError as error:
                broken += 1
                report.error(str(error), f"Its {len(held.variants)} variants are served by other images or the JIT.")
        size, count = (
            sum(values) for values in zip(*((i.bytes, len(i.variants)) for i in images.values()), strict=True)
        )
        status = at.pack.archs[arch].status
        counts = {"images": len(images), "variants": count, "bytes": size, "broken": broken}
        report.data.append({"arch": arch, "status": status} | counts)
        whole = "all verified" if not broken else f"{broken} broken"
        report.lines.append(f"{arch}: {len(images)} images, {count} variants, {mib(size)}, {status}, {whole}")
    if not any(at.pack.images.values()):
        report.warn("The pack has no image: every kernel is compiled at first use.", REBUILD)
    return report


def check_store(at: Machine) -> Report:
    """The folder of compiled kernels: usable or not, and what is in it."""
    if at.settings_error:
        return Report({"path": None, "usable": False, "reason": at.settings_error}, ["not looked at, see variables"])
    if at.settings.store is None:
        return Report({"path": None, "usable": False, "reason": "off"}, ["off: each process compiles for itself"])
    store = store_for(at.settings)
    why_not = store.why_off or _unwritable(store)
    if store.user is None or why_not:
        report = Report({"path": None, "usable": False, "reason": why_not}, ["not usable"])
        report.error(
            f"The store cannot be used: {why_not}. Each process compiles again what no image covers.",
            "Set TILERY_STORE to a folder of yours that only you can write, or to off.",
        )
        return report
    report = _contents(store, store.user)
    for seed, why in store.refused.items():
        report.warn(f"The seed store {seed} is not used: {why}.", "Correct that, or take it out of the policy's seeds.")
    return report


def _unwritable(store: Store) -> str:
    probe = store.root and store.root / f".doctor.{id(store):x}.tmp"
    if probe is None:
        return ""
    try:
        probe.write_bytes(b"doctor")
        probe.unlink()
    except OSError as error:
        return str(error)
    return ""


def _contents(store: Store, user: Level) -> Report:
    found = maintain.usage(user)
    entries, size = sum(found.entries.values()), sum(found.bytes.values())
    data = {"path": str(user.root), "usable": True, "reason": "", "entries": entries, "bytes": size}
    data |= {"max_entries": store.limits.entries, "max_bytes": store.limits.bytes}
    report = Report(data | {"quarantined": found.quarantined, "failed": found.failed, "seeds": []})
    report.lines.append(f"{user.root}: {entries} entries, {mib(size)} of at most {mib(store.limits.bytes)}")
    if blocked := sum(1 for _ in blocklist.findings(store)):
        report.lines.append(f"{blocked} findings of wrong variants: `tilery verify --list` shows them")
    report.data["blocked"] = blocked
    for seed in store.seeds:
        count = sum(1 for _ in seed.entries())
        report.data["seeds"].append({"path": str(seed.root), "entries": count})
        report.lines.append(f"{seed.root}: {count} entries, read-only")
    if found.quarantined:
        place = user.base / QUARANTINE
        report.warn(f"{found.quarantined} broken entries were set aside.", f"Look at the disk, then delete {place}.")
    if found.failed:
        place = user.base / FAILED
        report.warn(
            f"{found.failed} compiles failed.", f"Report what is in {place} (sources and logs), then delete it."
        )
    return report


def check_variables(at: Machine) -> Report:
    """What each variable is set to, or stands for when it is not set."""
    report = Report({})
    for name, meaning in policy.VARIABLES.items():
        value = None if at.settings_error else _value(at.settings, name)
        report.data[name] = {"value": value, "meaning": meaning}
        report.lines.append(f"{name} = {value or '(none)'}   {meaning}")
    if at.settings_error:
        report.error(at.settings_error, "Correct the variable or unset it: no call works as it is.")
    forced = at.settings.force_variant
    if forced and at.pack and forced not in at.pack.variants:
        report.error(f"TILERY_FORCE_VARIANT names {forced}, which is no variant.", "`tilery list` shows all.")
    elif forced:
        report.warn(f"Every call is served by {forced}, or fails.", "Unset TILERY_FORCE_VARIANT for free choice.")
    _check_observers(report, at.settings)
    return report


def _check_observers(report: Report, settings: policy.Policy) -> None:
    if settings.nvtx and not _version("nvtx"):
        advice = "`pip install 'tilery[nvtx]'`, or unset TILERY_NVTX."
        report.error(
            "TILERY_NVTX asks for ranges, and the package nvtx is not installed: no call on a GPU works.", advice
        )
    if settings.trace and not os.access(settings.trace.parent, os.W_OK | os.X_OK):
        text = f"Nothing can be written to the trace {settings.trace}: its folder is missing or read-only."
        report.warn(text, "Make the folder, or name another file with TILERY_TRACE.")


def _value(settings: policy.Policy, name: str) -> str | None:
    value = getattr(settings, name.removeprefix("TILERY_").lower())
    if name == "TILERY_STORE":
        return os.pathsep.join(map(str, (value or "off", *settings.seeds)))
    return str(int(value)) if isinstance(value, bool) else value and str(value)


def check_packages(at: Machine) -> Report:
    """Versions of what tilery needs, and of what it can work with."""
    found = {name: _version(name) for name in (*REQUIRED, *OPTIONAL)}
    data = {"python": python_version(), "tilery": __version__} | found
    report = Report({name: text for name, text in data.items() if text or name in REQUIRED})
    report.lines = [", ".join(f"{name} {text}" for name, text in data.items() if text)]
    for name in REQUIRED:
        if not found[name]:
            report.error(f"The package {name} is not installed.", f"`pip install {name}`")
    return report


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


CHECKS: dict[str, Callable[[Machine], Report]] = {
    "driver": check_driver,
    "gpus": check_gpus,
    "nvrtc": check_nvrtc,
    "images": check_images,
    "store": check_store,
    "variables": check_variables,
    "packages": check_packages,
}


def doctor(json: Json = False) -> None:
    """Look at driver, GPUs, NVRTC, images, store, variables and packages; say what is wrong and what to do."""
    machine = look()
    reports = {name: check(machine) for name, check in CHECKS.items()}
    ok = all(report.verdict != "error" for report in reports.values())
    if json:
        wrong = [{"check": name} | finding._asdict() for name, report in reports.items() for finding in report.findings]
        print_json({"ok": ok} | {name: report.data for name, report in reports.items()} | {"findings": wrong})
    else:
        _print(reports, ok)
    if not ok:
        raise typer.Exit(1)


def _print(reports: dict[str, Report], ok: bool) -> None:
    screen = console()
    for name, report in reports.items():
        screen.print(Text.assemble((name, "bold"), "  ", styled(report.verdict)))
        for line in report.lines or ["none"]:
            screen.print(f"  {line}", soft_wrap=True)
        for finding in report.findings:
            screen.print(Text.assemble("  ", styled(finding.severity), f": {finding.text}"), soft_wrap=True)
            screen.print(f"    {finding.advice}", soft_wrap=True)
    screen.print()
    screen.print(styled("ok") if ok else styled("error"), "all that must work does" if ok else "see the errors above")
