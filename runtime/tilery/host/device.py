"""The CPU as a device."""

from __future__ import annotations

import os
from dataclasses import replace

from ..device import DeviceInfo


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def info(described: DeviceInfo) -> DeviceInfo:
    """This machine's CPU, with the rest of the pack's description."""
    count = cores()
    return replace(described, name=f"{described.name} ({count} core{'s' if count != 1 else ''})", sms=count)
