from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from generator.errors import RenderError
from generator.expand import find, points
from generator.load import TEMPLATES, Spec, load
from generator.render import content_hash, headers, host_files, render, write
from generator.variant import Variant

if TYPE_CHECKING:
    from conftest import Project

PLAIN = "plain_f32_any_16x16x1"
FAST = "fast_bf16_nt_128x128x32_w2x2_s3_a16"
Golden = Callable[[str, str], None]


@pytest.mark.parametrize("name", [PLAIN, FAST])
def test_golden(spec: Spec, templates: Path, golden: Golden, name: str) -> None:
    golden(f"{name}.cu", render(find(spec, name).variant, templates))


def test_golden_with_constants(spec: Spec, templates: Path, golden: Golden) -> None:
    variant = dataclasses.replace(find(spec, PLAIN).variant, constants=(("k", 4096),))
    text = render(variant, templates)
    golden(f"{variant.name}.cu", text)
    assert text != render(find(spec, PLAIN).variant, templates)


REAL = load()


@pytest.mark.parametrize("family", REAL.families)
def test_golden_of_each_family(golden: Golden, family: str) -> None:
    """The first Variant of each family of the pack."""
    variant = next(point.variant for point in points(REAL) if point.variant.family == family)
    golden(f"{variant.name}.cu", render(variant))


def test_source_names_its_variant(spec: Spec, templates: Path) -> None:
    for point in points(spec):
        text = render(point.variant, templates)
        assert text.startswith(f"// {point.variant.name}, generated: edit {point.variant.family}.cu.j2\n")
        assert text.endswith("}\n") and not text.endswith("\n\n")
        assert f" {point.variant.name}(" in text


# ---- headers and hashes


def test_headers_are_the_closure(templates: Path) -> None:
    assert list(headers("plain", templates)) == ["params.h", "plain.cuh"]
    fast = headers("fast", templates)
    assert list(fast) == ["fast.cuh", "params.h", "pipeline.cuh"]
    assert fast["params.h"] == (templates / "params.h").read_text()


def test_headers_of_an_included_template(project: Project) -> None:
    project.edit("    fast<", '#include "extra.cuh"\n    fast<', "templates/body.j2")
    (project.templates / "extra.cuh").write_text('#include "params.h"\n')
    assert "extra.cuh" in headers("fast", project.templates)


def test_headers_that_include_each_other(project: Project) -> None:
    project.edit("#pragma once", '#pragma once\n  #  include "fast.cuh"', "templates/pipeline.cuh")
    assert list(headers("fast", project.templates)) == ["fast.cuh", "params.h", "pipeline.cuh"]


def hashes(project: Project) -> dict[str, str]:
    return {name: content_hash(find(project.spec, name).variant, project.templates) for name in (PLAIN, FAST)}


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("templates/params.h", {PLAIN, FAST}),
        ("templates/plain.cuh", {PLAIN}),
        ("templates/pipeline.cuh", {FAST}),
        ("templates/fast.cuh", {FAST}),
        ("templates/body.j2", {FAST}),
        ("templates/plain.cu.j2", {PLAIN}),
    ],
)
def test_hash_follows_source_and_closure(project: Project, file: str, changed: set[str]) -> None:
    before = hashes(project)
    path = project.root / file
    path.write_text("// new\n" + path.read_text())
    after = hashes(project)
    assert {name for name in before if before[name] != after[name]} == changed


def test_hash_is_that_of_contents_alone(project: Project, spec: Spec, templates: Path) -> None:
    (project.templates / "unused.cuh").write_text("x")
    assert hashes(project)[FAST] == content_hash(find(spec, FAST).variant, templates)


# ---- the host device


def test_the_host_device_adds_its_own_files_and_leaves_the_hashes_of_gpus_alone(tmp_path: Path) -> None:
    templates = Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))
    assert {"host/cuda.h", "host/run.cpp", "host/wrappers.h"} <= set(host_files(templates))
    variant = find(REAL, "gemm_naive_f32_any_16x16x1").variant
    gpu, host = (content_hash(variant, templates, host=host) for host in (False, True))
    assert gpu != host
    (templates / "host" / "run.cpp").write_text("// edited")
    assert content_hash(variant, templates) == gpu
    assert content_hash(variant, templates, host=True) != host
    assert not [name for family in REAL.families for name in headers(family) if name.startswith("host/")]


# ---- faults


def asked(project: Project, name: str = FAST) -> Variant:
    return find(project.spec, name).variant


def test_unknown_config_key(project: Project) -> None:
    project.edit('v["stages"]', 'v["stagse"]', "templates/body.j2")
    with pytest.raises(RenderError, match=rf"{FAST} with Config keys tile, warps, stages: body.j2:1: .*stagse"):
        render(asked(project), project.templates)


def test_undefined_name(project: Project) -> None:
    project.edit("v.threads", "threads", "templates/fast.cu.j2")
    with pytest.raises(RenderError, match=r"fast.cu.j2:3: UndefinedError: 'threads' is undefined"):
        render(asked(project), project.templates)


def test_syntax_error(project: Project) -> None:
    project.edit("{% else %}", "{% esle %}", "templates/plain.cu.j2")
    with pytest.raises(RenderError, match=r"plain.cu.j2:7: TemplateSyntaxError: .*esle"):
        render(asked(project, PLAIN), project.templates)
    with pytest.raises(RenderError, match=r"plain.cu.j2:7"):
        headers("plain", project.templates)


def test_missing_template(project: Project) -> None:
    (project.templates / "fast.cu.j2").rename(project.templates / "fest.cu.j2")
    for call in (lambda: render(asked(project), project.templates), lambda: headers("fast", project.templates)):
        with pytest.raises(RenderError, match=r"no template fast.cu.j2 in .*nearest: fest.cu.j2"):
            call()


def test_missing_included_template(project: Project) -> None:
    (project.templates / "body.j2").unlink()
    with pytest.raises(RenderError, match=r"no template body.j2"):
        render(asked(project), project.templates)


def test_missing_header(project: Project) -> None:
    (project.templates / "pipeline.cuh").rename(project.templates / "pipelines.cuh")
    with pytest.raises(RenderError, match=r'fast.cuh: #include "pipeline.cuh" is not in .*nearest: pipelines.cuh'):
        headers("fast", project.templates)


# ---- write


def files(out: Path) -> dict[str, int]:
    return {p.relative_to(out).as_posix(): p.stat().st_mtime_ns for p in sorted(out.rglob("*")) if p.is_file()}


def written(
    project: Project, out: Path, archs: tuple[str, ...] = ("compute_80", "sm_90a"), tier: str = "core"
) -> set[str]:
    """Paths that a write changed, by their time; each is set back far first."""
    for path in out.rglob("*"):
        os.utime(path, ns=(0, 0))
    done = write(project.spec, archs, tier, out, project.templates)
    changed = {name for name, time in files(out).items() if time}
    assert changed == {path.as_posix() for path in done.changed}
    return changed


def test_what_is_written(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = write(project.spec, ["compute_75", "sm_90a"], "core", out, project.templates)
    assert (done.variants, done.units, done.removed) == (17, 6, ())
    assert {path.parent.as_posix() for path in done.changed} == {"src", "units/compute_75", "units/sm_90a", "."}
    unit = (out / "units/sm_90a/fast_f16_nn.cu").read_text().splitlines()
    includes = [
        f'#include "../../src/fast_f16_nn_{config}.cu"'
        for config in ("128x128x32_w2x2_s3_a16", "256x128x64_w4x2_s3_a16", "128x128x32_w2x2_s3", "256x128x64_w4x2_s3")
    ]
    assert unit == ["// fast_f16_nn for sm_90a, generated: edit variants.toml", *includes]
    assert (out / "src" / f"{FAST}.cu").read_text() == render(asked(project), project.templates)


def test_nothing_changes_nothing(project: Project, tmp_path: Path) -> None:
    assert written(project, tmp_path / "out")
    assert written(project, tmp_path / "out") == set()


def test_an_edited_family_template_changes_only_its_sources(project: Project, tmp_path: Path) -> None:
    written(project, tmp_path / "out")
    project.edit("plain<", "plain <", "templates/plain.cu.j2")
    project.edit("p.k);", "p.k) ;", "templates/plain.cu.j2")
    assert written(project, tmp_path / "out") == {f"src/{PLAIN}.cu"}
    project.edit("#pragma once", "#pragma once\n", "templates/plain.cuh")
    assert written(project, tmp_path / "out") == set()


def test_an_added_config_changes_only_its_units(project: Project, tmp_path: Path) -> None:
    written(project, tmp_path / "out")
    project.edit("[{ tile = [16, 16, 1] }]", "[{ tile = [16, 16, 1] }, { tile = [32, 8, 1] }]")
    units = {f"units/{arch}/plain_f32_any.cu" for arch in ("compute_80", "sm_90a")}
    assert written(project, tmp_path / "out") == {"src/plain_f32_any_32x8x1.cu", *units}


def test_stale_files_go_and_foreign_ones_stay(project: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    written(project, out)
    (out / "src" / "mine.cu").write_text("// mine\n")
    (out / "notes.txt").write_text("mine")
    before = set(files(out))
    done = write(project.spec, ["compute_75"], "core", out, project.templates)
    assert {path.as_posix() for path in done.removed} == before - set(files(out))
    left = {"notes.txt", "plan.cmake", "src/mine.cu", f"src/{PLAIN}.cu", "units/compute_75/plain_f32_any.cu"}
    assert set(files(out)) == left
    assert not (out / "units" / "sm_90a").exists()


def test_write_is_deterministic(project: Project, tmp_path: Path) -> None:
    for out in ("x", "y"):
        write(project.spec, ["sm_90a"], "exhaustive", tmp_path / out, project.templates)
    x, y = ({name: (tmp_path / out / name).read_bytes() for name in files(tmp_path / out)} for out in ("x", "y"))
    assert x == y


def hard_named(project: Project, tmp_path: Path) -> Project:
    return type(project)(Path(shutil.copytree(project.root, tmp_path / 'a $HOME;"b" ü')))


def test_plan_reads_in_cmake(project: Project, tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if cmake is None:
        pytest.skip("no cmake in PATH")
    hard = hard_named(project, tmp_path)
    write(hard.spec, ["compute_80", "sm_90a"], "core", tmp_path / "out", hard.templates)
    script = tmp_path / "show.cmake"
    script.write_text(
        'include("${CMAKE_CURRENT_LIST_DIR}/out/plan.cmake")\n'
        'message("tier ${TILERY_TIER} archs ${TILERY_ARCHS}")\n'
        'foreach(unit IN LISTS TILERY_UNITS)\n  message("unit ${unit}")\nendforeach()\n'
        "foreach(header IN LISTS TILERY_HEADERS)\n"
        '  if(NOT EXISTS "${header}")\n    message(FATAL_ERROR "${header}")\n  endif()\n'
        '  message("header")\nendforeach()\n'
    )
    run = subprocess.run([cmake, "-P", script], capture_output=True, text=True, check=False)
    lines = run.stderr.splitlines()
    assert run.returncode == 0, run.stderr
    assert "tier core archs compute_80;sm_90a" in lines
    assert "unit sm_90a|fast_f16_nn|units/sm_90a/fast_f16_nn.cu|arch=compute_90a,code=sm_90a" in lines
    assert lines.count("header") == len(list(hard.templates.iterdir()))


def test_units_of_host_are_a_list_of_their_own(tmp_path: Path) -> None:
    write(REAL, ["sm_90a", "host"], "core", tmp_path)
    text = (tmp_path / "plan.cmake").read_text()
    gpu, host = text.split("set(TILERY_UNITS")[1].split("set(TILERY_HOST_UNITS")
    assert '"gemm_mma_bf16_nt|units/host/gemm_mma_bf16_nt.cu"' in host
    assert "host" not in gpu
    assert "sm_90a" not in host.split("set(")[0]
