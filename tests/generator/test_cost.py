"""The cost model: what it must get right whatever its coefficients, and what the fit recovers."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator import cost, fit
from generator import work as work_module
from generator.cost import Coefficients, assumed, predict, time_us
from generator.errors import TableError
from generator.expand import expand
from generator.fit import Fit, Fits
from generator.load import load
from generator.ranking import Regret
from generator.records import Gpu, Key
from generator.variant import Variant
from generator.work import Work, resident_blocks

SPEC = load()
VARIANTS = {variant.name: variant for variant in expand(SPEC, "sm_90a").variants}
COSTS = {name: family.cost for name, family in SPEC.families.items()}
H200 = SimpleNamespace(**SPEC.archs["sm_90a"].gpu)
GPUS = [SimpleNamespace(**arch.gpu) for name, arch in SPEC.archs.items() if name != "host"]
GPU = Gpu("NVIDIA H200", (9, 0), 132, 60, 4800)
LARGE = "gemm_mma_bf16_nt_128x256x32_w2x4_s4_a16"
SMALL = "gemm_mma_bf16_nt_16x64x128_w1x4_s5_a16"
KEY = Key("gemm", "bf16", "nt", 16, 512, 512, 512, 1, "bf16", "")

counts = st.integers(0, 150)
positive = st.floats(0.01, 1e4)
coefficients = st.builds(Coefficients, *[positive] * (len(Coefficients._fields) - 1), st.integers(1, 32))


def work(variant: Variant, key: Key | SimpleNamespace, gpu: SimpleNamespace) -> Work:
    """The work where an SM holds as many blocks as is estimated."""
    return work_module.work(variant, key, gpu, resident_blocks(variant, gpu))


@given(st.sampled_from(sorted(VARIANTS)), counts, counts, counts, st.sampled_from("mnk"), coefficients)
def test_more_work_never_takes_less_time(name: str, m: int, n: int, k: int, axis: str, c: Coefficients) -> None:
    # Whole lines and whole tiles: such a problem can take less time than a smaller one that is not.
    unit = max(128, *VARIANTS[name]["tile"])
    key = KEY._replace(m=unit * m, n=unit * n, k=unit * k)
    more = key._replace(**{axis: getattr(key, axis) + unit})
    before, after = (time_us(work_module.work(VARIANTS[name], one, H200, c.resident), H200, c) for one in (key, more))
    assert 0 < before <= after * (1 + 1e-9)


def test_waves_of_blocks() -> None:
    variant = VARIANTS[LARGE]
    resident = resident_blocks(variant, H200)
    tiles = resident * H200.sms
    one, two = (work(variant, KEY._replace(m=128 * tiles, n=256 * times), H200) for times in (1, 2))
    assert (one.waves, one.last, two.waves, two.last) == (1, 0, 2, 0)
    # One SM takes all blocks that are left; after more waves it is less and less likely to.
    more = work(variant, KEY._replace(m=128 * (tiles + resident), n=256), H200)
    assert (more.waves, more.last) == (1, 1 + (min(resident, 2) - 1) / 2)
    few = work(variant, KEY._replace(m=128 * H200.sms, n=256), H200)
    assert (few.waves, few.last) == ((1, 0) if resident == 1 else (0, 1))


def test_examples() -> None:
    assert doctest.testmod(work_module).failed == 0


def test_rows_within_a_line_touch_one_more() -> None:
    """64 bf16 are a line of 128 bytes; in rows of 1000 elements each begins 16 bytes further in one, and of 16 k-steps
    the last has 40 of 64 elements."""
    variant = VARIANTS["gemm_mma_bf16_nt_64x128x64_w2x2_s4_a16"]
    aligned, shifted = (work(variant, KEY._replace(m=640, n=1280, k=k), H200) for k in (1024, 1000))
    assert aligned.lines == 64 + 128
    assert shifted.lines == (64 + 128) * (62.5 * 2 / 128 + 1 - 16 / 128)
    mn_major = VARIANTS["gemm_mma_bf16_tn_64x128x64_w2x2_s4_a16"]
    assert work(mn_major, KEY._replace(layout="tn", m=640, n=1280, k=1000), H200).lines == 62.5 * (1 + 2)


def test_results_whose_rows_begin_anywhere_are_stored_one_by_one() -> None:
    assert work(VARIANTS[LARGE], KEY, H200).scalars == 0
    assert work(VARIANTS[LARGE], KEY._replace(m=256, n=257), H200).scalars == 128 * 256


NAIVE = VARIANTS["gemm_naive_bf16_any_16x16x1"]


def naive(m: int, n: int, k: int, layout: str = "nt", batch: int = 1) -> Any:
    return work(NAIVE, KEY._replace(m=m, n=n, k=k, layout=layout, batch=batch), H200)


def test_small_inputs_stay_in_l2_while_their_sets_take_turns() -> None:
    """128 sets of 512 x 512 inputs and outputs of bf16 are 201 MB, those of 64 x 64 are 3 MB; L2 has 60 MiB."""
    assert work(VARIANTS[SMALL], KEY, H200).cold == 1
    assert work(VARIANTS[SMALL], KEY._replace(m=256, n=256, k=256), H200).cold == 0.5
    assert work(VARIANTS[SMALL], KEY._replace(m=64, n=64, k=64), H200).cold == 0


def test_what_an_earlier_wave_has_loaded_is_in_l2() -> None:
    variant = VARIANTS[LARGE]
    tiles = resident_blocks(variant, H200) * H200.sms
    colds = [work(variant, KEY._replace(m=128 * tiles, n=256 * times), H200).cold for times in (1, 2, 4)]
    assert colds == [1, 1 / 2, 1 / 4]
    # Other entries of a batch share nothing.
    assert work(variant, KEY._replace(m=128, n=256 * H200.sms, batch=9), H200).cold == 1


def test_a_thread_waits_where_its_next_element_is_in_another_sector() -> None:
    """Along k a sector of 32 bytes holds 16 elements: one of 4 rounds of 4 loads waits, and each where rows of 1000
    bytes begin at 4 places of a sector. Across k every load waits, unless 4 rows are in a sector."""
    aligned, shifted, across, thin = (
        naive(16, n, k, of) for n, k, of in ((16, 512, "nt"), (16, 500, "nt"), (16, 512, "nn"), (2, 512, "tn"))
    )
    assert [found.wait for found in (aligned, shifted, across)] == [0.5 + 0.5 / 4, 1, 1]
    assert naive(2, 2, 512, "tn").wait == thin.wait - 0.25 == 0.75
    # Memory delivers 64 bytes along k, to A and B at different times.
    assert naive(512, 512, 512).cold == 2 / 8
    assert naive(512, 512, 512, "nn").cold == 1


def test_what_is_left_of_four_steps_takes_them_one_by_one() -> None:
    """501 steps in rows of 1002 bytes are 125 rounds of 4 loads, and one that takes as long."""
    assert naive(16, 16, 501).wait == pytest.approx(504 / 501)
    # In rows of 1040 bytes, of which 15 elements begin in a sector that is there.
    assert naive(16, 16, 512 + 8).wait * 520 == 520 * (0.5 + 0.5 / 2)
    assert naive(16, 16, 1).wait == 4


def test_elements_of_one_bank_come_one_after_the_other() -> None:
    """A warp's 32 sums need 2 rows of A and 16 columns of B, so does each of a block's 8 warps."""
    assert naive(16, 16, 512, "tn").lines == 8 * (1 + 1)
    assert naive(16, 16, 512).lines == 8 * (2 + 16 + (2 + 16) / 16)
    # Eight rows that begin 16 bytes apart fill a line of banks.
    assert naive(16, 16, 504).lines == 8 * (1 + 2 + (2 + 16) / 16)


def test_warps_below_the_result_return_and_make_room() -> None:
    """Of a block's 8 warps one has work for 2 rows; a second tile of rows has 2 of 16."""
    assert (naive(16, 16, 64).fill, naive(2, 16, 64).fill, naive(18, 16, 64).fill) == (1, 1 / 8, 9 / 16)


@pytest.mark.parametrize(
    ("m", "blocks", "waves"),
    [
        (2, 8, (0, 8, 0, 8)),
        (2, 24, (8, 16, 0, 16)),
        (2, 25, (8, 16, 1, 1)),
        (2, 54, (8, 20, 2.5, 0)),
        (16, 8, (0, 8, 0, 8)),
        (16, 24, (8, 8, 1, 8)),
        (16, 28, (8, 8, 2.5, 0)),
    ],
)
def test_an_sm_holds_more_from_the_second_wave_on(m: int, blocks: int, waves: tuple[float, ...]) -> None:
    """Measured on an H200: 2x40x120 takes 14.6 us up to 8 blocks of an SM, 27 to 30 up to 24, 37 to 40 up to 40."""
    found = naive(m, 16, 64, batch=blocks * H200.sms)
    assert (found.early, found.resident, found.waves, found.last) == waves


def test_tiles_partly_outside_are_counted() -> None:
    """Of A's 2 x 2 tiles one is inside, of B's 4 x 2 four are."""
    variant = VARIANTS["gemm_mma_bf16_nt_64x128x64_w2x2_s4_a16"]
    assert work(variant, KEY._replace(m=96, n=512, k=96), H200).edges == 3 / 4 + 4 / 8
    assert work(variant, KEY._replace(m=128, n=512, k=128), H200).edges == 0
    assert naive(17, 17, 17).edges == 0
    assert [work(variant, KEY._replace(m=m, n=512, k=k), H200).edges for m, k in ((0, 128), (128, 0))] == [0, 0]


def test_the_widest_of_each_family_contend() -> None:
    names = [LARGE, SMALL, "gemm_mma_bf16_nt_64x64x64_w2x2_s2", "gemm_naive_bf16_any_16x16x1"]
    found = [variant.name for variant in cost.contenders((VARIANTS[name] for name in names), lambda variant: 2)]
    assert found == [LARGE, SMALL, "gemm_naive_bf16_any_16x16x1"]


def test_a_narrower_one_contends_where_more_of_its_blocks_fit() -> None:
    wide, narrow = (VARIANTS[f"gemm_simt_f32_tn_32x64x32_t4x4_b4{end}"] for end in ("_a16", ""))
    for more, found in ((5, [wide, narrow]), (4, [wide]), (3, [wide])):
        assert cost.contenders([narrow, wide], {wide: 4, narrow: more}.__getitem__) == found
    # It is the model that says where.
    held = TRUE._replace(resident=4)
    assert cost.resident(wide, H200, held) == 4
    assert cost.resident(wide, H200, None) == resident_blocks(wide, H200)
    assert cost.resident(wide, SimpleNamespace(cc=(0, 0)), None) == 1


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_it_ranks_sensibly_on_every_gpu(gpu: Any) -> None:
    """Small tiles for few rows, large ones for large problems; no fit exists for most of these GPUs."""
    if gpu.cc == (7, 5):
        pytest.skip("no bf16 tensor cores")

    def cheaper(key: Key) -> str:
        return min((LARGE, SMALL), key=lambda name: predict(VARIANTS[name], key, gpu, COSTS["gemm_mma"]))

    assert cheaper(KEY._replace(m=1, n=4096, k=4096)) == SMALL
    assert cheaper(KEY._replace(m=8192, n=8192, k=8192)) == LARGE


def test_outputs_that_are_added_to_are_read() -> None:
    problem = SimpleNamespace(**KEY._asdict(), accumulate=True)
    found = work(VARIANTS[LARGE], problem, H200)
    assert found.memory_bytes - work(VARIANTS[LARGE], KEY, H200).memory_bytes == 512 * 512 * 2


TRUE = Coefficients(2.5, 600.0, 200.0, 900.0, 2.0, 150.0, 3000.0, 2000.0, 20.0, 0.5, 0.8, 45.0, 2)
KEYS = [
    KEY._replace(m=m, n=n, k=k)
    for m in (1, 16, 100, 512, 4096)
    for n, k in ((512, 512), (4096, 1024), (1024, 8192), (9000, 4096), (16384, 512))
]


def problems(names: list[str]) -> dict[Key, dict[str, float]]:
    """Times of an imagined GPU, whose variants differ in a known way."""
    scaled = {name: replace_all(TRUE, 1 + i / 4) for i, name in enumerate(names)}
    return {key: {name: time_us(work(VARIANTS[name], key, H200), H200, scaled[name]) for name in names} for key in KEYS}


def replace_all(c: Coefficients, factor: float) -> Coefficients:
    return c._replace(step_clocks=c.step_clocks * factor, block_clocks=c.block_clocks * factor)


def mean_error(name: str, c: Coefficients, times: dict[Key, dict[str, float]]) -> float:
    logs = [math.log(time_us(work(VARIANTS[name], key, H200), H200, c) / us[name]) for key, us in times.items()]
    return sum(map(abs, logs)) / len(logs)


def test_the_fit_finds_the_times_it_is_given() -> None:
    names = [SMALL, LARGE]
    given_times = problems(names)
    before = {name: assumed(VARIANTS[name], COSTS["gemm_mma"], H200) for name in names}
    found = fit.fit(given_times, VARIANTS, {}, COSTS, H200)
    assert list(found) == sorted(names)
    for name, one in found.items():
        off = [
            math.log(time_us(work(VARIANTS[name], key, H200), H200, before[name]) / us[name])
            for key, us in given_times.items()
        ]
        assert one.problems == len(KEYS)
        assert one.error < 0.05 < sum(map(abs, off)) / len(off)
    for deal in (0, 1):
        assert set(fit.held_out(given_times, VARIANTS, {}, COSTS, H200, deal=deal)) == set(given_times)


def test_one_wild_time_does_not_bend_the_fit() -> None:
    times = problems([LARGE])
    wild = {key: {LARGE: us[LARGE] * (30 if key is KEYS[7] else 1)} for key, us in times.items()}
    assert mean_error(LARGE, fit.fit(wild, VARIANTS, {}, COSTS, H200)[LARGE].coefficients, times) < 0.05


def test_what_was_hardly_measured_is_not_fitted() -> None:
    few = dict(list(problems([LARGE]).items())[: fit.LEAST_PROBLEMS - 1])
    assert fit.fit(few, VARIANTS, {}, COSTS, H200) == {}
    assert fit.fit(problems([LARGE]), {}, {}, COSTS, H200) == {}


def test_the_file_says_all_of_a_fit(tmp_path: Any) -> None:
    fits = Fits({LARGE: Fit(TRUE, 12, 0.05)}, Regret(12, 1.01, 1.02, 1.1))
    (tmp_path / "h200.cost.json").write_text(fit.dump(GPU, fits))
    assert fit.read(tmp_path) == {GPU: fits}
    (tmp_path / "other.cost.json").write_text(fit.dump(GPU, Fits()))
    with pytest.raises(TableError, match=r"other.cost.json: another file has coefficients of NVIDIA H200.*delete one"):
        fit.read(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-9],
        lambda text: text.replace("2.5", "-2.5"),
        lambda text: text.replace("2.5", "NaN"),
        lambda text: text.replace("[2.5, ", "["),
        lambda text: text.replace('"schema": 1', '"schema": 9'),
        lambda text: text.replace("start_us", "begin_us"),
        lambda text: text.replace("132 SMs", "many SMs"),
        lambda text: text.replace('"geomean"', '"mean"'),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Any, damage: Any) -> None:
    text = damage(fit.dump(GPU, Fits({LARGE: Fit(TRUE, 12, 0.05)}, Regret(12, 1.01, 1.02, 1.1))))
    (tmp_path / "h200.cost.json").write_text(text)
    with pytest.raises(TableError, match=r"h200.cost.json: .*fit again"):
        fit.read(tmp_path)


def test_few_problems_are_fitted_beside_those_of_twins() -> None:
    """A variant of another layout and its times: one problem says how much slower it is, its twin all else."""
    twin = LARGE.replace("_nt_", "_nn_")
    times = problems([LARGE])
    slower = 1.25
    one = dict(list(times.items())[12:13])
    given_times = times | {key._replace(layout="nn"): {twin: us[LARGE] * slower} for key, us in one.items()}
    found = fit.fit(given_times, VARIANTS, {}, COSTS, H200)
    assert found[twin].problems == 1
    other = fit.fit(
        {key._replace(layout="nn"): {twin: us[LARGE]} for key, us in one.items()}, VARIANTS, {}, COSTS, H200
    )
    assert other == {}
    for key in KEYS:
        expected = times[key][LARGE]
        us = time_us(work(VARIANTS[twin], key._replace(layout="nn"), H200), H200, found[twin].coefficients)
        assert expected * 0.9 < us < expected * slower * 1.1


def test_what_the_driver_said_of_blocks_is_kept() -> None:
    times = problems([LARGE, SMALL])
    found = fit.fit(times, VARIANTS, {LARGE: 3}, COSTS, H200)
    assert found[LARGE].coefficients.resident == 3
    assert found[SMALL].coefficients.resident == resident_blocks(VARIANTS[SMALL], H200)


def test_what_passes_through_registers_takes_room_there() -> None:
    """Of 64x64x64 in bf16 with 128 threads: 32 accumulators and 64 others leave room for 5 blocks, 32 words on their
    way to shared memory for 4."""
    variant = VARIANTS["gemm_mma_bf16_nt_64x64x64_w2x2_s2"]
    assert [resident_blocks(replace(variant, align=align), H200) for align in (1, 4, 16)] == [4, 4, 5]


def test_a_variant_may_hold_more_blocks_than_its_accumulators_suggest() -> None:
    variant = next(v for v in VARIANTS.values() if dict(v.config).get("blocks") == 6)
    assert resident_blocks(variant, H200) == 6
    small = SimpleNamespace(**vars(H200) | {"shared_bytes": 2 * variant.shared_bytes})
    assert resident_blocks(variant, small) == 1
    assert resident_blocks(replace(variant, threads=1024), H200) == 2
