"""What an arch name means: the GPUs that it serves, nvcc's arguments for it, its files, and sets of archs by word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .errors import UnknownName, nearest

if TYPE_CHECKING:
    from .load import Spec

Capability = tuple[int, int]
HOST = "host"
"""The arch of the CPU: the same sources compiled as C++ into one library. It serves the host device and no GPU."""
HOST_CC: Capability = (0, 0)
_FORM = re.compile(r"(sm|compute)_([1-9]\d*)(\d)([af]?)")


class Target(NamedTuple):
    """An arch name in parts: ``sm_90a`` is ("sm", (9, 0), "a")."""

    kind: str
    cc: Capability
    suffix: str


@lru_cache(maxsize=64)
def parse(arch: str) -> Target:
    """Split an arch name; ValueError for one of another form. ``host`` is a kind of its own.

    >>> parse("sm_103f")
    Target(kind='sm', cc=(10, 3), suffix='f')
    """
    if arch == HOST:
        return Target(HOST, HOST_CC, "")
    match = _FORM.fullmatch(arch)
    if match is None:
        forms = "sm_NN, sm_NNa, sm_NNf, compute_NN, compute_NNa or compute_NNf"
        raise ValueError(f"'{arch}' is not {HOST}, and not of the form {forms}")
    kind, major, minor, suffix = match.groups()
    return Target(kind, (int(major), int(minor)), suffix)


def serves(arch: str, cc: Capability) -> bool:
    """Whether an image for ``arch`` runs on a GPU of this compute capability.

    >>> [serves(arch, (9, 0)) for arch in ("sm_90a", "sm_90", "sm_80", "compute_80", "compute_100")]
    [True, True, False, True, False]
    """
    kind, target, suffix = parse(arch)
    if suffix == "a" or kind == HOST:
        return cc == target
    if suffix == "f" or kind == "sm":
        return cc[0] == target[0] and cc[1] >= target[1]
    return cc >= target


def rank(arch: str) -> tuple[int, Capability]:
    """Sort key among archs that serve one GPU, best highest: exact, family, plain, then PTX; the newest of each."""
    kind, target, suffix = parse(arch)
    return (3 * (kind == "sm") + {"a": 2, "f": 1, "": 0}[suffix], target)


def serving(archs: Iterable[str], cc: Capability) -> list[str]:
    """The archs that serve a GPU of this compute capability, best first."""
    return sorted((arch for arch in archs if serves(arch, cc)), key=rank, reverse=True)


def image_file(arch: str, image: str) -> str:
    """The name of an image's file in the arch's folder; all of ``host`` are in one library.

    >>> image_file("sm_90a", "gemm_mma_bf16_nt"), image_file("host", "gemm_mma_bf16_nt")
    ('gemm_mma_bf16_nt.fatbin', 'kernels.so')
    """
    return "kernels.so" if arch == HOST else f"{image}.fatbin"


def gencode(arch: str) -> str:
    """What follows ``-gencode`` on nvcc's command line.

    >>> gencode("sm_100f"), gencode("compute_80")
    ('arch=compute_100f,code=sm_100f', 'arch=compute_80,code=compute_80')
    """
    if parse(arch).kind == HOST:
        raise ValueError(f"'{arch}' is not compiled by nvcc")
    return f"arch={arch.replace('sm_', 'compute_')},code={arch}"


def present() -> list[Capability]:
    """Compute capabilities of the GPUs of this machine, by nvidia-smi; empty where there is none."""
    import subprocess

    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [(int(major), int(minor)) for major, minor in re.findall(r"^\s*(\d+)\.(\d+)\s*$", output, re.MULTILINE)]


def resolve(words: str, spec: Spec, probe: Callable[[], list[Capability]] = present) -> tuple[str, ...]:
    """The archs that a comma-separated list names, in the order of ``variants.toml``.

    Args:
        words: arch names, and the words ``all``, ``portable`` (the set that ``variants.toml`` gives), and
            ``native`` (the best arch for each GPU of this machine; ``portable`` where there is none, or one that no
            arch serves).
        spec: what ``variants.toml`` declares.
        probe: gives the compute capabilities of the GPUs present.
    """
    chosen: set[str] = set()
    for word in filter(None, (part.strip() for part in re.split(r"[,;\s]", words))):
        chosen.update(_archs_of(word, spec, probe))
    if not chosen:
        raise UnknownName(f"no arch given; {nearest('', [*spec.archs, 'all', 'native', 'portable'])}")
    return tuple(arch for arch in spec.archs if arch in chosen)


def with_host(archs: Iterable[str], spec: Spec) -> tuple[str, ...]:
    """What a build makes: the archs asked for, and ``host``, which every build has where it is declared."""
    wanted = {*archs, HOST}
    return tuple(arch for arch in spec.archs if arch in wanted)


def _archs_of(word: str, spec: Spec, probe: Callable[[], list[Capability]]) -> Iterable[str]:
    if word == "all":
        return spec.archs
    if word == "portable":
        return spec.portable
    if word == "native":
        best = [serving(spec.archs, cc)[:1] for cc in probe()]
        return [name for names in best for name in names] if best and all(best) else spec.portable
    if word not in spec.archs:
        raise UnknownName(f"unknown arch '{word}'; {nearest(word, [*spec.archs, 'all', 'native', 'portable'])}")
    return [word]
