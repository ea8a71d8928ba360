from __future__ import annotations

import ast
import hashlib
import importlib.util
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from generator.cost import Coefficients
from generator.errors import TableError
from generator.expand import expand, find, points
from generator.files import check_fatbin
from generator.fit import Fit, Fits, dump
from generator.load import TEMPLATES, Spec, load
from generator.ranking import KEPT, Regret
from generator.records import HASH_DIGITS, Gpu, Key, Record, Time, line
from generator.render import content_hash, plan
from generator.table import Built, build, chooser
from generator.variant import Variant

if TYPE_CHECKING:
    from conftest import Project

ARCHS = ("compute_80", "sm_90a")
FAST = "fast_bf16_nt_128x128x32_w2x2_s3_a16"
PLAIN = "plain_f32_any_16x16x1"
BIG = "fast_bf16_nt_256x128x64_w4x2_s3_a16"
REAL = load()
EXHAUSTIVE = "fast_bf16_nt_64x64x32_w2x2_s4_a16"


def fatbin(payload: bytes) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(payload)) + payload


@pytest.fixture
def images(spec: Spec, tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for arch, units in plan(spec, ARCHS, "core").items():
        for image in units:
            path = folder / arch / f"{image}.fatbin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(fatbin(f"{arch} {image}".encode()))
    return folder


GPU = "New, 9.0, 132 SMs, 60 MiB L2, 4800 GB/s"
KEY = Key("gemm", "bf16", "nt", 16, 100, 64, 64, 1, "bf16", "")


def tune(spec: Spec, templates: Path, folder: Path, us: dict[str, float], gpu: str = GPU, m: int = KEY.m) -> Path:
    """Records of what the templates give now; a name that nothing declares has a hash all the same."""
    folder.mkdir(exist_ok=True)
    known = {point.variant.name: point.variant for point in points(spec)}
    digits = {name: content_hash(known[name], templates)[:HASH_DIGITS] if name in known else "0" * 12 for name in us}
    times = {name: Time(time, 0.0, digits[name], 2) for name, time in us.items()}
    record = Record("", Gpu.parse(gpu), "13.0", "580", 0, KEY._replace(m=m), times)
    with (folder / "new.jsonl").open("a") as file:
        file.write(line(record) + "\n")
    return folder


def make(spec: Spec, templates: Path, **options: Any) -> Built:
    return build(spec, ARCHS, "core", "1.2.3", templates=templates, **options)


def module(text: str, path: Path) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("table_of_test", path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_contents(spec: Spec, templates: Path, images: Path, tmp_path: Path) -> None:
    built = make(spec, templates, images=images, tuning=tune(spec, templates, tmp_path / "tuning", {FAST: 2, BIG: 1}))
    table = module(built.text, tmp_path / "_table.py")
    assert (table.SCHEMA, table.VERSION, table.TIER, table.FALLBACK) == (2, "1.2.3", "core", {"gemm": "plain"})
    assert table.ARCHS["sm_90a"]["lineage"] == ("compute_80", "compute_75")
    assert table.ARCHS["sm_90a"]["gpu"]["cc"] == (9, 0)
    assert table.COST["fast"]["rate"] == {"f16": 1024, "bf16": 1024}
    assert set(table.IMAGES) == set(ARCHS)
    image = table.IMAGES["sm_90a"]["fast_bf16_nt"]
    data = (images / "sm_90a" / "fast_bf16_nt.fatbin").read_bytes()
    assert (image["sha256"], image["bytes"]) == (hashlib.sha256(data).hexdigest(), len(data))
    assert BIG in image["variants"]
    assert BIG not in table.IMAGES["compute_80"]["fast_bf16_nt"]["variants"]
    assert table.TABLE == []
    assert {GPU: {tuple(KEY): ((BIG, 1.0), (FAST, 2.0))}} == table.RECORDS
    assert (table.COEFFICIENTS, table.REGRET) == ({}, {GPU: {}})
    assert (built.images, built.records, built.rows, built.fitted, built.dropped) == (10, 1, 0, 0, {})


def test_a_variant_can_be_made_again_from_its_entry(spec: Spec, templates: Path, tmp_path: Path) -> None:
    table = module(make(spec, templates).text, tmp_path / "_table.py")
    kept = {variant.name: variant for variant in expand(spec, None).variants}
    assert set(table.VARIANTS) == set(kept)
    for name, entry in table.VARIANTS.items():
        assert entry.pop("hash") == content_hash(kept[name], templates)
        assert Variant(**entry) == kept[name]
    assert table.IMAGES == {}


def test_variants_of_the_tiers_without_image(project: Project, tmp_path: Path) -> None:
    project.edit('tier = "exhaustive"', 'tier = "wide"')
    text = build(project.spec, ARCHS, "core", "1", templates=project.templates).text
    assert module(text, tmp_path / "_table.py").VARIANTS[EXHAUSTIVE]["tier"] == "wide"


def test_exhaustive_variants_only_in_an_exhaustive_build(spec: Spec, templates: Path, tmp_path: Path) -> None:
    assert EXHAUSTIVE not in make(spec, templates).text
    assert EXHAUSTIVE in build(spec, ARCHS, "exhaustive", "1", templates=templates).text


def test_deterministic(spec: Spec, templates: Path, images: Path, tmp_path: Path) -> None:
    tuning = tune(spec, templates, tmp_path / "tuning", {FAST: 2, BIG: 1})
    texts = {make(spec, templates, images=images, tuning=tuning).text for _ in range(2)}
    program = (
        "import sys; from pathlib import Path; from generator.load import load; from generator.table import build;"
        "a = [Path(p) for p in sys.argv[1:]];"
        "sys.stdout.write(build(load(a[0]), sys.argv[5:], 'core', '1.2.3', a[1], a[2], a[3]).text)"
    )
    fixture = templates.parent / "variants.toml"
    for seed, archs in (("1", ARCHS), ("2", ARCHS[::-1])):
        command = [sys.executable, "-c", program, *map(str, (fixture, images, tuning, templates)), *archs]
        env = {"PYTHONHASHSEED": seed}
        root = Path(__file__).parents[2]
        texts.add(subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=root).stdout)
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"no such image, to hold fast_bf16_nt_.*nearest: .*fast_bf16_nn"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"is truncated: \d+ bytes of \d+; delete it"),
        (lambda path: path.write_bytes(path.read_bytes()[:7]), "is truncated: 7 bytes end within a header"),
        (lambda path: path.write_bytes(b""), "is truncated: 0 bytes"),
        (lambda path: path.write_bytes(b"\x7fELF" + bytes(100)), "is not a fatbin: 0x464C457F at byte 0"),
        (lambda path: path.write_bytes(path.read_bytes() + bytes(16)), r"is not a fatbin: 0x00000000 at byte \d+"),
    ],
)
def test_missing_or_damaged_image(spec: Spec, templates: Path, images: Path, damage: Any, message: str) -> None:
    path = images / "sm_90a" / "fast_bf16_nt.fatbin"
    damage(path)
    with pytest.raises(TableError, match=f"{path}: {message}"):
        make(spec, templates, images=images)


def test_several_fatbins_in_a_file() -> None:
    check_fatbin(fatbin(b"one") + fatbin(b"two"))
    with pytest.raises(ValueError, match="truncated"):
        check_fatbin(fatbin(b"one") + fatbin(b"two")[:-1])


LACKING = "of variants that this build does not have"


def test_records_of_what_this_build_lacks_are_counted(
    spec: Spec, templates: Path, images: Path, tmp_path: Path
) -> None:
    tuning = tune(spec, templates, tmp_path / "tuning", {FAST: 2, EXHAUSTIVE: 1, f"{FAST}2": 1})
    built = make(spec, templates, images=images, tuning=tuning)
    assert built.dropped == {LACKING: 1, "of variants that nothing declares": 1}
    assert f"(('{FAST}', 2.0),)" in built.text
    (images / "compute_75").mkdir()
    (images / "compute_75" / "plain_f32_any.fatbin").write_bytes(fatbin(b""))
    built = build(spec, ["compute_75"], "core", "1", images, tuning, templates)
    assert (built.dropped[LACKING], built.rows, built.records) == (2, 0, 0)


def test_records_of_a_kernel_that_has_changed_are_dropped_one_by_one(project: Project, tmp_path: Path) -> None:
    tuning = tune(project.spec, project.templates, tmp_path / "tuning", {FAST: 4, PLAIN: 3})
    header = project.templates / "fast.cuh"
    header.write_text(header.read_text() + "// changed\n")
    built = build(project.spec, ARCHS, "core", "1", tuning=tuning, templates=project.templates)
    assert built.dropped == {"of variants that have changed since": 1}
    assert f"(('{PLAIN}', 3.0),)" in built.text


def test_a_gpu_that_no_arch_describes(spec: Spec, templates: Path, images: Path, tmp_path: Path) -> None:
    tuning = tune(spec, templates, tmp_path / "tuning", {FAST: 2}, GPU.replace("132", "131"))
    with pytest.raises(TableError, match=r"131 SMs.*no arch of .*variants.toml has a gpu of this silicon"):
        make(spec, templates, images=images, tuning=tuning)


def test_a_bucket_and_its_transfer_regret(spec: Spec, templates: Path, images: Path, tmp_path: Path) -> None:
    slow = min(FAST, BIG, key=lambda name: name == assumed_best(spec))
    for m in (97, 100, 128):
        tuning = tune(spec, templates, tmp_path / "tuning", {FAST: 2, BIG: 2} | {slow: 1}, m=m)
    table = module(make(spec, templates, images=images, tuning=tuning).text, tmp_path / "_table.py")
    other = BIG if slow == FAST else FAST
    assert [("gemm", "bf16", "nt", 16, 128, 64, 64, GPU, (slow, other))] == table.TABLE
    assert table.REGRET == {GPU: {"bucket": {"problems": 3, "geomean": 1.0, "p90": 1.0, "max": 1.0}}}


def assumed_best(spec: Spec) -> str:
    known = {point.variant.name: point.variant for point in points(spec)}
    return chooser(spec, known, Gpu.parse(GPU), Fits())(KEY, [FAST, BIG])


def test_coefficients_come_from_the_file_beside_the_records(
    spec: Spec, templates: Path, images: Path, tmp_path: Path
) -> None:
    tuning = tune(spec, templates, tmp_path / "tuning", {FAST: 1, BIG: 1.001})
    rest = [1.0] * (len(Coefficients._fields) - 1)
    fits = {name: Fit(Coefficients(us, *rest), 9, 0.1) for name, us in ((FAST, 9.0), (BIG, 1.0), (EXHAUSTIVE, 1.0))}
    regret = Regret(3, 1.01, 1.02, 1.03)
    (tuning / "new.cost.json").write_text(dump(Gpu.parse(GPU), Fits(fits, regret)))
    table = module(make(spec, templates, images=images, tuning=tuning).text, tmp_path / "_table.py")
    assert {GPU: {FAST: (9.0, *rest), BIG: (1.0, *rest)}} == table.COEFFICIENTS
    assert {GPU: {"model": regret._asdict()}} == table.REGRET
    assert table.RECORDS[GPU][tuple(KEY)][0] == (BIG, 1.001)  # within the noise, and the model's choice


# ---- the host device


def library(*names: str) -> bytes:
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 0, 0)
    return header + b"".join(f"\0{name}\0".encode() for name in names)


def test_every_image_of_host_is_the_one_library(tmp_path: Path) -> None:
    images = plan(REAL, ["host"], "core")["host"]
    names = [variant.name for group in images.values() for variant in group]
    path = tmp_path / "host" / "kernels.so"
    path.parent.mkdir()
    path.write_bytes(library(*names))
    table = module(build(REAL, ["host"], "core", "1", tmp_path).text, tmp_path / "_table.py")
    assert set(table.IMAGES["host"]) == set(images)
    assert {row["sha256"] for row in table.IMAGES["host"].values()} == {hashlib.sha256(path.read_bytes()).hexdigest()}
    path.write_bytes(library(*names[1:]))
    with pytest.raises(TableError, match=rf"kernels.so: has no kernel {names[0]}; delete it"):
        build(REAL, ["host"], "core", "1", tmp_path)
    path.write_bytes(path.read_bytes()[:63])
    with pytest.raises(TableError, match=r"kernels.so: is truncated"):
        build(REAL, ["host"], "core", "1", tmp_path)


HOST_GPU = "host CPU (2 cores), 0.0, 2 SMs, 32 MiB L2, 20 GB/s"


def test_times_of_a_cpu_and_of_gpus_never_mix(tmp_path: Path) -> None:
    slow, fast = [v.name for v in expand(REAL, "host").variants if v.image == "gemm_simt_f32_nt"][:2]
    h200 = "NVIDIA H200, 9.0, 132 SMs, 60 MiB L2, 4800 GB/s"
    for gpu, us in ((h200, {slow: 2.0, fast: 1.0}), (HOST_GPU, {slow: 800.0, fast: 900.0})):
        tune(REAL, TEMPLATES, tmp_path / "tuning", us, gpu)
    text = build(REAL, ["host", "sm_90a"], "core", "1", tuning=tmp_path / "tuning").text
    table = module(text, tmp_path / "_table.py")
    ranked = {gpu: [name for names in rows.values() for name, _ in names] for gpu, rows in table.RECORDS.items()}
    assert ranked == {h200: [fast, slow], HOST_GPU: [slow, fast]}


def test_every_name_of_the_table_has_an_image(spec: Spec, templates: Path, images: Path, tmp_path: Path) -> None:
    every = {point.variant.name: 1.0 + i for i, point in enumerate(points(spec))}
    text = make(spec, templates, images=images, tuning=tune(spec, templates, tmp_path / "tuning", every)).text
    table = module(text, tmp_path / "_table.py")
    built = {name for units in table.IMAGES.values() for image in units.values() for name in image["variants"]}
    fastest = [name for name in every if name in built][:KEPT]
    assert [[name for name, _ in row] for row in table.RECORDS[GPU].values()] == [fastest]
    assert find(spec, FAST).variant.name in built


def test_the_table_is_literals_alone(spec: Spec, templates: Path) -> None:
    text = make(spec, templates).text
    assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]
