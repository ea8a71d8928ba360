from __future__ import annotations

import subprocess

import pytest

from generator import archs
from generator.errors import UnknownName
from generator.load import Spec, load


@pytest.mark.parametrize(
    ("arch", "cc", "serves"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),
        ("sm_100f", (10, 3), True),
        ("sm_103f", (10, 0), False),
        ("sm_100f", (11, 0), False),
        ("sm_120f", (12, 1), True),
        ("compute_80", (12, 1), True),
        ("compute_80", (7, 5), False),
        ("compute_90a", (9, 0), True),
        ("compute_90a", (10, 0), False),
        ("compute_100f", (10, 3), True),
        ("compute_100f", (12, 0), False),
        ("host", (0, 0), True),
        ("host", (8, 0), False),
        ("compute_75", (0, 0), False),
    ],
)
def test_serves(arch: str, cc: tuple[int, int], serves: bool) -> None:
    assert archs.serves(arch, cc) is serves


def test_best_first() -> None:
    names = ["compute_75", "sm_100f", "compute_80", "sm_100", "sm_103", "sm_103a", "sm_90a"]
    expected = ["sm_103a", "sm_100f", "sm_103", "sm_100", "compute_80", "compute_75"]
    assert archs.serving(names, (10, 3)) == expected


@pytest.mark.parametrize(
    ("arch", "gencode"),
    [
        ("sm_80", "arch=compute_80,code=sm_80"),
        ("sm_90a", "arch=compute_90a,code=sm_90a"),
        ("sm_100f", "arch=compute_100f,code=sm_100f"),
        ("compute_80", "arch=compute_80,code=compute_80"),
    ],
)
def test_gencode(arch: str, gencode: str) -> None:
    assert archs.gencode(arch) == gencode


def test_host_is_no_target_of_nvcc() -> None:
    with pytest.raises(ValueError, match="host"):
        archs.gencode("host")


@pytest.mark.parametrize("arch", ["sm80", "sm_8", "sm_90b", "gfx942", "compute_", "sm_080", "sm_90a "])
def test_form(arch: str) -> None:
    with pytest.raises(ValueError, match="form"):
        archs.parse(arch)


@pytest.mark.parametrize(
    ("words", "present", "resolved"),
    [
        ("all", [], ("compute_75", "compute_80", "sm_90a")),
        ("portable", [], ("compute_75", "compute_80")),
        ("sm_90a,compute_80", [], ("compute_80", "sm_90a")),
        ("sm_90a; sm_90a", [], ("sm_90a",)),
        ("native", [(9, 0)], ("sm_90a",)),
        ("native", [(9, 0), (8, 6), (9, 0)], ("compute_80", "sm_90a")),
        ("native", [], ("compute_75", "compute_80")),
        ("native", [(9, 0), (6, 0)], ("compute_75", "compute_80")),
        ("native,compute_75", [(9, 0)], ("compute_75", "sm_90a")),
    ],
)
def test_resolve(spec: Spec, words: str, present: list[tuple[int, int]], resolved: tuple[str, ...]) -> None:
    assert archs.resolve(words, spec, lambda: present) == resolved


def test_every_build_has_host_where_it_is_declared(spec: Spec) -> None:
    assert archs.with_host(["sm_90a"], spec) == ("sm_90a",)
    real = load()
    assert archs.with_host(["sm_90a", "compute_75"], real) == ("compute_75", "sm_90a", "host")
    assert archs.with_host(archs.resolve("all", real), real) == tuple(real.archs)
    assert "host" not in archs.resolve("portable", real)


@pytest.mark.parametrize("words", ["sm_90", "", " , ", "sm_90a,natve"])
def test_resolve_refuses(spec: Spec, words: str) -> None:
    with pytest.raises(UnknownName, match="valid: all"):
        archs.resolve(words, spec, list)


def test_present_reads_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 0, "9.0\n12.1\n[N/A]\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert archs.present() == [(9, 0), (12, 1)]


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 1)])
def test_present_without_a_gpu(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert archs.present() == []
