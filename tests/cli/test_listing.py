"""``tilery list`` against the pack that it lists, and against a made-up one whose every state is known."""

from __future__ import annotations

import json

import pytest

from tests.runtime import simulated
from tilery.cli import listing
from tilery.pack import builtin

FIELDS = ("family", "op", "dtype", "layout", "align", "tier", "threads", "shared_bytes")


@pytest.fixture
def made_up(monkeypatch):
    pack = simulated.pack()
    monkeypatch.setattr(listing, "builtin", lambda: pack)
    return pack


def listed(run, *args):
    result = run("list", "--json", *args)
    assert result.exit_code == 0
    return {row["name"]: row for row in json.loads(result.stdout)["variants"]}


def test_json_is_the_pack(run):
    pack = builtin()
    rows = listed(run)
    assert rows.keys() == pack.variants.keys()
    for name, variant in pack.variants.items():
        assert {key: rows[name][key] for key in FIELDS} == {key: getattr(variant, key) for key in FIELDS}
        assert tuple(rows[name]["features"]) == variant.features
        assert rows[name]["archs"].keys() == pack.archs.keys()
        built = {arch for arch, images in pack.images.items() if any(name in i.variants for i in images.values())}
        assert {arch for arch, state in rows[name]["archs"].items() if state == "built"} == built


def test_json_in_a_real_process_is_the_same_and_nothing_else(run, spawn):
    done = spawn("list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(run("list", "--json").stdout)
    assert json.loads(done.stdout)["version"] == builtin().version


def test_states(run, made_up):
    rows = listed(run)
    assert rows["gemm_naive_f32_any_16x16x1"]["archs"] == dict.fromkeys(made_up.archs, "built")
    # Wide, so in no image; any arch can have it.
    assert rows["gemm_simt_f32_tt_64x64x16_t4x4"]["archs"] == dict.fromkeys(made_up.archs, "jit")
    # 196608 bytes of shared memory fit two archs; compute_75 has no mma.
    large = rows["gemm_mma_bf16_nn_128x256x64_s4_a16"]["archs"]
    assert large["sm_90a"] == large["sm_100f"] == "built"
    assert large["sm_80"] == large["sm_120f"] == large["compute_80"] == large["compute_75"] == "-"
    assert rows["gemm_mma_bf16_tt_64x64x64_s3"]["archs"]["compute_75"] == "-"
    assert rows["gemm_mma_bf16_tt_64x64x64_s3"]["archs"]["sm_80"] == "jit"


def test_filters(run, made_up):
    assert {row["family"] for row in listed(run, "--family", "gemm_simt").values()} == {"gemm_simt"}
    both = listed(run, "--dtype", "tf32", "--dtype", "s8", "--layout", "nn", "--layout", "any")
    assert {(row["dtype"], row["layout"]) for row in both.values()} == {("tf32", "nn"), ("s8", "any")}
    turing = listed(run, "--arch", "compute_75")
    assert {row["family"] for row in turing.values()} == {"gemm_naive", "gemm_simt"}
    assert all(row["archs"].keys() == {"compute_75"} for row in turing.values())


@pytest.mark.parametrize(
    ("option", "wrong", "near"),
    [("--arch", "sm_80a", "sm_80"), ("--family", "gemm_sim", "gemm_simt"), ("--dtype", "bf61", "bf16")],
)
def test_a_wrong_name_gives_near_ones(run, made_up, option, wrong, near):
    result = run("list", option, wrong)
    assert result.exit_code == 2
    assert f"{wrong!r}: did you mean" in result.stderr
    assert f"{near!r}" in result.stderr


def test_text_has_every_name_whole(run):
    lines = run("list", "--layout", "nn").stdout.splitlines()
    names = [name for name, variant in builtin().variants.items() if variant.layout == "nn"]
    assert [line.split()[0] for line in lines if line.startswith(" gemm")] == names
    assert lines[-1].startswith(f"{len(names)} of {len(builtin().variants)} variants")
