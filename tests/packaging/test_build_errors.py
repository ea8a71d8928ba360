"""What stops a build says what was asked, what was found and what to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest


def refusal(checkout, **options: str) -> str:
    done = checkout.configure(**options)
    assert done.returncode != 0, done.stdout
    return " ".join(done.stdout.split())


@pytest.fixture
def bare_path(stubbed, tmp_path: Path) -> Path:
    """PATH with cmake, ninja and g++ only, and no wheel of nvcc beside Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cmake", "ninja", "g++", "cc1plus"):
        found = shutil.which(name, path=stubbed.env["PATH"])
        if found:
            (folder / name).symlink_to(Path(found).resolve() if name == "g++" else found)
    del stubbed.env["TILERY_NVCC"]
    (tmp_path / "hidden" / "nvidia").mkdir(parents=True)
    (tmp_path / "hidden" / "nvidia" / "__init__.py").touch()
    stubbed.env |= {"PATH": str(folder), "PYTHONPATH": str(tmp_path / "hidden")}
    return folder


def test_no_nvcc(stubbed, bare_path):
    text = refusal(stubbed)
    assert "tilery needs nvcc 13.0 or later" in text
    assert "no nvcc in CUDA_HOME, beside this Python" in text
    assert 'pip install "cuda-toolkit[nvcc,cccl]==13.0.*"' in text


def test_the_nvcc_that_is_asked_for_is_not_there(stubbed):
    stubbed.env["TILERY_NVCC"] = "/nowhere/nvcc"
    assert "TILERY_NVCC: there is no /nowhere/nvcc" in refusal(stubbed)


def test_the_nvcc_that_is_asked_for_does_not_run(stubbed, program, tmp_path):
    program(tmp_path / "nvcc", "exit 1")
    stubbed.env["TILERY_NVCC"] = str(tmp_path / "nvcc")
    assert f"TILERY_NVCC: {tmp_path}/nvcc does not run" in refusal(stubbed)


def test_the_nvcc_that_is_asked_for_is_old(stubbed):
    stubbed.env["STUB_NVCC_VERSION"] = "12.9"
    text = refusal(stubbed)
    assert f"TILERY_NVCC: {stubbed.nvcc} is version 12.9" in text
    assert "Set TILERY_NVCC to the path of an nvcc" in text


def test_an_old_nvcc_of_other_software_is_passed_over(stubbed, bare_path, program, tmp_path):
    program(tmp_path / "old" / "bin" / "nvcc", 'echo "release 12.4, V12.4.1"')
    program(bare_path / "nvcc", f'exec "{stubbed.nvcc}" "$@"')
    stubbed.env["CUDA_HOME"] = str(tmp_path / "old")
    done = stubbed.configure(TILERY_ARCHS="sm_90a")
    assert done.returncode == 0, done.stdout
    assert "nvcc rejected, CUDA_HOME" in done.stdout
    assert f"nvcc 13.0 from PATH: {bare_path}/nvcc" in done.stdout


def test_no_host_compiler(stubbed, bare_path):
    (bare_path / "g++").unlink(missing_ok=True)
    del stubbed.env["CUDAHOSTCXX"]
    stubbed.env |= {"TILERY_NVCC": str(stubbed.nvcc)}
    text = refusal(stubbed)
    assert "nvcc needs a host C++ compiler, and there is no g++ in PATH" in text
    assert "apt-get install g++" in text


def test_a_host_compiler_that_is_too_old(stubbed):
    stubbed.env["STUB_CXX_VERSION"] = "10"
    text = refusal(stubbed)
    assert f"needs g++ or clang++ 11 or later, and {stubbed.cxx} is version '10'" in text
    assert "CUDAHOSTCXX" in text


def test_a_host_unit_that_does_not_compile_shows_the_command_and_its_output(stubbed, program):
    assert stubbed.configure(TILERY_ARCHS="compute_75").returncode == 0
    program(stubbed.cxx, 'echo "gemm_naive.cuh:3: error: expected a ;" >&2; exit 1')
    done = stubbed.run("cmake", "--build", stubbed.build, "--target", "images/host/kernels.so")
    assert done.returncode != 0
    assert "gemm_naive.cuh:3: error: expected a ;" in done.stdout
    assert "-DTILERY_HOST" in done.stdout


@pytest.mark.parametrize("archs", ["portable", "native", "all", "compute_75"])
def test_every_build_has_the_host_device(stubbed, archs):
    done = stubbed.configure(TILERY_ARCHS=archs)
    assert re.search(r"images to compile for .*\bhost\b", done.stdout), done.stdout


def test_an_unknown_arch(stubbed):
    text = refusal(stubbed, TILERY_ARCHS="sm_90a,sm_90b")
    assert "TILERY_ARCHS=sm_90a,sm_90b" in text
    assert "unknown arch 'sm_90b'; nearest: sm_90a" in text


def test_an_unknown_tier(stubbed):
    text = refusal(stubbed, TILERY_TIER="wid")
    assert "TILERY_TIER=wid" in text
    assert "'core', 'wide', 'exhaustive'" in text


def test_a_fault_in_the_declarations(stubbed):
    path = stubbed.source / "variants.toml"
    path.write_text(path.read_text().replace('tier = "core"', 'teir = "core"', 1))
    text = refusal(stubbed)
    assert "variants.toml" in text
    assert "nearest: tier" in text


def test_a_kernel_that_does_not_compile_shows_the_command_and_its_output(stubbed, program):
    assert stubbed.configure(TILERY_ARCHS="sm_90a").returncode == 0
    program(stubbed.nvcc, 'echo "gemm_naive.cuh(3): error: expected a ;" >&2; exit 1')
    done = stubbed.run("cmake", "--build", stubbed.build)
    assert done.returncode != 0
    assert "gemm_naive.cuh(3): error: expected a ;" in done.stdout
    assert "-gencode arch=compute_90a,code=sm_90a" in done.stdout
