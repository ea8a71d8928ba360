"""Which GPU of a machine is measured, and how fast its clock is meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from .. import device

SMI_SECONDS = 1


def uuid_of(ordinal: int) -> str:
    """The GPU's unique number as nvidia-smi writes it."""
    raw = device.call("cuDeviceGetUuid", device.call("cuDeviceGet", device.info(ordinal).ordinal)).bytes
    text = bytes(raw).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def lock_path(uuid: str) -> Path:
    """The file that is locked while a GPU is measured, the same for all processes of a machine."""
    return Path(gettempdir()) / f"tilery-tune-{uuid}.lock"


class Clock:
    """The SM clock of a GPU, once a second from nvidia-smi; 0 where that is not there or does not say."""

    def __init__(self, uuid: str) -> None:
        self.mhz, self._uuid = 0, uuid
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Clock:
        program = shutil.which("nvidia-smi")
        if program is not None:
            query = ["--query-gpu=clocks.sm", "--format=csv,noheader,nounits", f"--loop={SMI_SECONDS}"]
            with suppress(OSError):
                self._process = subprocess.Popen(
                    [program, f"--id={self._uuid}", *query],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        return self

    def _read(self, lines: Any) -> None:
        for line in lines:
            self.mhz = int(line) if line.strip().isdigit() else 0

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
