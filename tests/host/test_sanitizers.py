"""The same tests under AddressSanitizer and UBSan, in a Python of their own that has libasan preloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host.harness import SANITIZED

HERE = Path(__file__).parent
# A sanitized run takes 40 s on two idle cores.
TIMEOUT_S = 280
pytestmark = pytest.mark.skipif(SANITIZED, reason="this is the inner run")

# A kernel that reads behind its operand, with no checks but the sanitizer's.
OVERRUN = f"""
from pathlib import Path
import numpy as np
from tests.host.harness import build
from tests.host.test_device import Params
library = build({{"probe": Path({str(HERE / "probe.cu")!r}).read_text()}}, Path("build"), check=False)
data = np.zeros(64, np.int32)
library.run("faulty", Params(data.ctypes.data, data.ctypes.data, 0, 11), (1,), (64,))
"""


def sanitized(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    def find(name: str) -> str:
        return subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()

    environment = os.environ | {
        "LD_PRELOAD": f"{find('libasan.so')}:{find('libubsan.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_under_sanitizers() -> None:
    """Each launch is printed with its seeds before it runs: the last is at fault where a sanitizer ends the process."""
    tests = [str(HERE / name) for name in ("test_gemm.py", "test_device.py")]
    done = sanitized(["-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider", *tests], HERE.parent.parent)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def test_sanitizer_sees_an_overrun_in_a_fiber(tmp_path: Path) -> None:
    done = sanitized(["-c", OVERRUN], tmp_path)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-3000:]
    assert "in faulty" in done.stderr, done.stderr[-3000:]
