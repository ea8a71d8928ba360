"""Advice: each claim of what would change an answer is checked by changing just that."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.runtime import simulated
from tests.runtime.simulated import DEVICES, H200, NO_NVRTC, NVRTC, VARIANTS, problem
from tilery.advice import advise, with_image
from tilery.decision import Advice, Decision, Ranked
from tilery.device import DeviceInfo
from tilery.dispatch import choose
from tilery.pack import Pack
from tilery.policy import Policy
from tilery.problem import Problem

SERVES = re.compile(r"would (?:serve with|compile) (\S+), predicted ([\d.]+) us against ([\d.]+)")


class Asked:
    """A choice and the advice on it."""

    def __init__(
        self,
        asked: Problem,
        settings: Policy | None = None,
        gpu: DeviceInfo = H200,
        pack: Pack | None = None,
        tools: Any = NVRTC,
    ) -> None:
        self.settings, self.gpu, self.tools = settings or Policy(), gpu, tools
        self.pack = pack or simulated.pack()
        self.tried: list[Problem] = []
        self.chosen = self.decide(asked, self.settings, self.pack)
        self.advice = advise(self.chosen, self.settings, self.pack, self.decide)

    def decide(self, asked: Problem, settings: Policy, pack: Pack) -> Decision:
        self.tried.append(asked)
        return choose(asked, self.gpu, pack, settings, {}, lambda: self.tools)

    def about(self, start: str) -> Advice:
        (found,) = [one for one in self.advice if one.change.startswith(start)]
        return found

    def says(self, start: str, other: Decision) -> None:
        """The advice names just what this Decision has."""
        match = SERVES.fullmatch(self.about(start).effect)
        assert match, self.about(start).effect
        assert match.groups() == (other.variant.name, f"{other.us:.1f}", f"{self.chosen.us:.1f}")


def test_another_jit_policy() -> None:
    asked = Asked(problem(layout="tt"), Policy(jit="off"))
    assert asked.chosen.tier == "fallback"
    other = asked.decide(asked.chosen.problem, Policy(jit="auto"), asked.pack)
    assert (other.tier, other.source) == ("jit", "jit")
    assert other.us < asked.chosen.us
    asked.says("TILERY_JIT=auto", other)
    assert "would compile" in asked.about("TILERY_JIT=auto").effect


def test_no_word_of_the_jit_where_it_changes_nothing() -> None:
    for asked in (Asked(problem(layout="tt"), Policy(jit="off"), tools=NO_NVRTC), Asked(problem(), Policy(jit="off"))):
        assert not [one for one in asked.advice if "JIT" in one.change]


def test_a_forced_variant() -> None:
    name = "gemm_naive_bf16_any_16x16x1"
    asked = Asked(problem(), Policy(force_variant=name))
    asked.says("without TILERY_FORCE_VARIANT", asked.decide(problem(), Policy(), asked.pack))


def test_another_numerics_contract() -> None:
    asked = Asked(problem(dtype="f32", layout="nn", precision="tf32"), Policy(numerics="batch_invariant"))
    other = asked.decide(asked.chosen.problem, Policy(), asked.pack)
    if other.variant == asked.chosen.variant:
        assert not [one for one in asked.advice if "NUMERICS" in one.change]
    else:
        asked.says("TILERY_NUMERICS=fast", other)


ALIGNED = "pointers and rows aligned to 16 bytes"


def narrow(pack: Pack) -> Pack:
    """A pack whose aligned variants are far better, so that alignment is worth something."""
    cost = {**pack.cost, "gemm_mma": {**pack.cost["gemm_mma"], "efficiency": 0.9, "start_us": 0.1}}
    return replace(pack, cost=cost)


@pytest.mark.parametrize(
    ("asked", "padded", "words"),
    [
        (problem(4096, 4096, 4096, align=2), problem(4096, 4096, 4096), ALIGNED),
        (
            problem(4096, 4096, 4097, align=2),
            problem(4096, 4096, 4104),
            f"{ALIGNED}, with k padded from 4097 to 4104",
        ),
        (
            problem(4096, 4097, 4097, align=2, layout="nn"),
            problem(4096, 4104, 4104, layout="nn"),
            f"{ALIGNED}, with k padded from 4097 to 4104 and n padded from 4097 to 4104",
        ),
        (
            problem(4094, 4096, 4096, align=4, layout="tt"),
            problem(4096, 4096, 4096, layout="tt"),
            f"{ALIGNED}, with m padded from 4094 to 4096",
        ),
    ],
)
def test_alignment(asked: Problem, padded: Problem, words: str) -> None:
    found = Asked(asked, pack=narrow(simulated.pack()))
    assert padded in found.tried
    other = found.decide(padded, found.settings, found.pack)
    assert other.variant.align == 16
    assert other.us < found.chosen.us
    found.says(words, other)
    assert found.about("pointers").change == words


def test_a_problem_that_is_served_well_gets_no_advice_but_to_measure() -> None:
    assert [one.change for one in Asked(problem()).advice] == ["`tilery tune`"]


def test_no_word_of_alignment_where_there_is_nothing_to_gain() -> None:
    for asked in (problem(), problem(align=4, layout="any")):
        assert not [one for one in Asked(asked).advice if one.change.startswith("pointers")]


@pytest.mark.parametrize(
    ("layout", "settings", "new", "copied"),
    [
        ("any", Policy(), ("nn", "nt"), "A and B"),
        ("tt", Policy(jit="off"), ("nt",), "A"),
        ("tn", Policy(jit="off"), ("nn",), "A"),
    ],
)
def test_another_layout(layout: str, settings: Policy, new: tuple[str, ...], copied: str) -> None:
    asked = Asked(problem(layout=layout), settings)
    advice = asked.about(copied)
    match = re.fullmatch(rf"{copied} copied to layout (\w\w) \(the copy is not counted\)", advice.change)
    assert match and match[1] in new
    asked.says(advice.change, asked.decide(problem(layout=match[1]), settings, asked.pack))


@pytest.mark.parametrize(
    "changes", [{"k": 2**31 - 1}, {"n": 2**31 - 1, "layout": "nn"}, {"m": 0}, {"k": 0}, {"batch": 0}]
)
def test_sizes_at_their_limits(changes: dict[str, Any]) -> None:
    asked = Asked(problem(**{"m": 1, "n": 1, "k": 1, "align": 2} | changes))
    assert not [one for one in asked.advice if "padded" in one.change and str(2**31) in one.change]


def test_tf32() -> None:
    asked = Asked(problem(4096, 4096, 4096, dtype="f32"))
    tf32 = problem(4096, 4096, 4096, dtype="f32", precision="tf32")
    asked.says("precision='tf32'", asked.decide(tf32, Policy(), asked.pack))
    assert not [one for one in Asked(tf32).advice if "tf32" in one.change]


@pytest.mark.parametrize(
    ("asked", "settings", "cc", "arch", "tier"),
    [
        (problem(layout="tt"), Policy(), (9, 0), "sm_90a", "wide"),
        (problem(layout="tt"), Policy(jit="off"), (9, 0), "sm_90a", "wide"),
        (problem(layout="tt"), Policy(jit="background"), (9, 0), "sm_90a", "wide"),
    ],
)
def test_an_image(asked: Problem, settings: Policy, cc: tuple[int, int], arch: str, tier: str) -> None:
    found = Asked(asked, settings, DEVICES[cc])
    advice = found.about("an image of")
    name = advice.change.split()[3]
    assert f"for {arch} (build with TILERY_ARCHS={arch}, TILERY_TIER={tier})" in advice.change
    other = found.decide(asked, settings, with_image(found.pack, arch, VARIANTS[name]))
    assert (other.tier, other.source, other.arch, other.variant.name) == ("model", "image", arch, name)
    assert advice.effect == f"would serve without compiling, {other.ranked[0]}"


def test_an_image_where_ptx_serves() -> None:
    pack = simulated.pack()
    without = replace(pack, images={arch: images for arch, images in pack.images.items() if arch.startswith("compute")})
    found = Asked(problem(), gpu=DEVICES[12, 0], pack=without)
    assert found.chosen.tier == "portable"
    advice = found.about("an image of")
    assert "for sm_120f (build with TILERY_ARCHS=sm_120f)" in advice.change
    other = found.decide(problem(), found.settings, with_image(without, "sm_120f", VARIANTS[advice.change.split()[3]]))
    assert (other.tier, other.arch) == ("model", "sm_120f")


def test_no_word_of_images_where_one_serves_or_none_can() -> None:
    unknown = Asked(problem(), gpu=DEVICES[13, 0])
    assert unknown.chosen.tier == "portable"
    for asked in (Asked(problem()), unknown):
        assert not [one for one in asked.advice if one.change.startswith("an image")]


def test_the_tuner() -> None:
    asked = Asked(problem())
    count = len(asked.chosen.ranked)
    assert asked.about("`tilery tune`").effect == (
        f"would replace the predictions for {count} variants by measurements"
    )
    measured = replace(asked.chosen, ranked=tuple(Ranked(*one[:2], "measured") for one in asked.chosen.ranked))
    forced = Asked(problem(), Policy(force_variant=asked.chosen.variant.name))
    for advice in (advise(measured, Policy(), asked.pack, asked.decide), forced.advice):
        assert not [one for one in advice if "tune" in one.change]


def test_what_cannot_be_decided_is_no_advice() -> None:
    asked = Asked(problem(), Policy(force_variant="gemm_mma_bf16_nt_64x64x64_s3"))
    assert {one.change for one in asked.advice} <= {"without TILERY_FORCE_VARIANT"}


def test_a_decision_tells_its_advice_and_what_is_measured() -> None:
    asked = Asked(problem(layout="tt"), Policy(jit="off"))
    chosen = replace(asked.chosen, advice=asked.advice, ranked=(Ranked(asked.chosen.variant.name, 12.5, "measured"),))
    text = str(chosen)
    assert ", measured 12.5 us\n" in text
    assert "   key gemm bf16 tt, align 16; bucket 512x512x512\n" in text
    assert re.search(rf"\n +12\.5 us +measured +{chosen.variant.name}\n", text)
    assert all(f"\n  {change}: {effect}" in text for change, effect in asked.advice)
    data = chosen.to_dict()
    assert (data["us"], data["basis"], data["bucket"]) == (12.5, "measured", "512x512x512")
    assert data["ranked"] == [{"name": chosen.variant.name, "us": 12.5, "basis": "measured"}]
    assert data["advice"][0] == {"change": asked.advice[0].change, "effect": asked.advice[0].effect}
