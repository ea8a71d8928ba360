"""Which images an edit compiles again; the table of docs/decisions/0004-custom-commands.md."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from generator.load import load
from generator.render import headers, plan
from tests.packaging.checkout import StubbedCheckout, environment

ARCHS = ("sm_90a", "compute_75")
SPEC = load()
ALL = sorted(f"{arch}/{image}" for arch, images in plan(SPEC, (*ARCHS, "host"), "core").items() for image in images)
LAYER, LIBRARY = "host/run", "host/kernels.so"
EVERY = sorted([*ALL, LAYER, LIBRARY])
HEADERS = sorted({name for family in SPEC.families for name in headers(family)})

NEW_ROW = """
[[family.gemm_naive.rows]]
tier = "core"
dtype = ["f32"]
layout = ["any"]
align = [1]
config = [{ tile = [8, 32, 1] }]
"""


def of(*families: str) -> list[str]:
    """The images of these families, those of the host device too, and the library that the latter are linked into."""
    return linked(name for name in ALL if any(name.split("/")[1].startswith(f"{family}_") for family in families))


def linked(names: Iterable[str]) -> list[str]:
    return sorted([*names, LIBRARY])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One build for all tests: each edits it further, and is answered for its own edit only."""
    checkout = StubbedCheckout(tmp_path_factory.mktemp("built") / "checkout", environment("CUDA_HOME"))
    done = checkout.configure(TILERY_ARCHS=",".join(ARCHS))
    assert done.returncode == 0, done.stdout
    assert checkout.compiled() == EVERY
    return checkout


def edit(built, name: str, text: str) -> list[str]:
    path = built.source / name
    path.write_text(path.read_text() + text)
    return built.compiled()


def test_every_arch_and_family_is_in_the_plan():
    assert {name.split("/")[0] for name in ALL} == {*ARCHS, "host"}
    assert all(len(of(family)) > 1 for family in SPEC.families)


def test_a_second_build_compiles_nothing(built):
    assert built.compiled() == []
    assert "no work to do" in built.make()


@pytest.mark.parametrize("family", SPEC.families)
def test_a_family_s_template_compiles_that_family(built, family):
    assert edit(built, f"templates/{family}.cu.j2", "// edited\n") == of(family)


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_compiles_the_families_that_include_it(built, header):
    users = [family for family in SPEC.families if header in headers(family)]
    assert edit(built, f"templates/{header}", "// edited\n") == of(*users)


def test_a_family_s_own_header_leaves_the_others_alone():
    for family in SPEC.families:
        assert [other for other in SPEC.families if f"{family}.cuh" in headers(other)] == [family]


@pytest.mark.parametrize("name", ["launch.h", "check.h", "cuda.h", "wrappers.h"])
def test_a_file_of_the_host_device_leaves_the_gpus_alone(built, name):
    found = edit(built, f"templates/host/{name}", "// edited\n")
    units = [unit for unit in ALL if unit.startswith("host/")]
    assert set(found) in ({*units, LAYER, LIBRARY}, {*units, LIBRARY}, {LAYER, LIBRARY})


def test_the_scheduler_is_compiled_once_and_linked(built):
    assert edit(built, "templates/host/run.cpp", "// edited\n") == sorted([LAYER, LIBRARY])


def test_a_comment_in_the_declarations_compiles_nothing(built):
    assert edit(built, "variants.toml", "# edited\n") == []


def test_a_row_compiles_the_images_that_it_adds_to_and_leaves_the_table_with_its_variant(built):
    images = linked(f"{arch}/gemm_naive_f32_any" for arch in (*ARCHS, "host"))
    table = built.build / "_table.py"
    assert edit(built, "variants.toml", NEW_ROW) == images
    assert "gemm_naive_f32_any_8x32x1" in table.read_text()
    path = built.source / "variants.toml"
    path.write_text(path.read_text().replace(NEW_ROW, ""))
    assert built.compiled() == images
    assert "gemm_naive_f32_any_8x32x1" not in table.read_text()


def test_another_nvcc_compiles_all(built):
    built.nvcc.write_text(built.nvcc.read_text() + "# updated\n")
    assert built.compiled() == [name for name in ALL if not name.startswith("host/")]


def test_another_host_compiler_compiles_the_host_device(built):
    built.cxx.write_text(built.cxx.read_text() + "# updated\n")
    assert built.compiled() == [name for name in EVERY if name.startswith("host/")]


def test_flags_in_the_environment_do_not_reach_nvcc(built, monkeypatch):
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.setitem(built.env, name, "-G")
    assert edit(built, "templates/gemm_naive.cu.j2", "// edited\n") == of("gemm_naive")


def test_progress_names_each_image(built):
    built.nvcc.touch()
    steps = [line.split("] ")[1] for line in built.make().splitlines() if line.startswith("[") and "] nvcc " in line]
    assert sorted(steps) == [f"nvcc {name.replace('/', ' ')}" for name in ALL if not name.startswith("host/")]
