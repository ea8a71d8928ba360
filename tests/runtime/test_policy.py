"""The settings: defaults, the environment, and values that have no meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilery import policy
from tilery.errors import UnknownName
from tilery.policy import Policy


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Policy.from_env({}) == Policy() == Policy.from_env({"TILERY_JIT": "", "TILERY_STORE": ""})


def test_every_variable_is_read() -> None:
    env = {"TILERY_JIT": "require", "TILERY_FORCE_VARIANT": "x", "TILERY_STORE": "/tmp/a folder:/seed:~/b"}
    env |= {
        "TILERY_NUMERICS": "deterministic",
        "TILERY_TUNE": "on_repeat",
        "TILERY_TRACE": "/t.jsonl",
        "TILERY_NVTX": "1",
    }
    assert set(env) == set(policy.VARIABLES)
    assert Policy.from_env(env) == Policy(
        "require",
        "x",
        Path("/tmp/a folder"),
        (Path("/seed"), Path("~/b").expanduser()),
        numerics="deterministic",
        tune="on_repeat",
        trace=Path("/t.jsonl"),
        nvtx=True,
    )


@pytest.mark.parametrize(("value", "store"), [("off", None), ("user", "user"), ("~/x", Path("~/x").expanduser())])
def test_store_words(value: str, store: object) -> None:
    assert Policy.from_env({"TILERY_STORE": value}).store == store


@pytest.mark.parametrize(
    ("env", "near"),
    [
        ({"TILERY_JIT": "of"}, "did you mean 'off'"),
        ({"TILERY_JIT": "requires"}, "did you mean 'require'"),
        ({"TILERY_STORE": "of"}, "did you mean 'off'"),
        ({"TILERY_STORE": "relative/folder"}, "absolute path"),
        ({"TILERY_TRACE": "relative/file"}, "absolute path"),
        ({"TILERY_NUMERICS": "determinstic"}, "did you mean 'deterministic'"),
        ({"TILERY_TUNE": "readonly"}, "did you mean 'read_only'"),
        ({"TILERY_NVTX": "yes"}, "Known: 0, 1"),
        ({"TILERY_FORCE_VARIENT": "x"}, "TILERY_FORCE_VARIANT"),
    ],
)
def test_bad_values_name_the_nearest(env: dict[str, str], near: str) -> None:
    with pytest.raises(UnknownName, match=near):
        Policy.from_env(env)


def test_other_variables_are_left_alone() -> None:
    assert Policy.from_env({"TILERY_NVCC": "/x", "TILERY_ARCHS": "all", "JIT": "x"}) == Policy()


@pytest.mark.parametrize("changes", [{"jit": "of"}, {"store": "of"}, {"numerics": "fas"}, {"tune": "on"}])
def test_a_policy_checks_itself(changes: dict[str, str]) -> None:
    with pytest.raises(UnknownName):
        Policy(**changes)  # type: ignore[arg-type]


def test_use_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILERY_JIT", "off")
    policy.use(Policy("require"))
    assert policy.current().jit == "require"
    policy.use(None)
    assert policy.current().jit == "off"
    policy.use(None)
