from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tilery
from tilery import device, policy
from tilery.cli import app
from tilery.policy import Policy

Run = Callable[..., Any]
# Variables that make rich take a pipe for a terminal.
TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Default settings and plain text, whatever the tests' own environment says, and a store of the test's own."""
    for name in TERMINAL:
        monkeypatch.delenv(name, raising=False)
    policy.use(Policy(store=tmp_path / "store"))
    yield
    policy.use(None)


@pytest.fixture
def run() -> Run:
    """Run a command in this process: exit_code, stdout, stderr."""

    def invoke(*args: str) -> Any:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def spawn(tmp_path: Path) -> Run:
    """Run a command in a process of its own, which sees no GPU."""

    def start(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TILERY_")}
        env = clean | {"CUDA_VISIBLE_DEVICES": "", "TILERY_STORE": str(tmp_path / "store")} | variables
        command = [sys.executable, "-c", "from tilery.cli import main; main()", *args]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    return start


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPUs of this machine."""
    monkeypatch.setattr(device, "devices", lambda: ())
    monkeypatch.setattr(device, "why_none", lambda: "this test hides them")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the installed package, free to be damaged; its parent goes into PYTHONPATH."""
    source = Path(tilery.__file__).parent
    if not (source / "_table.py").exists():
        pytest.skip("an editable install takes its files from the checkout, and cannot be copied")
    copied = tmp_path / "site" / "tilery"
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
    return copied
