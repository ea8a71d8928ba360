"""Records in the user's store: under which key, what of them holds, and that dispatch goes by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.simulated import DEVICES, H200, NVRTC, problem
from tests.runtime.world import World, world  # noqa: F401
from tests.tune.conftest import pack
from tilery import dispatch, local, plan, policy
from tilery.generator.records import HASH_DIGITS, Record, Time, line
from tilery.lookup import record_key
from tilery.pack import Pack
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.stats import reset, stats
from tilery.store import Store

P = problem()
PACK = pack()
NAMES = tuple(one[0] for one in dispatch.choose(P, H200, PACK, Policy(), toolchain=lambda: NVRTC).ranked)
A, B, C = NAMES[:3]


def time(name: str, us: float) -> Time:
    return Time(us, 0.01, PACK.hashes[name][:HASH_DIGITS], 2)


def record(**us: float) -> Record:
    times = {name: time(name, one) for name, one in us.items()}
    return Record("here", H200.gpu, "13.0", "580", 1980, record_key(P), times)


def times(store: Store, found: Pack = PACK) -> dict[str, float]:
    return dict(local.times(store, P, H200.gpu, found))


def changed(name: str) -> Pack:
    """The pack after the kernel of a variant has changed."""
    return replace(PACK, hashes={**PACK.hashes, name: "f" * 64})


@pytest.fixture(autouse=True)
def uncounted() -> None:
    reset()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_what_was_put_is_there_for_the_next_process(store: Store, tmp_path: Path) -> None:
    assert times(store) == {}
    local.put(store, record(**{A: 10.0, B: 9.0}), PACK)
    assert times(Store(tmp_path / "store")) == {A: 10.0, B: 9.0}
    assert local.times(store, problem(m=P.m + 1), H200.gpu, PACK) == {}


def test_looking_for_records_counts_no_hits_of_kernels(store: Store) -> None:
    times(store)
    local.put(store, record(**{A: 10.0}), PACK)
    times(store)
    assert not {"hits", "misses", "user_hits"} & {name for name, count in stats()["store"].items() if count}


def test_the_silicon_is_in_the_key_and_the_name_is_not(store: Store) -> None:
    local.put(store, record(**{A: 10.0}), PACK)
    gpu = H200.gpu
    assert local.times(store, P, gpu._replace(name="another board"), PACK) == {A: 10.0}
    others = [gpu._replace(cc=(10, 0)), gpu._replace(sms=66), gpu._replace(l2_mib=30), gpu._replace(bandwidth_gbs=3350)]
    for other in [*others, DEVICES[10, 0].gpu]:
        assert local.times(store, P, other, PACK) == {}


def test_what_this_machine_measured_comes_before_what_a_seed_has(tmp_path: Path) -> None:
    seed, own = tmp_path / "seed", tmp_path / "own"
    local.put(Store(seed), record(**{A: 10.0, B: 9.0}), PACK)
    both = Store(own, seeds=(seed,))
    assert times(both) == {A: 10.0, B: 9.0}
    local.put(both, record(**{A: 8.0}), PACK)
    assert times(Store(own, seeds=(seed,))) == {A: 8.0, B: 9.0}
    assert times(Store(None, seeds=(seed,))) == {A: 10.0, B: 9.0}


def test_a_later_record_keeps_what_it_did_not_measure(store: Store) -> None:
    local.put(store, record(**{A: 10.0, B: 9.0}), PACK)
    local.put(store, record(**{A: 11.0, C: 8.0}), PACK)
    assert times(store) == {A: 11.0, B: 9.0, C: 8.0}


def test_a_later_record_drops_times_of_kernels_that_changed(store: Store) -> None:
    local.put(store, record(**{A: 10.0, B: 9.0}), PACK)
    local.put(store, record(**{C: 8.0}), changed(B))
    assert times(store) == {A: 10.0, C: 8.0}
    assert stats()["records"] == {}


def test_times_of_kernels_that_changed_or_went_are_dropped_and_counted(store: Store) -> None:
    local.put(store, record(**{A: 10.0, B: 9.0, C: 8.0}), PACK)
    hashes = {name: digits for name, digits in PACK.hashes.items() if name != C}
    assert times(store, replace(PACK, hashes=hashes)) == {A: 10.0, B: 9.0}
    assert stats()["records"] == {"dropped": 1}
    assert times(store, changed(A)) == {B: 9.0, C: 8.0}
    assert stats()["records"] == {"dropped": 2}


@pytest.mark.parametrize("payload", [b"", b"{}", b"\xff\xfe", line(record(**{A: 1.0})).encode()[:-1]])
def test_an_unreadable_record_is_counted_and_replaced(store: Store, payload: bytes) -> None:
    store.put(local.key(H200.gpu, record_key(P)), payload)
    assert times(store) == {}
    assert stats()["records"] == {"unreadable": 1}
    local.put(store, record(**{A: 10.0}), PACK)
    assert times(store) == {A: 10.0}


@pytest.fixture
def tuned(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Policy:  # noqa: F811
    """A policy whose user's store says that the last by prediction is the fastest."""
    monkeypatch.setattr(plan, "builtin", lambda: PACK)
    settings = Policy(store=tmp_path / "store")
    local.put(local.store_of(settings), record(**{name: 50.0 - i for i, name in enumerate(NAMES)}), PACK)
    return settings


def test_dispatch_goes_by_them(tuned: Policy) -> None:
    policy.use(Policy(store=None))
    before = plan_for(P, 0).decision
    assert (before.variant.name, before.tier == "exact") == (NAMES[0], False)
    policy.use(tuned)
    after = plan_for(P, 0).decision
    assert (after.variant.name, after.tier) == (NAMES[-1], "exact")
    assert plan_for(problem(m=P.m + 64), 0).tier != "exact"


def test_times_within_the_noise_leave_the_default(tuned: Policy) -> None:
    close = {NAMES[0]: 10.0, NAMES[-1]: 9.95}
    local.put(local.store_of(tuned), record(**dict.fromkeys(NAMES, 20.0) | close), PACK)
    policy.use(tuned)
    assert plan_for(P, 0).decision.variant.name == NAMES[0]


def test_a_forced_variant_is_not_asked_about(tuned: Policy) -> None:
    policy.use(replace(tuned, force_variant=NAMES[1]))
    assert plan_for(P, 0).decision.variant.name == NAMES[1]


def test_read_only_looks_in_the_seeds_alone(tuned: Policy, tmp_path: Path) -> None:
    """All ranks have the seeds; what the user's store has is this machine's."""
    policy.use(replace(tuned, tune="read_only"))
    assert plan_for(P, 0).tier != "exact"
    seed = tmp_path / "seed"
    local.put(Store(seed), record(**{NAMES[0]: 10.0, NAMES[1]: 5.0}), PACK)
    policy.use(replace(tuned, tune="read_only", seeds=(seed,)))
    decision = plan_for(P, 0).decision
    assert (decision.variant.name, decision.tier) == (NAMES[1], "exact")
