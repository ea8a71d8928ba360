from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from generator.errors import SpecError, nearest
from generator.load import Spec, flatten, load

if TYPE_CHECKING:
    from conftest import Project

# (what to replace, by what, row, key, part of the message)
FAULTS = [
    ("schema = 1", "schema = 2", "", "schema", "reads schema 1"),
    ("schema = 1", "schmea = 1", "", "schmea", "nearest: schema"),
    ("schema = 1", "", "", "schema", "missing key 'schema'"),
    ("schema = 1", "schema = 1 1", "", "", "is not TOML"),
    (
        '"compute_80", "compute_75"]\n\n',
        '"compute_81"]\n\n',
        "",
        "portable[0]",
        "unknown arch 'compute_81'; nearest: compute_80",
    ),
    ('mma = "tensor cores"', "mma = 1", "", "features.mma", "is 1, not a text"),
    ("[arch.sm_90a]", "[arch.sm90a]", "arch.sm90a", "", "not of the form"),
    ('status = "tuned"', 'status = "tunned"', "arch.sm_90a", "status", "unknown status 'tunned'; nearest: tuned"),
    ('status = "tuned"', "", "arch.sm_90a", "status", "missing key 'status'; given: lineage"),
    ('["compute_80", "compute_75"]\nfeat', '["compute_08"]\nfeat', "arch.sm_90a", "lineage[0]", "nearest: compute_80"),
    ('["compute_75"]\nfeat', '["sm_90a"]\nfeat', "arch.compute_80", "lineage", "sm_90a does not run on"),
    ("lineage = []", 'lineage = ["compute_75"]', "arch.compute_75", "lineage", "cycle: compute_75 -> compute_75"),
    ('["mma", "cp_async"]', '["mma", "cp_asinc"]', "arch.compute_80", "features[1]", "nearest: cp_async"),
    ('["mma", "cp_async"]', '["mma", "mma"]', "arch.compute_80", "features", "has 'mma' twice"),
    ('["mma", "cp_async"]', '"mma"', "arch.compute_80", "features", "is 'mma', not a list"),
    ("shared_bytes = 101376", "shared_bytes = 99.5", "arch.compute_80", "shared_bytes", "not a whole number"),
    ("shared_bytes = 101376", "shared_bytes = true", "arch.compute_80", "shared_bytes", "is True, not a whole number"),
    ("cc = [9, 0]", "cc = [9]", "arch.sm_90a", "gpu.cc", "not [major, minor]"),
    ("cc = [9, 0]", "cc = [9, 1]", "arch.sm_90a", "gpu.cc", "does not run on the arch's GPU, which has capability 9.1"),
    ("cc = [9, 0], sms", "cc = [9, 0], smss", "arch.sm_90a", "gpu.smss", "nearest: sms"),
    ('layouts = ["nn", "nt"]', "layouts = []", "op.gemm", "layouts", "at least 1"),
    ('layouts = ["nn", "nt"]', 'layouts = ["n n"]', "op.gemm", "layouts[0]", "letters, digits and _"),
    ('fallback = "plain"', 'fallback = "plane"', "op.gemm", "fallback", "unknown family 'plane'; nearest: plain"),
    ('fallback = "plain"', 'fallback = "fast"', "op.gemm", "fallback", "needs mma; a fallback runs on every arch"),
    (
        'op = "gemm"\nfeatures = ["mma"]',
        'op = "gem"\nfeatures = []',
        "family.fast",
        "op",
        "unknown op 'gem'; nearest: gemm",
    ),
    ('features = ["mma"]', 'features = ["nma"]', "family.fast", "features[0]", "nearest: mma"),
    ('threads = "32 *', 'thread = "32 *', "family.fast", "thread", "nearest: threads"),
    ('threads = "32 *', 'threads = "32 **', "family.fast", "threads", "uses '32 ** warps_m"),
    (
        'threads = "32 * warps_m',
        'threads = "32 * warp_m',
        "family.fast",
        "threads",
        "unknown name 'warp_m'; nearest: warps_m",
    ),
    ('threads = "32 *', 'threads = "shared_bytes *', "family.fast", "threads", "unknown name 'shared_bytes'"),
    (
        'shared_bytes = "stages',
        'shared_bytes = "arch_shared_bytes',
        "family.fast",
        "shared_bytes",
        "unknown name 'arch_sh",
    ),
    ('rule = "shared_bytes <', 'rule = "shared_byte <', "family.fast", "requires[0].rule", "nearest: shared_bytes"),
    (', why = "the stages must fit"', "", "family.fast", "requires[0].why", "missing key 'why'"),
    ("requires = [\n    {", 'requires = [\n    "x", {', "family.fast", "requires[0]", "not a table with rule, why"),
    ("efficiency = 0.6", "efficiency = -1", "family.fast", "cost.efficiency", "not a number of at least 0"),
    ("efficiency = 0.6", "efficiency = nan", "family.fast", "cost.efficiency", "not a number of at least 0"),
    ("efficiency = 0.6", "eficiency = 0.6", "family.fast", "cost.eficiency", "nearest: efficiency"),
    ("{ f16 = 1024", "{ fp16 = 1024", "family.fast", "cost.rate.fp16", "unknown dtype 'fp16'; nearest: f16, bf16"),
    ("{ f16 = 1024, ", "{ ", "family.fast.rows[0]", "dtype", "cost.rate has no 'f16', only bf16"),
    (
        'reduction = { bf16 = "pairs", f16',
        'reduction = { bf16 = "pears", f16',
        "family.fast",
        "reduction.bf16",
        "nearest: pairs",
    ),
    (
        'reduction = { f32 = "in_turn" }',
        'reduction = { f32 = "exact" }',
        "family.plain",
        "reduction.f32",
        "with accumulator 'f32'",
    ),
    (
        'accumulator = { f32 = "f32" }',
        'accumulator = { f32 = "s32" }',
        "family.plain",
        "reduction.f32",
        "is 'in_turn' with",
    ),
    (
        'accumulator = { bf16 = "f32", ',
        'accumulator = { bf16 = "f23", ',
        "family.fast",
        "accumulator.bf16",
        "nearest: f32",
    ),
    (
        'reduction = { bf16 = "pairs", ',
        "reduction = { ",
        "family.fast.rows[0]",
        "dtype",
        "family's reduction has no 'bf16', only f16",
    ),
    ('accumulator = { f32 = "f32" }', "", "family.plain", "accumulator", "missing key 'accumulator'"),
    ('pairs = "two by two"', 'unordered = "anyhow"', "op.gemm", "reductions.unordered", "nothing prefers it"),
    ("[[family.fast.rows]]", "[family.fast.rows]", "", "", "is not TOML"),
    ('tier = "exhaustive"', 'tier = "exhausted"', "family.fast.rows[1]", "tier", "nearest: exhaustive"),
    ('tier = "exhaustive"', 'teir = "core"', "family.fast.rows[1]", "teir", "nearest: tier"),
    ('dtype = ["bf16", "f16"]', 'dtype = ["bf16", "f61"]', "family.fast.rows[0]", "dtype[1]", "nearest: f16"),
    ('dtype = ["bf16", "f16"]', "dtype = [16]", "family.fast.rows[0]", "dtype[0]", "unknown dtype 16"),
    (
        'layout = ["nn", "nt"]',
        'layout = ["tn"]',
        "family.fast.rows[0]",
        "layout[0]",
        "unknown layout 'tn'; nearest: nt",
    ),
    ("align = [16, 1]", "align = [12]", "family.fast.rows[0]", "align[0]", "is 12, not a power of two"),
    (
        "stages = 3 },",
        "stage = 3 },",
        "family.fast.rows[0]",
        "config[1].stages",
        "unknown key 'stages'; nearest: stage",
    ),
    ("[4, 2], stages = 3 }", "[4, 2], sages = 3 }", "family.fast.rows[0]", "config[1].sages", "nearest: stages"),
    (
        "[4, 2], stages = 3 }",
        "[4, 2] }",
        "family.fast.rows[0]",
        "config[1].stages",
        "missing key 'stages'; given: tile, warps",
    ),
    (
        "warps = [4, 2]",
        "warps = 8",
        "family.fast.rows[0]",
        "config[1].warps",
        "is 8; the family's first Config has a list of 2",
    ),
    ("warps = [4, 2]", "warps = [4]", "family.fast.rows[0]", "config[1].warps", "has two parts"),
    ("warps = [4, 2]", "warps = [4, 0]", "family.fast.rows[0]", "config[1].warps", "at least 1"),
    (
        "warps = [4, 2]",
        'warps = "4x2"',
        "family.fast.rows[0]",
        "config[1].warps",
        "is '4x2', not a whole number, a pair",
    ),
    ("stages = [3, 4]", "stages = 3", "family.fast.rows[1]", "axes.stages", "is 3, not a list"),
    ("axes = {", "config = [], axes = {", "", "", "is not TOML"),
    ("axes = {", "config = []\naxes = {", "family.fast.rows[1]", "axes", "unknown key 'axes'"),
]


@pytest.mark.parametrize(("old", "new", "row", "key", "message"), FAULTS, ids=range(len(FAULTS)))
def test_every_fault_names_file_row_and_key(
    project: Project, old: str, new: str, row: str, key: str, message: str
) -> None:
    project.edit(old, new)
    with pytest.raises(SpecError) as caught:
        load(project.toml)
    error = caught.value
    assert (error.row, error.key) == (row, key), str(error)
    assert message in str(error)
    assert str(error).startswith(": ".join(part for part in (str(project.toml), row, key) if part))


def test_lineage_cycle_over_several_archs(project: Project) -> None:
    project.edit("lineage = []", 'lineage = ["compute_72"]')
    text = project.toml.read_text()
    old = text[text.index("[arch.compute_75]") : text.index("[arch.compute_80]")]
    project.toml.write_text(
        text + old.replace("compute_75", "compute_7X").replace("compute_72", "compute_75").replace("7X", "72")
    )
    with pytest.raises(SpecError, match="cycle: compute_75 -> compute_72 -> compute_75"):
        load(project.toml)


def test_row_must_be_a_list(project: Project) -> None:
    text = project.toml.read_text()
    project.toml.write_text(text[: text.index("[[family.fast.rows]]")] + "[family.fast.rows]\n")
    with pytest.raises(SpecError, match=r"family.fast: rows: .*\[\[family.NAME.rows\]\]"):
        load(project.toml)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none.toml: cannot be read: No such file"):
        load(tmp_path / "none.toml")


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(SpecError, match="is not TOML"):
        load(tmp_path / "x.toml")


def test_what_is_loaded(spec: Spec) -> None:
    assert list(spec.archs) == ["compute_75", "compute_80", "sm_90a"]
    assert spec.archs["sm_90a"].gpu["cc"] == (9, 0)
    assert spec.portable == ("compute_80", "compute_75")
    fast = spec.families["fast"]
    assert fast.rows[0].configs[0] == (("tile", (128, 128, 32)), ("warps", (2, 2)), ("stages", 3))
    assert fast.rows[1].product and len(fast.rows[1].configs) == 8
    assert fast.rows[1].where == "family.fast.rows[1]"
    assert (fast.accumulator["bf16"], fast.reduction["bf16"]) == ("f32", "pairs")
    assert list(spec.ops["gemm"].reductions) == ["pairs", "in_turn", "exact"]
    assert [rule.why for rule in fast.requires] == ["the stages must fit", "a warp has whole fragments"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.schema = 3  # type: ignore[misc]


def test_config_keys_take_the_order_of_the_first(project: Project) -> None:
    project.edit(
        "{ tile = [256, 128, 64], warps = [4, 2], stages = 3 }", "{ stages = 3, warps = [4, 2], tile = [256, 128, 64] }"
    )
    assert [key for key, _ in project.spec.families["fast"].rows[0].configs[1]] == ["tile", "warps", "stages"]


def test_flatten() -> None:
    config = (("tile", (1, 2, 3)), ("warps", (4, 5)), ("stages", 6))
    assert flatten(config) == {"tile_m": 1, "tile_n": 2, "tile_k": 3, "warps_m": 4, "warps_n": 5, "stages": 6}


def test_nearest_lists_many_names_shortly() -> None:
    many = [f"name_{i}" for i in range(100)]
    assert "100 are valid" in nearest("zzz", many)
    assert nearest("name_1x", many).startswith("nearest: name_1")
    assert nearest("x", []) == "valid: none"


def test_the_real_file_loads() -> None:
    assert load().families
