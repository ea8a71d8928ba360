"""``tilery debug``: one variant on the host device, every access watched, and who wrote the first wrong element."""

from __future__ import annotations

import math
import re
import secrets
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from .. import __version__, policy
from ..dtypes import canonical_dtype
from ..errors import HostError, InvalidInput, TileryError, UnknownName
from ..generator.errors import GeneratorError
from ..generator.expand import points
from ..generator.load import TEMPLATES, load
from ..generator.render import content_hash, render
from ..generator.variant import Variant
from ..host import Library, compile, jit
from ..problem import OUT_DTYPES
from ..store import store_for
from ..trial import Case, Epilogue, Odd, Shape, Wrong, chunk, fit, input_dtype
from .output import Json, console, print_json

FLAGS = ("-O1", "-g")
SCHEDULES = 4
SEEDS = 2**32
_WHO = re.compile(r", block \((\d+), (\d+), (\d+)\)(?:, thread (\d+))?: ")


@dataclass
class Found:
    """What the launches of one case showed: the first of each kind, and the number of the order that showed it.

    Attributes:
        ratio: the largest error, as a part of what is allowed.
        fault: what the device told.
        wrong: the first wrong element, of ``wrong_count``.
        orders: by ``fault`` and ``wrong``.
    """

    ratio: float = 0.0
    fault: str = ""
    wrong: Wrong | None = None
    wrong_count: int = 0
    orders: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every order gave the right result without a fault."""
        return not self.orders


def debug(
    variant: Annotated[str, Argument(help="Name of a variant of any tier, as `tilery list` shows it.")],
    m: Annotated[int | None, Option("--m", min=1, help="Rows. Default: two tiles and one chunk.")] = None,
    n: Annotated[int | None, Option("--n", min=1, help="Columns. Default: as of m.")] = None,
    k: Annotated[int | None, Option("--k", min=0, help="What is summed over. Default: as of m.")] = None,
    batch: Annotated[int, Option(min=1, help="Number of independent products.")] = 1,
    seed: Annotated[
        int | None, Option(min=0, max=SEEDS - 1, help="Of the data and the orders. Default: a new one.")
    ] = None,
    align_offset: Annotated[int, Option(min=0, help="Elements from a 16-byte boundary to A, B and D.")] = 0,
    out_dtype: Annotated[str | None, Option(help="Of the result. Default: as the inputs; s32 for s8.")] = None,
    activation: Annotated[str, Option(help="relu, gelu or silu.")] = "none",
    bias: Annotated[bool, Option("--bias", help="Add a bias.")] = False,
    accumulate: Annotated[bool, Option("--accumulate", help="-3 * A @ B + 2 * C in place of A @ B.")] = False,
    schedules: Annotated[int, Option(min=1, help="How many orders of the threads to try.")] = SCHEDULES,
    order: Annotated[int | None, Option(min=0, help="The first order, 0 for none. Default: the seed.")] = None,
    templates: Annotated[Path, Option(help="A changed copy of the templates.")] = TEMPLATES,
    block: Annotated[int | None, Option(min=0, help="Block for --gdb to stop in. Default: the one at fault.")] = None,
    thread: Annotated[int | None, Option(min=0, help="Thread of it.")] = None,
    gdb: Annotated[bool, Option("--gdb", help="Print the command that stops inside that thread.")] = False,
    json: Json = False,
) -> None:
    """Run one variant on the CPU: wrong elements and who wrote them, races, unwritten reads, accesses out of bounds."""
    found, seed = find(variant), secrets.randbelow(SEEDS) if seed is None else seed
    epilogue = _epilogue(found, out_dtype, activation, bias, accumulate)
    case = Case(found, _shape(found, m, n, k, batch), epilogue, _odd(found, align_offset), seed)
    stop = _stop(case, block, thread)
    first = seed if order is None else order
    with _interruptible():
        result = run(case, range(first, first + schedules), templates, stop)
    again = repeat(case, next(iter(result.orders.values()), first), templates)
    report = _report(case, result, schedules, again)
    if gdb:
        report["gdb"] = gdb_command(case, again, stop or at_fault(case, result))
    if json:
        print_json(report)
    else:
        _print(case, report)
    if not result.ok:
        raise typer.Exit(1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once: Python's own handler would wait for the end of the kernel."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def find(name: str) -> Variant:
    """The variant of this name, of any tier.

    Raises:
        UnknownName: there is none; the message has the nearest ones.
    """
    declared = {point.variant.name: point.variant for point in points(load())}
    if name not in declared:
        raise UnknownName("variant", name, declared)
    return declared[name]


def _shape(variant: Variant, m: int | None, n: int | None, k: int | None, batch: int) -> Shape:
    whole = chunk(variant)
    default = [2 * tile + whole for tile in variant["tile"]]
    m, n, k = (own if size is None else size for size, own in zip((m, n, k), default, strict=True))
    shape = Shape(m, n, k, batch)
    if (right := fit(variant, shape)) != shape:
        asked = f"{shape.m} x {shape.n} x {shape.k} (m, n, k)"
        raise InvalidInput(
            f"{variant.name} takes no {asked}: rows of A and B must be whole pieces of {variant.align} bytes; the next "
            f"that it takes is {right.m} x {right.n} x {right.k}"
        )
    return shape


def _odd(variant: Variant, offset: int) -> Odd:
    """Rows are one chunk apart, so that a write between them shows."""
    whole = chunk(variant)
    if offset % whole:
        raise InvalidInput(f"--align-offset {offset} must be a multiple of {whole}: {variant.name} reads aligned rows")
    return Odd(whole, offset)


def _epilogue(variant: Variant, out: str | None, activation: str, bias: bool, accumulate: bool) -> Epilogue:
    out_dtype = canonical_dtype(out) if out else OUT_DTYPES[input_dtype(variant)][0]
    scales = (-3.0, 2.0) if accumulate else (1.0, 0.0)
    return Epilogue(out_dtype, *scales, bias, activation)


def _stop(case: Case, block: int | None, thread: int | None) -> tuple[int, int] | None:
    if block is None and thread is None:
        return None
    blocks = math.prod(case.grid)
    for name, value, limit in (("block", block, blocks), ("thread", thread, case.variant.threads)):
        if value is not None and value >= limit:
            raise InvalidInput(f"--{name} {value}: this launch has {limit}, counted from 0")
    return block or 0, thread or 0


def run(case: Case, orders: range, templates: Path, stop: tuple[int, int] | None = None) -> Found:
    """Launch a case once for each order of its threads.

    Args:
        case: what to launch.
        orders: seeds of the orders; 0 is the order of the threads' numbers.
        templates: folder of the templates.
        stop: block and thread that call ``tilery_host_stop``.

    Raises:
        CompileError: there is no C++ compiler, or it failed.
        InvalidInput: the templates cannot be rendered.
        TileryError: nothing can be written.
    """
    found = Found()
    try:
        with tempfile.TemporaryDirectory(prefix="tilery-debug-") as folder:
            library = _library(case.variant, templates, Path(folder), keep=stop is None)
            for order in orders:
                _launch(case, library, order, found, stop)
    except OSError as error:
        raise TileryError(f"no library can be built in a temporary folder: {error}. TMPDIR can name another") from error
    return found


def _launch(case: Case, library: Library, order: int, found: Found, stop: tuple[int, int] | None) -> None:
    try:
        # one CPU thread, so that a repeated run finds the same fault first
        case.run(library, order=order, workers=1, stop=stop or (-1, -1))
    except HostError as error:
        if not found.fault:
            found.fault, found.orders["fault"] = str(error), order
        return
    found.ratio = max(found.ratio, case.error())
    count, wrong = case.wrong()
    if found.wrong is None and wrong is not None:
        found.wrong, found.wrong_count, found.orders["wrong"] = wrong, count, order


def _library(variant: Variant, templates: Path, folder: Path, keep: bool) -> Library:
    """The variant with checks. A kept one comes from the store; one for a debugger has its source in ``folder``."""
    try:
        source, content = render(variant, templates), content_hash(variant, templates, host=True)
    except (GeneratorError, OSError) as error:
        raise InvalidInput(f"{error}. The templates must be a whole copy of {TEMPLATES}") from None
    out = folder / "kernel.so"

    def make() -> bytes:
        return compile({variant.name: source}, out, check=True, flags=FLAGS, templates=templates).read_bytes()

    if not keep:
        make()
        return Library(out)
    store, key = store_for(policy.current()), jit.key(variant, " ".join([content, "check", *FLAGS]), __version__)
    return jit.load(store.get(key) or store.make(key, make), variant.name)


def at_fault(case: Case, found: Found) -> tuple[int, int]:
    """Block and thread to look at: the writer of the wrong element, else whom the fault names, else the first."""
    if found.wrong is not None and found.wrong.block >= 0:
        return found.wrong.block, found.wrong.thread
    if match := _WHO.search(found.fault):
        x, y, z, thread = (int(part or 0) for part in match.groups())
        return x + case.grid[0] * (y + case.grid[1] * z), thread
    return 0, 0


def repeat(case: Case, order: int, templates: Path) -> list[str]:
    """The arguments of a run like this one, of one order."""
    shape, epilogue = case.shape, case.epilogue
    options: dict[str, Any] = {"m": shape.m, "n": shape.n, "k": shape.k, "batch": shape.batch, "seed": case.seed}
    options |= {"align-offset": case.odd.shift, "out-dtype": epilogue.out_dtype, "activation": epilogue.activation}
    options |= {"schedules": 1, "order": order}
    if templates != TEMPLATES:
        options["templates"] = templates.absolute()
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["debug", case.variant.name, *words, *["--bias"] * epilogue.bias, *["--accumulate"] * (epilogue.beta != 0)]


def gdb_command(case: Case, again: list[str], stop: tuple[int, int]) -> str:
    """The command that stops as a thread enters the kernel, and that goes on to where a fault is told."""
    steps = ["set breakpoint pending on", "break tilery_host_stop", "run", f"tbreak {case.variant.name}", "continue"]
    steps.append("break host::Worker::fail")
    options = [word for step in steps for word in ("-ex", step)]
    target = ["--block", str(stop[0]), "--thread", str(stop[1])]
    return shlex.join(["gdb", "-q", *options, "--args", sys.executable, "-m", "tilery.cli", *again, *target])


def _report(case: Case, found: Found, schedules: int, again: list[str]) -> dict[str, Any]:
    wrong = None
    if found.wrong is not None:
        values = found.wrong._asdict() | {key: _json(getattr(found.wrong, key)) for key in ("got", "expected", "bound")}
        wrong = values | {"count": found.wrong_count, "order": found.orders["wrong"]}
    return {
        "variant": case.variant.name,
        "problem": dict(zip(("m", "n", "k", "batch"), case.shape, strict=True)),
        "out_dtype": case.epilogue.out_dtype,
        "seed": case.seed,
        "schedules": schedules,
        "ok": found.ok,
        "ratio": _json(found.ratio),
        "wrong": wrong,
        "fault": {"text": found.fault, "order": found.orders["fault"]} if found.fault else None,
        "repeat": shlex.join(["tilery", *again]),
    }


def _json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _print(case: Case, report: dict[str, Any]) -> None:
    screen, shape = console(), case.shape
    sizes = f"{shape.m} x {shape.n} x {shape.k}" + f", batch {shape.batch}" * (shape.batch > 1)
    screen.print(f"{case.variant.name}, {sizes}, seed {case.seed}", style="bold", soft_wrap=True)
    if (wrong := report["wrong"]) is not None:
        block, thread = wrong["block"], wrong["thread"]
        place = f"D[{wrong['row']}, {wrong['col']}]" + f" of product {wrong['batch']}" * (shape.batch > 1)
        who = f"written by thread {thread} of block {block}" if block >= 0 else "which nobody has written"
        values = f"{wrong['got']}, expected {wrong['expected']} within {wrong['bound']:.3g}"
        first = f"the first is {place}, {who}: {values} (order {wrong['order']})"
        elements = case.placed["d"].view.size
        screen.print(f"wrong: {wrong['count']} of {elements} elements; {first}", style="red", soft_wrap=True)
    if fault := report["fault"]:
        screen.print(f"fault: {fault['text']} (order {fault['order']})", style="red", soft_wrap=True)
    if report["ok"]:
        orders = f"{report['schedules']} thread orders" if report["schedules"] > 1 else "one thread order"
        screen.print(f"ok: {orders}, no fault, the largest error is {report['ratio']:.2g} of the bound", style="green")
    else:
        screen.print(f"again: {report['repeat']}", soft_wrap=True)
    if "gdb" in report:
        screen.print(report["gdb"], soft_wrap=True)
