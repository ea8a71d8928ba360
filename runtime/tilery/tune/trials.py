"""The candidates of one problem on a GPU: CUDA graphs of launches, replayed in turn between events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .. import device
from ..errors import DriverError
from ..generator.variant import Variant
from .gpu import Operands


class Trials:
    """The candidates of one problem: checked, and timed by graphs of equally many launches over rotating sets.

    Args:
        operands: of the problem.
        kernels: the candidates by name, with the driver's handle of each.
    """

    def __init__(self, operands: Operands, kernels: Mapping[str, tuple[Variant, Any]]) -> None:
        self._operands, self._gpu = operands, operands.gpu
        self._kernels = kernels
        self._launches = {name: operands.launcher(*kernel) for name, kernel in kernels.items()}
        self._graphs: dict[str, Any] = {}
        self._count = 0
        self.sets, self.names = operands.sets, list(kernels)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(DriverError):  # after a kernel's fault
            self._destroy()

    def check(self, name: str) -> tuple[float, float]:
        """See `Operands.check`."""
        self._gpu.before()
        return self._operands.check(self._launches[name])

    def prepare(self, names: Sequence[str], launches: int) -> None:
        """Make a graph of so many launches for each candidate, and put it on the GPU."""
        self._gpu.before()
        self._destroy()
        self._count = launches
        for name in names:
            self._graphs[name] = self._graph(*self._kernels[name])
            device.call("cuGraphUpload", self._graphs[name], self._gpu.stream)

    def _graph(self, variant: Variant, kernel: Any) -> Any:
        """One launch after the other. Not captured: during a capture, the program may not wait for its context."""
        node, pointers = self._operands.node(variant, kernel), self._operands.pointers
        graph = device.call("cuGraphCreate", 0)
        try:
            before: list[Any] = []
            for index in range(self._count):
                node.kernelParams = pointers[index % len(pointers)]  # copied into the graph
                before = [device.call("cuGraphAddKernelNode", graph, before, len(before), node)]
            return device.call("cuGraphInstantiate", graph, 0)
        finally:
            device.call("cuGraphDestroy", graph)

    def replay(self, names: Sequence[str], rounds: int) -> dict[str, list[float]]:
        """Microseconds of one launch, replay by replay, A B A B; the GPU never waits for the host."""
        if not names:
            return {}
        self._gpu.before()
        stream, call = self._gpu.stream, device.call
        events = iter(self._gpu.events(rounds * len(names)))
        self._gpu.head_start()
        call("cuGraphLaunch", self._graphs[names[0]], stream)
        taken: dict[str, list[tuple[Any, Any]]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                start, end = next(events)
                call("cuEventRecord", start, stream)
                call("cuGraphLaunch", self._graphs[name], stream)
                call("cuEventRecord", end, stream)
                taken[name].append((start, end))
        self._gpu.synchronize()
        return {
            name: [float(call("cuEventElapsedTime", *pair)) * 1e3 / self._count for pair in pairs]
            for name, pairs in taken.items()
        }

    def _destroy(self) -> None:
        for graph in self._graphs.values():
            device.call("cuGraphExecDestroy", graph)
        self._graphs.clear()
