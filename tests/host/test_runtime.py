"""NumPy arrays through the whole runtime, on a small pack: what serves, what is compiled, and what goes wrong."""

from __future__ import annotations

import hashlib
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilery
from generator import table
from generator.load import TEMPLATES, load
from generator.render import render
from tests.host.harness import CORE, build
from tilery import background, device, policy, reference
from tilery import pack as packs
from tilery.errors import CompileError, HostError, PackError, UnknownName, UnsupportedProblem
from tilery.generator.records import Gpu
from tilery.host import compiler, jit
from tilery.host import plan as plans
from tilery.pack import Pack
from tilery.problem import Problem
from tilery.stats import reset

Array = np.ndarray[Any, Any]
NAIVE = "gemm_naive_f32_any_16x16x1"
SIMT = "gemm_simt_f32_nn_64x128x16_t8x8_b3"
MMA = "gemm_mma_bf16_nn_128x128x32_w2x2_s2"
COMPILED = (NAIVE, "gemm_naive_bf16_any_16x16x1", "gemm_naive_s8_any_16x16x1", SIMT, MMA)


@cache
def declared() -> dict[str, Any]:
    """A _table.py without images and records."""
    names: dict[str, Any] = {}
    exec(table.build(load(), ["host"], "core", "1").text, names)
    return names


def packed(path: Path, names: tuple[str, ...] = COMPILED) -> Pack:
    """The pack whose host images are one library with these variants."""
    whole = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    images: dict[str, Any] = {}
    for name in names:
        images.setdefault(CORE[name].image, whole | {"variants": []})["variants"].append(name)
    return packs.from_table(declared() | {"IMAGES": {"host": images}}, path.parent.parent)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runtime") / "host"
    build({name: render(CORE[name]) for name in COMPILED}, folder, check=False)
    return folder / "kernels.so"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Pack], None]]:
    """Makes a pack that of the process, with nothing loaded and an empty store."""

    def install(pack: Pack) -> None:
        monkeypatch.setattr(packs, "builtin", lambda: pack)
        monkeypatch.setattr(plans, "builtin", lambda: pack)
        monkeypatch.setattr(plans, "_memory", plans.Memory())
        reset()

    with policy.scope(policy.Policy(store=tmp_path / "store")):
        yield install


@pytest.fixture
def pack(library: Path, use: Callable[[Pack], None]) -> Pack:
    made = packed(library)
    use(made)
    return made


def operands(m: int, n: int, k: int, dtype: Any = np.float32) -> tuple[Array, Array]:
    rng = np.random.default_rng(m + n + k)
    return tuple((4 * rng.standard_normal(shape)).astype(dtype) for shape in ((m, k), (k, n)))  # type: ignore[return-value]


def check(a: Array, b: Array, d: Array) -> None:
    dtype = {"float32": "f32", "bfloat16": "bf16", "int8": "s8"}[a.dtype.name]
    out = {"int32": "s32"}.get(d.dtype.name, dtype)
    allowed = reference.bound(a, b, dtype=dtype, out_dtype=out)
    assert reference.ratios(d, reference.exact(a, b, out_dtype=out), allowed, out).max() <= 1


def plan() -> plans.HostPlan:
    (made,) = [made for made in plans._memory.plans.values() if made]
    return made


# ---- what serves


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(np.float32, SIMT), (ml_dtypes.bfloat16, MMA), (np.int8, "gemm_naive_s8_any_16x16x1")],
)
def test_numpy_arrays_go_to_the_kernels(pack: Pack, dtype: Any, name: str) -> None:
    a, b = operands(70, 45, 37, dtype)
    with policy.scope(jit="off"):
        check(a, b, tilery.gemm(a, b))
    assert (plan().decision.variant.name, plan().decision.arch, plan().decision.source) == (name, "host", "image")
    counted = tilery.stats()
    assert counted["calls"] == {plan().tier: 1}
    assert counted["origins"] == {"image": 1}


def test_a_library_is_loaded_once(pack: Pack) -> None:
    for size in (5, 9, 5):
        tilery.gemm(*operands(size, size, size))
    assert tilery.stats()["origins"] == {"image": 1, "memory": 1}


def test_a_forced_variant_serves_or_raises(pack: Pack) -> None:
    a, b = operands(20, 20, 20)
    with policy.scope(force_variant=NAIVE):
        check(a, b, tilery.gemm(a, b))
        assert (plan().tier, plan().decision.variant.name) == ("forced", NAIVE)
        assert tilery.explain("gemm", m=9, n=9, k=9, dtype="f32", arch="host").tier == "forced"
    with policy.scope(force_variant=MMA), pytest.raises(UnknownName, match=r"forced.*computes in bf16"):
        tilery.gemm(a, b)


def test_explain_decides_for_this_cpu(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = tilery.explain("gemm", m=64, n=64, k=64, dtype="f32", arch="host", align=4)
    assert re.fullmatch(r"host CPU \(\d+ cores?\)", str(decision.device))
    assert (decision.device.cc, decision.device.shared_bytes) == ((0, 0), 232448)
    assert (decision.variant.name, decision.arch) == (SIMT, "host")
    assert "from the image of host" in str(decision)
    monkeypatch.setattr(device, "devices", lambda: ())
    assert tilery.explain("gemm", m=64, n=64, k=64, dtype="f32", align=4).device == decision.device


def test_rows_of_gpus_do_not_choose_for_the_cpu(pack: Pack, use: Callable[[Pack], None]) -> None:
    row = ("gemm", "f32", "nn", 4, 64, 64, 64)
    gpu = Gpu("GPU", (9, 0), 132, 60, 4800)
    use(replace(pack, table={(*row, gpu): (NAIVE,)}))
    assert tilery.explain("gemm", m=64, n=64, k=64, dtype="f32", align=4, arch="host").tier == "model"
    use(replace(pack, table={(*row, device.representative("host").gpu): (NAIVE,)}))
    decision = tilery.explain("gemm", m=64, n=64, k=64, dtype="f32", align=4, arch="host")
    assert (decision.tier, decision.variant.name) == ("bucket", NAIVE)


def test_addresses_within_an_element_are_read_one_by_one(pack: Pack) -> None:
    a, b = operands(20, 12, 8)
    odd = np.zeros(a.nbytes + 8, np.uint8)
    odd = odd[1 + -odd.ctypes.data % 4 :][: a.nbytes].view(np.float32).reshape(a.shape)
    odd[...] = a
    check(a, b, tilery.gemm(odd, b))
    assert plan().decision.variant.name == NAIVE


def test_threads_share_plans(pack: Pack) -> None:
    a, b = operands(100, 100, 100)
    first = tilery.gemm(a, b)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: tilery.gemm(a, b), range(12)))
    assert all(np.array_equal(first, result) for result in results)


# ---- what no image covers


def test_an_uncovered_layout_is_compiled_kept_and_found_again(pack: Pack, use: Callable[[Pack], None]) -> None:
    a, b = operands(40, 30, 20)
    for origin in ("compiler", "store"):
        use(pack)
        check(a, b, tilery.gemm(a.T.copy(), b.T.copy(), trans_a=True, trans_b=True))
        decision = plan().decision
        assert (decision.tier, decision.arch, decision.source) == ("jit", "host", "jit")
        assert "the C++ compiler compiles" in decision.miss
        assert tilery.stats()["origins"] == {origin: 1}


def test_the_key_holds_all_that_the_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    first = jit.key(CORE[NAIVE], "content", "1")
    assert first == jit.key(CORE[NAIVE], "content", "1")
    others = [jit.key(CORE[SIMT], "content", "1"), jit.key(CORE[NAIVE], "other", "1")]
    others.append(jit.key(CORE[NAIVE], "content", "2"))
    monkeypatch.setattr(jit, "FLAGS", (*jit.FLAGS, "-g"))
    others.append(jit.key(CORE[NAIVE], "content", "1"))
    monkeypatch.undo()
    monkeypatch.setattr(jit, "find", lambda: compiler.Compiler(("g++",), "another version"))
    others.append(jit.key(CORE[NAIVE], "content", "1"))
    assert len({key.digest for key in (first, *others)}) == 6


def transposed(m: int = 20) -> Array:
    a, b = operands(m, 20, 20)
    d = tilery.gemm(a.T.copy(), b.T.copy(), trans_a=True, trans_b=True)
    check(a, b, d)
    return d


def test_without_a_compiler_the_fallback_serves_and_says_why(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find", lambda: compiler.Compiler(why_none=f"there is none. {compiler.INSTALL}"))
    transposed()
    assert (plan().tier, plan().decision.variant.name) == ("fallback", NAIVE)
    assert "there is none. Install g++" in str(plan().decision)
    with policy.scope(jit="require"), pytest.raises(UnsupportedProblem, match=r"there is none. Install g\+\+"):
        transposed()


def test_the_policy_off_compiles_nothing(pack: Pack) -> None:
    with policy.scope(jit="off"):
        transposed()
    assert (plan().tier, tilery.stats()["jit"]) == ("fallback", {})
    assert "the policy is jit='off'" in str(plan().decision)


def broken_compiler(folder: Path) -> compiler.Compiler:
    """It answers what it is asked about itself, and compiles nothing."""
    path = folder / "c++"
    path.write_text('#!/bin/sh\necho "unit0.cc:1:2: error: no room" >&2\nexit 3\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return compiler.Compiler((str(path),), "1.0")


def test_a_failed_compile_is_shown_once_and_not_tried_again(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "find", lambda: broken_compiler(tmp_path))
    monkeypatch.setattr(jit, "find", compiler.find)
    with policy.scope(jit="require"), pytest.raises(CompileError) as raised:
        transposed()
    error = raised.value
    assert "unit0.cc:1:2: error: no room" in error.log
    assert {str(tmp_path / "c++"), "-DTILERY_HOST"} <= set(error.options)
    assert error.source_path and Path(error.source_path).read_text().startswith("// gemm_simt_f32_tt_")
    assert "CXX names another C++ compiler" in str(error)
    transposed()
    assert plan().tier == "fallback"
    failures = tilery.stats()["jit"]["failures"]
    transposed(30)
    assert tilery.stats()["jit"]["failures"] == failures
    assert any(
        "error: no room" in rejection.reason for rejection in plans._memory.plans.popitem()[1].decision.rejections
    )


def test_without_write_access_the_fallback_serves_and_says_why(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with policy.scope(store=None):
        transposed()
    assert plan().tier == "fallback"
    assert "No such file or directory" in str(plan().decision)


def test_a_library_is_loaded_from_memory_where_no_file_can_be(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    loaded = jit.load(library.read_bytes(), "test")
    assert loaded.kernel(NAIVE)
    with pytest.raises(PackError, match="no kernel absent"):
        loaded.kernel("absent")
    with pytest.raises(PackError, match="cannot be loaded"):
        jit.load(b"no library", "test")


def test_in_the_background_the_fallback_serves_until_it_is_compiled(pack: Pack) -> None:
    with policy.scope(jit="background"):
        transposed()
        assert (plan().tier, bool(plan().decision.pending)) == ("fallback", True)
        assert background.workers.wait(60)
        transposed()
    assert (plan().tier, plan().decision.pending, plan().calls) == ("jit", "", 1)


# ---- what goes wrong


def test_a_broken_library_leaves_the_reference_and_says_why(
    library: Path, use: Callable[[Pack], None], tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    shutil.copy(library, tmp_path / "host")
    pack = packed(tmp_path / "host" / "kernels.so")
    (tmp_path / "host" / "kernels.so").write_bytes(library.read_bytes()[:-1])
    use(pack)
    a, b = operands(9, 9, 9)
    with policy.scope(jit="off"):
        check(a, b, tilery.gemm(a, b))
        (reason,) = tilery.stats()["fallbacks"]
        assert reason.startswith("the reference computes on the CPU: nothing can serve")
        assert any("is truncated" in text for text in tilery.stats()["rejected"])
        with policy.scope(force_variant=NAIVE), pytest.raises(UnknownName, match="truncated"):
            tilery.gemm(a, b)
    with policy.scope(jit="off", force_variant=NAIVE):
        use(pack)
        with pytest.raises(PackError, match=r"kernels.so: is truncated"):
            tilery.gemm(a, b)


def test_a_deadlock_names_kernel_block_and_barrier(use: Callable[[Pack], None], tmp_path: Path) -> None:
    templates = Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))
    text = (templates / "gemm_naive.cuh").read_text()
    assert text.count("|| j >= p.n) return;") == 1
    text = text.replace("|| j >= p.n) return;", "|| j >= p.n) return;\n    __syncthreads();")
    (templates / "gemm_naive.cuh").write_text(text)
    build({NAIVE: render(CORE[NAIVE], templates)}, tmp_path / "host", check=False, templates=templates)
    use(packed(tmp_path / "host" / "kernels.so", (NAIVE,)))
    a, b = operands(9, 9, 9)
    with policy.scope(force_variant=NAIVE), pytest.raises(HostError) as raised:
        tilery.gemm(a, b)
    assert re.search(
        rf"kernel {NAIVE}, block \(0, 0, 0\).*deadlock: .*__syncthreads \(gemm_naive.cuh:\d+\)", str(raised.value)
    )
    assert f"`tilery debug {NAIVE}`" in str(raised.value)


def test_sources_that_do_not_compile(tmp_path: Path) -> None:
    with pytest.raises(CompileError) as raised:
        build({"wrong": "int x = y;\n"}, tmp_path)
    assert "'y' was not declared" in raised.value.log
    assert "-DTILERY_HOST" in raised.value.options


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, r"there is no C\+\+ compiler"),
        ("exit 1", "does not run"),
        ('[ "$1" = --version ] && echo g++ 10.2 || echo "#define __GNUC__ 10"', "g.. 10.2 is older than GCC 11"),
    ],
)
def test_a_compiler_that_will_not_do(tmp_path: Path, script: str | None, reason: str) -> None:
    path = tmp_path / "c++"
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    assert re.search(reason, compiler.examine((str(path),)).why_none)


def test_cxx_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    found = compiler.find.__wrapped__()
    assert "there is no C++ compiler 'no-such-compiler -m64'" in found.why_none
    assert "set CXX" in found.why_none


def test_the_problem_needs_no_gpu(pack: Pack) -> None:
    """The plan is pure: the same Problem gives the same Decision again."""
    problem = Problem("gemm", 64, 64, 64, 1, "f32", "f32", "nn", 16)
    assert plans.decide(problem, pack, policy.current()) == plans.decide(problem, pack, policy.current())
