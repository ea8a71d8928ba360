"""What the tests of the store share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tilery.stats import stats
from tilery.store import Key, Store

KEY = Key("binary", (("variant", "gemm_naive_f32_any_16x16x1"), ("arch", "sm_90a"), ("nvrtc", "13.0")))
OTHER = Key("binary", (("variant", "other"),))
PAYLOAD = b"\x7fELF code\nwith a newline"

PRELUDE = """
import fcntl, os, random, signal, sys, time
from pathlib import Path
from tests.store.helpers import KEY, OTHER, PAYLOAD, numbered
from tilery.store import Key, Store
base = Path(sys.argv[1])
"""


def numbered(index: int) -> Key:
    return Key("binary", (("variant", f"variant {index}"),))


def counted(name: str) -> int:
    return int(stats()["store"].get(name, 0))


def entry(store: Store, key: Key = KEY) -> Path:
    assert store.root is not None
    return store.root / "v1" / key.kind / key.digest[:2] / key.digest


def files(root: Path) -> list[str]:
    """Every file that is no lock, relative to the root."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.suffix != ".lock")


def script(text: str, *args: object, command: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
    """A process that runs the text after `PRELUDE`; the first argument is ``base``."""
    code = PRELUDE + textwrap.dedent(text)
    line = [*command, sys.executable, "-c", code, *map(str, args)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in (str(Path.cwd()), *sys.path) if path)}
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=env, **options)


def output(process: subprocess.Popen[str], timeout: float = 100) -> str:
    """What a process prints; it must end well."""
    text, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, text
    return text
