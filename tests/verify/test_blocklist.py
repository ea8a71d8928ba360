"""Findings: when they apply, what dispatch makes of them, and what a broken or foreign file does: a warning."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.simulated import H200, NO_NVRTC, NVRTC, VARIANTS, pack, problem
from tests.runtime.world import World
from tilery import blocklist, jit, plan, policy
from tilery.blocklist import Subject
from tilery.device import DeviceInfo
from tilery.errors import UnknownName, UnsupportedProblem
from tilery.pack import Pack
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.stats import stats
from tilery.store import Store, open_store
from tilery.store.level import Level

GPU = replace(H200, ordinal=0, driver_version=13000)
REASON = "error 3.2 times the bound"
DATE = "2026-01-31"
OWN_VERSION = blocklist._own_version
SHOWN = f"blocked by `tilery verify` on {DATE}: {REASON}"


@pytest.fixture(autouse=True)
def nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "toolchain", lambda: NVRTC)
    monkeypatch.setattr(blocklist, "_own_version", lambda: "580.95")


def built(**changes: object) -> Pack:
    """The pack, whose images a compiler of a known version made."""
    made = pack()
    images = {
        arch: {name: replace(image, cuda="13.0") for name, image in found.items()}
        for arch, found in made.images.items()
    }
    return replace(made, **{"images": images} | changes)  # type: ignore[arg-type]


def block(store: Store, name: str, gpu: DeviceInfo = GPU, source: str = "image", made: Pack | None = None) -> Subject:
    found = blocklist.subject(VARIANTS[name], source, gpu, made or built())
    assert blocklist.put(store, found, gpu.name, DATE, REASON) == ""
    return found


def name_like(*parts: str) -> str:
    return next(name for name in VARIANTS if all(part in name for part in parts))


MMA, WIDE = name_like("mma_bf16_nt", "128x128", "a16"), name_like("simt_f32_tt", "64x64", "a16")


# ---- when a finding applies


def test_what_was_found_is_told(store: Store) -> None:
    found = block(store, MMA)
    assert dict(blocklist.blocked(store, GPU, built())) == {MMA: SHOWN}
    (one,) = blocklist.findings(store)
    assert (one.subject, one.gpu, one.date, one.reason, one.read_only) == (found, GPU.name, DATE, REASON, False)
    assert found.driver == "CUDA 13.0, 580.95"
    assert found.toolchain == "13.0"


OTHERS = {
    "cc": replace(GPU, cc=(10, 0)),
    "sms": replace(GPU, sms=100),
    "l2": replace(GPU, l2_bytes=1 << 20),
    "driver": replace(GPU, driver_version=13010),
}


@pytest.mark.parametrize("gpu", OTHERS.values(), ids=OTHERS)
def test_another_gpu_or_driver_is_not_blocked(store: Store, gpu: DeviceInfo) -> None:
    block(store, MMA)
    assert blocklist.blocked(store, gpu, built()) == {}


def test_the_same_silicon_of_another_name_is_blocked(store: Store) -> None:
    block(store, MMA)
    assert MMA in blocklist.blocked(store, replace(GPU, name="NVIDIA H200 NVL", ordinal=3), built())


def test_an_update_of_the_driver_alone_is_seen(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = block(store, MMA)
    monkeypatch.setattr(blocklist, "_own_version", lambda: "580.105")
    assert blocklist.blocked(store, GPU, built()) == {}
    assert blocklist.outdated(found, GPU, built()) == "the driver was CUDA 13.0, 580.95, and is CUDA 13.0, 580.105"


def test_without_nvml_the_cuda_version_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocklist, "NVML", "libno-such-library.so")
    monkeypatch.setattr(blocklist, "_own_version", OWN_VERSION.__wrapped__)
    assert blocklist.driver(GPU) == "CUDA 13.0"
    assert blocklist.driver(replace(GPU, driver_version=None)) == ""


def test_changed_code_is_not_blocked(store: Store) -> None:
    found, made = block(store, MMA), built()
    changed = replace(made, hashes={**made.hashes, MMA: "another"})
    assert blocklist.outdated(found, GPU, changed) == "the variant's source has changed since"
    newer = {arch: {n: replace(i, cuda="13.1") for n, i in found.items()} for arch, found in made.images.items()}
    assert blocklist.outdated(found, GPU, replace(made, images=newer)) == "what compiled it was 13.0, and is 13.1"
    assert blocklist.outdated(found, GPU, replace(made, images={})) == "what compiled it was 13.0, and is nothing"
    gone = {name: variant for name, variant in made.variants.items() if name != MMA}
    assert blocklist.outdated(found, GPU, replace(made, variants=gone)) == "the pack has no such variant"


def test_what_the_jit_compiled_is_that_compilers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = block(store, WIDE, source="jit")
    assert found.toolchain == "13.0"
    assert WIDE in blocklist.blocked(store, GPU, built())
    monkeypatch.setattr(jit, "toolchain", lambda: replace(NVRTC, version="13.1"))
    assert blocklist.blocked(store, GPU, built()) == {}


def test_nvrtc_is_asked_only_about_what_it_compiled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    block(store, MMA)
    monkeypatch.setattr(jit, "toolchain", lambda: pytest.fail("asked"))
    assert MMA in blocklist.blocked(store, GPU, built())


def test_removing(store: Store) -> None:
    block(store, MMA)
    (one,) = blocklist.findings(store)
    assert blocklist.remove(one) == blocklist.remove(one) == ""
    assert list(blocklist.findings(store)) == []


# ---- where findings are


def test_seeds_block_too_and_are_never_written(tmp_path: Path, store: Store) -> None:
    block(store, MMA)
    assert store.root is not None
    other = open_store(tmp_path / "other", seeds=[store.root])
    assert MMA in blocklist.blocked(other, GPU, built())
    (one,) = blocklist.findings(other)
    assert one.read_only
    assert blocklist.remove(one) == "it is in a read-only store"
    assert list(blocklist.findings(store))


def test_cleaning_the_store_leaves_findings(store: Store, run) -> None:  # type: ignore[no-untyped-def]
    block(store, MMA)
    assert run("cache", "clear").exit_code == 0
    assert MMA in blocklist.blocked(store, GPU, built())


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    found = blocklist.subject(VARIANTS[MMA], "image", GPU, built())
    assert blocklist.put(Store(None), found, "GPU", DATE, REASON) == "the policy keeps no store"
    (tmp_path / "file").write_text("")
    off = Store(tmp_path / "file")
    assert "is not a folder" in blocklist.put(off, found, "GPU", DATE, REASON)
    assert blocklist.blocked(off, GPU, built()) == {}


# ---- what is broken


def folder(store: Store) -> Path:
    assert store.user is not None
    return store.user.base / blocklist.FOLDER


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 4)


def shared(path: Path) -> None:
    path.chmod(0o666)


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def misnamed(path: Path) -> None:
    path.rename(path.with_name("0" * 64))


def a_folder_that_is_a_link(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")


BROKEN = (damage, empty, binary, shared, linked, a_folder, misnamed, a_folder_that_is_a_link)


@pytest.mark.parametrize("breaking", BROKEN, ids=lambda breaking: breaking.__name__)
def test_what_cannot_be_trusted_is_a_warning(
    store: Store, breaking, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # type: ignore[no-untyped-def]
    found = block(store, MMA)
    breaking(folder(store) / found.key.digest)
    monkeypatch.setattr(plan, "store_for", lambda settings: store)
    with caplog.at_level(logging.WARNING):
        served = plan_for(problem(), 0)
        plan_for(problem(256), 0)
    assert served.decision.variant.name
    assert stats()["store"]["faults"] == 1, "read once"
    assert "`tilery verify` finds wrong variants again" in caplog.text


def test_a_file_of_somebody_else_is_a_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    block(store, MMA)
    monkeypatch.setattr(Level, "_suspect", lambda self, state: "it belongs to user 1, not to 0")
    assert blocklist.blocked(store, GPU, built()) == {}
    assert "it belongs to user 1" in caplog.text
    assert stats()["store"]["faults"] == 1


def test_a_folder_that_cannot_be_read_is_a_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    block(store, MMA)

    def refuse(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    assert blocklist.blocked(store, GPU, built()) == {}
    assert "Permission denied" in caplog.text


def test_a_finding_of_another_version_is_a_warning(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    found = block(store, MMA)
    path = folder(store) / found.key.digest
    from tilery.store import header

    payload = json.dumps({"gpu": "GPU"}).encode()
    path.write_bytes(header(found.key, payload) + payload)
    assert blocklist.blocked(store, GPU, built()) == {}
    assert "no finding of this version" in caplog.text


# ---- what dispatch makes of it


@pytest.fixture
def served(world: World, store: Store, monkeypatch: pytest.MonkeyPatch) -> World:
    """A made-up GPU whose Plans look into the test's store."""
    monkeypatch.setattr(plan, "store_for", lambda settings: store)
    monkeypatch.setattr(plan, "builtin", built)
    return world


def first_choice() -> str:
    plan.clear()
    return plan_for(problem(), 0).decision.variant.name


def test_the_next_variant_serves(served: World, store: Store) -> None:
    names = []
    for _ in range(3):
        names.append(first_choice())
        block(store, names[-1], H200)
    assert len(set(names)) == 3
    assert all(tier != "jit" for tier in stats()["plans"])


def test_the_reason_is_shown(served: World, store: Store) -> None:
    name = first_choice()
    block(store, name, H200)
    plan.clear()
    decision = plan.decide(problem(), replace(H200, ordinal=0), built(), Policy())
    assert decision.variant.name != name
    assert (name, SHOWN) in decision.rejections
    assert SHOWN in str(decision)


def test_every_tier_honours_it(served: World, store: Store) -> None:
    """All that fits is blocked one by one, down to the fallback, until nothing serves."""
    tiers = []
    while True:
        try:
            plan.clear()
            found = plan_for(problem(dtype="f32", layout="tt", align=4), 0)
        except UnsupportedProblem as error:
            assert SHOWN in str(error)
            break
        tiers.append(found.tier)
        source = blocklist.source_of(found.decision.variant, H200, built())[0]
        block(store, found.decision.variant.name, H200, source)
    assert set(tiers) == {"jit", "fallback"}
    assert len(tiers) >= 3


def test_a_wrong_image_is_not_compiled_instead(served: World, store: Store) -> None:
    """What is left for NVRTC is another source."""
    while (found := plan_for(problem(), 0)).decision.source == "image" and found.tier != "fallback":
        block(store, found.decision.variant.name, H200)
        plan.clear()
    assert found.tier in ("fallback", "jit")
    assert found.decision.variant.name not in blocklist.blocked(store, H200, built())


def test_a_forced_variant_raises_with_the_reason(served: World, store: Store) -> None:
    name = first_choice()
    block(store, name, H200)
    plan.clear()
    policy.use(Policy(force_variant=name))
    with pytest.raises(UnknownName) as raised:
        plan_for(problem(), 0)
    assert str(raised.value).count(SHOWN) == 1


def test_verify_itself_runs_it(served: World, store: Store) -> None:
    name = first_choice()
    block(store, name, H200)
    policy.use(Policy(force_variant=name))
    plan.clear()
    assert plan.unblocked(problem(), 0).decision.variant.name == name
    with pytest.raises(UnknownName):
        plan_for(problem(), 0)


def test_a_gpu_that_is_only_described_has_no_findings(served: World, store: Store) -> None:
    name = first_choice()
    block(store, name, H200)
    assert plan.decide(problem(), H200, built(), Policy()).variant.name == name


def test_a_list_of_ranks_blocks_as_well(served: World, store: Store) -> None:
    """A wrong kernel must not serve, also where all ranks are to choose alike."""
    name = first_choice()
    block(store, name, H200)
    plan.clear()
    policy.use(Policy(tune="read_only"))
    assert plan_for(problem(), 0).decision.variant.name != name


def test_a_process_reads_it_once(served: World, store: Store) -> None:
    name = first_choice()
    block(store, name, H200)
    assert plan_for(problem(m=513), 0).decision.variant.name == name
    plan.clear()
    assert plan_for(problem(m=513), 0).decision.variant.name != name


def test_no_nvrtc_is_no_fault(served: World, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    block(store, WIDE, H200, "jit")
    monkeypatch.setattr(jit, "toolchain", lambda: NO_NVRTC)
    assert blocklist.blocked(store, H200, built()) == {}
