"""Keys: whatever an entry depends on changes its digest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.helpers import KEY
from tilery import jit
from tilery.generator.variant import Variant
from tilery.pack import builtin
from tilery.store import Key

# High surrogates never come out of the operating system, and two of them make one letter in JSON.
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF))
KEYS = st.builds(Key, st.sampled_from(["binary", "record"]), st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple))
GOLDEN = {
    Key("binary", ()): "37b3e084e97d90bb81acb695c28a359cf2263d203dd95c49d3540c1c54c6b1b9",
    KEY: "408b7ef61ec484b8313bffcc877a0bfa48997e18370d48b142cf77c80bf192e0",
    Key(
        "record", (("op", "gemm"), ("größe", "4096²"))
    ): "483a0e4e3c2b1fa92362f662dd19420d1f5ea2dab65cd8eb8723003b930da232",
}


@pytest.mark.parametrize("key", GOLDEN, ids=range(len(GOLDEN)))
def test_the_digests_are_pinned(key: Key) -> None:
    """A change here orphans every store in the field: raise SCHEMA with it."""
    assert key.digest == GOLDEN[key]


def test_each_part_changes_the_digest() -> None:
    others = [Key("record", KEY.fields), Key("binary", KEY.fields[:-1]), Key("binary", KEY.fields[::-1])]
    for index, (name, value) in enumerate(KEY.fields):
        for changed in ((name, value + "x"), (name + "x", value), (name + value[:1], value[1:])):
            others.append(Key("binary", (*KEY.fields[:index], changed, *KEY.fields[index + 1 :])))
    assert len({key.digest for key in (KEY, *others)}) == len(others) + 1


def test_the_schema_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = KEY.digest
    monkeypatch.setattr("tilery.store.key.SCHEMA", 2)
    assert KEY.digest != before


@given(KEYS, KEYS)
def test_two_keys_have_two_digests(one: Key, other: Key) -> None:
    assert (one == other) == (one.digest == other.digest)


def test_a_kind_is_one_of_a_few() -> None:
    """It names a folder."""
    with pytest.raises(ValueError, match="binary, record, toolchain"):
        Key("../etc", ())


def _binary(variant: Variant, **changes: str) -> Key:
    """The key of a compiled variant, with some of what it depends on changed."""
    values = {"arch": "sm_90a", "content": "c0ffee", "library": "0.1.0", "version": "13.0", "build": "1234"} | changes
    tools = jit.Toolchain(values["version"], values["build"], (90,))
    return jit.key(variant, values["arch"], values["content"], values["library"], tools)


def test_each_field_of_a_compiled_variant_changes_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and headers are one hash, `generator.render.content_hash`."""
    one, other = list(builtin().variants.values())[:2]
    key = _binary(one)
    names = {name for name, _ in key.fields}
    assert names >= {"variant", "content", "options", "arch", "nvrtc", "build", "library"}
    keys = [key, _binary(other), _binary(one, arch="sm_90"), _binary(one, content="tea"), _binary(one, library="0.2")]
    keys += [_binary(one, version="13.1"), _binary(one, build="1235")]
    monkeypatch.setattr(jit, "options", lambda arch: ("--std=c++17", f"--gpu-architecture={arch}"))
    keys.append(_binary(one))
    assert len({key.digest for key in keys}) == len(keys) == 8
