"""A GPU of host memory, and the simulated pack, for the tests of the tuner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import simulated
from tests.tune.fake_driver import FakeDriver
from tilery import blocklist, device, image, jit, policy
from tilery.generator.variant import Variant
from tilery.policy import Policy
from tilery.problem import Problem
from tilery.tune import buffers, identity, session, tuner

H200 = replace(simulated.H200, ordinal=0, driver_version=13000)


class Bench(FakeDriver):
    """The fake driver, with the problem that is measured at the moment."""

    def __init__(self) -> None:
        super().__init__(lambda: self.current)
        self.current = simulated.problem()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    made = Bench()
    monkeypatch.setattr(device, "_driver", lambda: made)
    monkeypatch.setattr(device, "info", lambda ordinal: H200)
    monkeypatch.setattr(device, "_contexts", {})
    monkeypatch.setattr(image, "load", lambda found, variant, ordinal: f"kernel {variant.name}")
    monkeypatch.setattr(image, "load_code", lambda key, code, variant, *rest: f"kernel {variant.name}")
    monkeypatch.setattr(jit, "toolchain", lambda: simulated.NVRTC)
    monkeypatch.setattr(jit, "compile_variant", lambda variant, arch, **_: jit.Code(b"code", "nvrtc"))
    monkeypatch.setattr(session, "builtin", pack)
    monkeypatch.setattr(blocklist, "known", lambda *args: {})
    monkeypatch.setattr(blocklist, "driver", lambda gpu: "580.95")
    monkeypatch.setattr(identity.shutil, "which", lambda name: None)
    monkeypatch.setattr(identity, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(buffers, "ROTATED_BYTES", 1 << 20)
    monkeypatch.setattr(buffers, "ROTATED_L2", 0)
    place = tuner.Tuner.measure

    def measure(self: Any, asked: Any, *args: Any, **more: Any) -> Any:
        made.current = asked.problem
        return place(self, asked, *args, **more)

    monkeypatch.setattr(tuner.Tuner, "measure", measure)
    policy.use(Policy(store=None))
    yield made
    policy.use(None)


def pack() -> Any:
    """The simulated pack, with hashes of the form that records have."""
    table = simulated.table()
    for index, row in enumerate(table["VARIANTS"].values()):
        row["hash"] = f"{index:064x}"[::-1]
    return simulated.pack(VARIANTS=table["VARIANTS"])


def names(problem: Problem) -> list[str]:
    """The candidates with an image, from the first tier to the last."""
    return [one.variant.name for one in tuner.candidates(problem, H200, pack())]


def variant_of(name: str) -> Variant:
    """A variant of the simulated pack."""
    return simulated.VARIANTS[name]
