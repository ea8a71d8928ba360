from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from generator import fit as fits
from generator.__main__ import main
from generator.expand import find, points
from generator.load import ROOT, VARIANTS_TOML, load
from generator.records import Gpu, Key, Record, Time, line
from generator.render import content_hash

if TYPE_CHECKING:
    from conftest import Project

NAIVE = "gemm_naive_f32_any_16x16x1"
BIG = "fast_bf16_nt_256x128x64_w4x2_s3_a16"


class Run:
    """main() on the fixture project, with what it printed."""

    def __init__(self, project: Project, capsys: pytest.CaptureFixture[str], *args: object) -> None:
        command, *rest = map(str, args)
        places = ["--variants", str(project.toml), "--templates", str(project.templates)]
        self.code = main([command, *places, *rest])
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def test_check(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(project, capsys, "check")
    assert (run.code, run.err) == (0, "")
    assert "22 variants of 2 families for 3 archs: all render" in run.out
    assert Run(project, capsys, "check", "--json").json["variants"] == 22


def test_check_finds_a_row_that_no_arch_keeps(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.edit("stages = [3, 4] }", "stages = [30, 40] }")
    run = Run(project, capsys, "check")
    assert run.code == 1
    assert "family.fast.rows[1]: no arch keeps any of it" in run.err
    assert "compute_75: compute_75 lacks mma" in run.err
    assert "sm_90a: the stages must fit: shared_bytes = 327680 > arch_shared_bytes = 232448" in run.err


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "variants.toml",
            "warps_m * warps_n",
            "warps_m * warps_k",
            "threads: .*unknown name 'warps_k'; nearest: warps_",
        ),
        ("templates/fast.cu.j2", "v.threads", "v.thread", "fast.cu.j2:3"),
        ("templates/fast.cuh", "pipeline.cuh", "pipe.cuh", "nearest: pipeline.cuh"),
    ],
)
def test_check_finds(
    project: Project, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, message: str
) -> None:
    run = Run(project.edit(old, new, file), capsys, "check")
    assert run.code == 1
    assert run.err.startswith("check: ")
    assert re.search(message, run.err), run.err


def test_list(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(project, capsys, "list", "--tier", "core")
    head, *rows = run.out.splitlines()
    assert head.split() == ["name", "tier", "threads", "shared", "compute_75", "compute_80", "sm_90a"]
    assert len(rows) == 17
    assert next(row for row in rows if row.startswith(BIG)).split() == [BIG, "core", "256", "147456", "-", "-", "yes"]


def test_list_json(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in Run(project, capsys, "list", "--archs", "sm_90a,compute_80", "--json").json}
    assert rows[BIG]["archs"] == ["sm_90a"]
    assert rows[BIG]["config"] == [["tile", [256, 128, 64]], ["warps", [4, 2]], ["stages", 3]]
    assert len(rows) == 24


def test_why(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(project, capsys, "why", BIG)
    assert f"{project.toml}: family.fast.rows[0], tier core" in run.out
    assert "compute_75 pruned: compute_75 lacks mma" in run.out
    assert "compute_80 pruned: the stages must fit: shared_bytes = 147456 > arch_shared_bytes = 101376" in run.out
    assert "sm_90a     kept" in run.out


def test_why_for_one_arch(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    found = Run(project, capsys, "why", BIG, "--arch", "sm_90a", "--json").json
    assert (found["archs"], found["where"], found["tier"]) == ({"sm_90a": None}, "family.fast.rows[0]", "core")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["why", BIG[:-1]], f"nearest: {BIG}"),
        (["why", BIG, "--arch", "sm_90"], "unknown arch 'sm_90'; nearest: sm_90a"),
        (["render", "plain_f32"], "unknown variant 'plain_f32'"),
        (["list", "--archs", "portabel"], "nearest: portable"),
    ],
)
def test_unknown_names(project: Project, capsys: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    run = Run(project, capsys, *args)
    assert run.code == 2
    assert run.out == ""
    assert message in run.err


@pytest.mark.parametrize(
    "args", [[], ["chekc"], ["render"], ["why"], ["list", "--tier", "x"], ["table"], ["list", "--arc", "x"]]
)
def test_usage(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_render_one(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(project, capsys, "render", BIG)
    assert run.out.startswith(f"// {BIG}, generated: edit fast.cu.j2\n")


def test_render_all(project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = (Run(project, capsys, "render", "--out", out, "--archs", "sm_90a", "--json").json for _ in "12")
    assert (first["variants"], first["units"], len(first["changed"])) == (17, 5, 23)
    assert second["changed"] == second["removed"] == []
    run = Run(project, capsys, "render", "--out", out, "--archs", "compute_75")
    assert run.out == f"{out}: 1 variants in 1 units for compute_75: 2 files written, 21 removed\n"


def test_an_out_that_is_a_file(project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    run = Run(project, capsys, "render", "--out", tmp_path / "out")
    assert run.code == 1
    assert "Not a directory" in run.err or "File exists" in run.err


def test_table(project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "new" / "_table.py"
    run = Run(project, capsys, "table", "--version", "1", "--out", out, "--tuning", tmp_path)
    assert run.out == f"{out}: 0 images, 0 records, 0 rows of buckets, 0 fitted variants\n"
    assert "VARIANTS = {" in out.read_text()
    run = Run(project, capsys, "table", "--version", "1", "--out", out, "--images", tmp_path)
    assert run.code == 1
    assert "no such image" in run.err


def test_fit_and_select(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec = load()
    known = {point.variant.name: point.variant for point in points(spec)}
    gpu = Gpu("NVIDIA H200", (9, 0), 132, 60, 4800)
    lines = []
    for m, n in itertools.product((16, 128, 1024), (512, 4096)):
        key = Key("gemm", "bf16", "nt", 16, m, n, 1024, 1, "bf16", "")
        us = {
            "gemm_mma_bf16_nt_128x256x32_w2x4_s4_a16": 30 + m * n / 1e5,
            "gemm_mma_bf16_nt_16x64x128_w1x4_s5_a16": 9 + m,
        }
        times = {name: Time(us[name], 0.0, content_hash(known[name])[:12], 2) for name in us} | {
            "gone": Time(1, 0, "0" * 12, 1)
        }
        lines.append(line(Record("", gpu, "13.0", "580", 0, key, times)))
    (tmp_path / "h200.jsonl").write_text("\n".join(lines))
    arguments = ["--tuning", str(tmp_path), "--json"]
    assert main(["fit", *arguments]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["dropped"] == {"of variants that nothing declares": 6}
    assert fitted[str(gpu)]["variants"] == 2
    assert fitted[str(gpu)]["regret"]["problems"] == 6
    assert set(fits.read(tmp_path)[gpu].variants) == set(us)
    assert main(["select", "--archs", "sm_90a", "--regret", "9", *arguments]) == 0
    selected = json.loads(capsys.readouterr().out)
    assert [drop["name"] for drop in selected["drops"]] == ["gemm_mma_bf16_nt_16x64x128_w1x4_s5_a16"]
    assert selected["regret"]["max"] > 1


@pytest.mark.parametrize("name", [NAIVE, "gemm_mma_bf16_nt_64x64x64_w2x2_s2"])
def test_host_is_listed_and_explained_like_an_arch(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["why", name]) == 0
    assert re.search(r"^  host +kept$", capsys.readouterr().out, re.MULTILINE)
    assert main(["list", "--tier", "core", "--json"]) == 0
    rows = {row["name"]: row["archs"] for row in json.loads(capsys.readouterr().out)}
    assert "host" in rows[name]


def python(program: str, cwd: Path) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=cwd).stdout


def test_as_a_program() -> None:
    command = [sys.executable, "-m", "generator", "why", NAIVE]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert "variants.toml: family.gemm_naive.rows[0]" in run.stdout


def test_the_package_imports_nothing_heavy() -> None:
    program = "import sys, generator.bucket, generator.variant, generator.archs; print(*sys.modules)"
    assert not {"jinja2", "tomllib", "subprocess", "generator.load"} & set(python(program, ROOT).split())


def test_as_in_the_wheel(tmp_path: Path) -> None:
    """There the package is tilery.generator, with its data beside it."""
    package = tmp_path / "library"
    for name in ("generator", "templates"):
        shutil.copytree(ROOT / name, package / name)
    shutil.copy(VARIANTS_TOML, package)
    program = "from library.generator import expand, load, render\n"
    program += f"print(render.content_hash(expand.find(load.load(), {NAIVE!r}).variant), load.ROOT)"
    expected = f"{content_hash(find(load(), NAIVE).variant)} {package}\n"
    assert python(program, tmp_path) == expected
