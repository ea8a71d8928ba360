"""Graphs of launches, with the structs of the real bindings, which need no GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tests.runtime.simulated import problem
from tests.tune.conftest import Bench, names, variant_of
from tilery import device
from tilery.launch import grid
from tilery.tune.gpu import Gpu

P = problem(300, 500, 64, batch=3)


def test_a_node_is_the_launch(driver: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(driver, "CUDA_KERNEL_NODE_PARAMS", real.CUDA_KERNEL_NODE_PARAMS, raising=False)
    variant = variant_of(names(P)[0])
    with Gpu(0) as gpu:
        operands = gpu.place(gpu.layout(P))
        node = operands.node(variant, real.CUkernel(0x1230))
        node.kernelParams = operands.pointers[1]
        launch: Any = operands.launcher(variant, real.CUkernel(0x1230))
        assert device.function("cuLaunchKernel") == launch.func
    sizes = (node.gridDimX, node.gridDimY, node.gridDimZ, node.blockDimX, node.blockDimY, node.blockDimZ)
    assert (*sizes, node.sharedMemBytes) == launch.args[1:]
    assert sizes[:3] == grid(variant, P.m, P.n, P.batch)
    assert int(node.kern) == int(launch.args[0])
    assert int(node.func) == 0
    # CUDA_KERNEL_NODE_PARAMS of cuda.h: func, seven ints, kernelParams, extra, kern, ctx.
    words = (ctypes.c_uint64 * 9).from_address(node.getPtr())
    assert (words[5], words[6], words[7], words[8]) == (operands.pointers[1], 0, 0x1230, 0)


def test_the_bindings_have_what_graphs_need() -> None:
    real: Any = pytest.importorskip("cuda.bindings.driver")
    for name in ("cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiate", "cuGraphUpload", "cuGraphDestroy"):
        assert callable(getattr(real, name))
