"""Copies of the checkout that tests build with CMake, with a real nvcc or a stub."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ("CMakeLists.txt", "cmake", "pyproject.toml", "variants.toml", "generator", "templates", "tuning")


@dataclass
class Checkout:
    """A copy of what the build reads, and a build folder beside it; both with a space and a letter outside ASCII."""

    folder: Path
    env: dict[str, str]
    build: Path = field(init=False)

    def __post_init__(self) -> None:
        self.build = self.folder / "build é 1"
        self.source = self.folder / "source é 1"
        self.source.mkdir(parents=True)
        junk = shutil.ignore_patterns("__pycache__", ".*")
        for name in INPUTS:
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, self.source / name, ignore=junk)
            elif path.exists():
                shutil.copy2(path, self.source / name)

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command], env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def configure(self, **options: str) -> subprocess.CompletedProcess[str]:
        """Runs CMake; an option is a name in upper case and its value."""
        defines = [f"-D{key}={value}" for key, value in options.items()]
        # Python_EXECUTABLE as the build backend gives it.
        python = f"-DPython_EXECUTABLE={sys.executable}"
        return self.run("cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", python, *defines)

    def make(self, *targets: str) -> str:
        done = self.run("cmake", "--build", self.build, *(["--target", *targets] if targets else []))
        assert done.returncode == 0, done.stdout
        return done.stdout


@dataclass
class StubbedCheckout(Checkout):
    """A Checkout whose nvcc and g++ only write down what they were asked for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.log = self.folder / "compilers.log"
        self.nvcc, self.cxx = self.folder / "nvcc", self.folder / "g++"
        for program in (self.nvcc, self.cxx):
            stub = Path(__file__).with_name("stub_compilers.py")
            write_program(program, f'exec "{sys.executable}" -IS "{stub}" {program.name} "$@"')
        self.env |= {"TILERY_NVCC": str(self.nvcc), "CUDAHOSTCXX": str(self.cxx), "STUB_LOG": str(self.log)}

    def compiled(self) -> list[str]:
        """What a build compiles, as sorted `arch/image` lines; of host the units, the layer `run` and the library."""
        self.log.write_text("")
        self.make()
        return sorted(self.log.read_text().splitlines())


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def environment(*without: str) -> dict[str, str]:
    """This process's environment with this Python's tools first in PATH."""
    tools = str(Path(sys.executable).parent)
    env = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    return {key: value for key, value in env.items() if key not in without}
