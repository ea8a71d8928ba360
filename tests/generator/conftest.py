"""A small project of its own, copied for each test that edits it, and golden files.

``pytest tests/generator --update-golden`` writes the golden files anew; review their diff as text.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from generator.load import Spec, load

HERE = Path(__file__).parent

# examples take as long as the machine is loaded; nothing is left in the checkout
settings.register_profile("tilery", deadline=None, database=None)
settings.load_profile("tilery")


@dataclass(frozen=True)
class Project:
    root: Path

    @property
    def toml(self) -> Path:
        return self.root / "variants.toml"

    @property
    def templates(self) -> Path:
        return self.root / "templates"

    @property
    def spec(self) -> Spec:
        return load(self.toml)

    def edit(self, old: str, new: str, file: str = "variants.toml") -> Project:
        path = self.root / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new, 1))
        return self


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy of the fixture project under a path with a space."""
    return Project(Path(shutil.copytree(HERE / "fixture", tmp_path / "a project")))


@pytest.fixture(scope="session")
def spec() -> Spec:
    return load(HERE / "fixture" / "variants.toml")


@pytest.fixture(scope="session")
def templates() -> Path:
    return HERE / "fixture" / "templates"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/generator/golden/ anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, or write it with --update-golden."""

    def compare(name: str, text: str) -> None:
        path = HERE / "golden" / name
        if request.config.getoption("--update-golden", default=False):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest tests/generator --update-golden, and review what it writes"
        assert text == path.read_text(), f"{path.name} differs: if that is meant, run with --update-golden"

    return compare
