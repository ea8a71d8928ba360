"""What the README says about archs, variables and options is so, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from generator.load import TIERS, load
from tilery.policy import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SPEC = load()


def rows() -> dict[str, tuple[str, str]]:
    """Families and status by arch, from the table of architectures."""
    found = re.findall(r"^\| `((?:sm_|compute_|host)\w*)`[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$", README, re.MULTILINE)
    return {arch: (families.strip(), status.strip()) for arch, families, status in found}


def test_architectures():
    expected = {}
    for arch in SPEC.archs.values():
        families = [
            f.name.removeprefix("gemm_") for f in SPEC.families.values() if set(f.features) <= set(arch.features)
        ]
        expected[arch.name] = (", ".join(families), arch.status)
    assert rows() == expected


def test_variables():
    documented = set(re.findall(r"^\| `(TILERY_\w+)` \|", README, re.MULTILINE))
    assert documented == set(VARIABLES)


def test_build_options():
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    options = dict(re.findall(r'^set\((TILERY_\w+) "(\w+)" CACHE', cmake, re.MULTILINE))
    documented = dict(re.findall(r"^\| `cmake\.define\.(TILERY_\w+)` \| `(\w+)` \|", README, re.MULTILINE))
    assert documented == options
    assert all(f"`{tier}`" in README for tier in TIERS)


@pytest.mark.parametrize("block", [block for block in BLOCKS if "cuda" not in block])
def test_examples_without_a_gpu(block):
    exec(block, {"tilery": __import__("tilery")})


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "docs/index.md"])
def test_links_lead_somewhere(path):
    page = ROOT / path
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
