from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tilery import device, image, jit, policy
from tilery.device import DeviceInfo
from tilery.errors import TileryError
from tilery.generator.variant import Variant
from tilery.pack import builtin
from tilery.policy import Policy
from tilery.store import open_store

# All of this needs PyTorch, which the extra `test` does not install.
NO_TORCH = find_spec("torch") is None
collect_ignore_glob = ["*.py"] if NO_TORCH else []

# JAX would take most of the GPU's memory at its first use.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_report_collectionfinish() -> str:
    return "tests/gpu is left out: PyTorch is not installed" if NO_TORCH else ""


@pytest.fixture(scope="session")
def gpu() -> DeviceInfo:
    """The GPU under test, number 0."""
    if not device.devices():
        pytest.skip(device.why_none())
    import torch

    assert torch.cuda.is_available(), f"there is {device.info(0)}, and this torch {torch.__version__} cannot use it"
    return device.info(0)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that begins empty, so that nothing compiled earlier hides a fault."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def compiled(gpu: DeviceInfo, store: Path) -> None:
    """What no image of the pack holds, compiled on all cores at once; a variant's own test shows its errors."""
    pack, kept = builtin(), open_store(store)
    target = jit.target(gpu.cc, pack.archs, jit.toolchain())
    served = image.order(pack.images, gpu.cc)
    missing = [v for v in pack.variants.values() if not any(pack.image_of(arch, v) for arch in served)]

    def compile_one(variant: Variant) -> None:
        with suppress(TileryError):
            jit.compile_variant(variant, target, pack=pack, store=kept)

    if target is not None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, missing))


@pytest.fixture
def force() -> Callable[[str], None]:
    """Let one variant alone serve."""
    return lambda name: policy.use(replace(policy.current(), force_variant=name))


@pytest.fixture(autouse=True)
def settings(request: pytest.FixtureRequest, gpu: DeviceInfo, store: Path) -> Iterator[None]:
    """A known policy and seed; the run ends where a kernel broke the context, as nothing can be tested after that."""
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
    policy.use(Policy(store=store))
    yield
    policy.use(None)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        cause = str(error).splitlines()[0]
        pytest.exit(f"{request.node.nodeid} broke the CUDA context, nothing after it can run: {cause}", returncode=1)
