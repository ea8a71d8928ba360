"""The build's own nvcc, found and called as the build does it, compiles every family for every arch."""

from __future__ import annotations

import pytest

from generator.load import load
from generator.render import plan

SPEC = load()
GPUS = [arch for arch in SPEC.archs if arch != "host"]
PLAN = plan(SPEC, GPUS, "core")


def _chosen() -> dict[tuple[str, str], str]:
    """One image for each arch and family, of another dtype and layout from arch to arch."""
    chosen = {}
    for turn, (arch, images) in enumerate(PLAN.items()):
        for family in SPEC.families:
            names = [name for name, variants in images.items() if variants[0].family == family]
            if names:
                chosen[arch, family] = names[turn * 5 % len(names)]
    return chosen


CHOSEN = _chosen()


@pytest.fixture(scope="module")
def build(real):
    """The chosen images, built as far as they compile; the output of the build."""
    done = real.configure(TILERY_ARCHS="all")
    assert done.returncode == 0, done.stdout
    targets = [f"images/{arch}/{image}.fatbin" for (arch, _), image in CHOSEN.items()]
    return real.run("cmake", "--build", real.build, "--target", *targets, "--", "-k", "0").stdout


def test_every_family_is_compiled_for_every_arch_that_has_its_features():
    expected = {
        (a, f) for a in GPUS for f in SPEC.families if set(SPEC.families[f].features) <= set(SPEC.archs[a].features)
    }
    assert set(CHOSEN) == expected


@pytest.mark.parametrize(("arch", "family"), CHOSEN)
def test_compiles(real, build, arch, family):
    image = real.build / "images" / arch / f"{CHOSEN[arch, family]}.fatbin"
    assert image.is_file(), build
    assert image.stat().st_size > 1000
