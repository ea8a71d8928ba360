"""The pure choice: Problem and GPU to Decision. Nothing is probed, loaded or compiled here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from . import image, jit
from .decision import Decision, Ranked, Rejection, problem_text, summary
from .device import DeviceInfo
from .errors import UnknownName, UnsupportedProblem
from .generator.archs import HOST
from .generator.cost import contenders, predict, resident
from .generator.records import Key
from .generator.variant import Variant
from .lookup import coefficients, of_silicon, plain_key, record_key, records
from .pack import Pack
from .policy import Policy
from .problem import Problem, bucket
from .requirements import KIND, REQUIREMENTS, compute_dtype, contract, features

Failures = Mapping[tuple[str, str, str], str]
"""(source, arch, variant) → why it failed in this process; source is ``image`` or ``jit``."""


class Candidate(NamedTuple):
    """A variant with the code that would run it."""

    variant: Variant
    source: str
    arch: str


# The fallback's kernel is the fastest for tiny problems: up to so many operations it is tuned, and chosen by the model.
FALLBACK_FLOPS = 1e9
NOTHING_MEASURED: Mapping[str, float] = {}


class Answer(NamedTuple):
    """What a tier that answers gives: candidates, best first, and microseconds of those that were measured."""

    candidates: list[Candidate]
    reason: str
    measured: Mapping[str, float] = NOTHING_MEASURED


@dataclass
class Search:
    """One choice under way."""

    problem: Problem
    device: DeviceInfo
    pack: Pack
    policy: Policy
    failed: Failures
    toolchain: Callable[[], jit.Toolchain]
    compiled: Mapping[str, str]
    waits: bool
    why_no_compiler: Callable[[], str]
    blocked: Mapping[str, str]
    local: Mapping[str, float]
    pending: str = ""
    rejections: list[Rejection] = field(default_factory=list)
    able: list[str] = field(default_factory=list)  # variants that could serve but for the numerics contract
    predicted: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.archs = image.order(self.pack.archs, self.device.cc)
        self.features = features(self.pack, self.archs)
        self.coefficients = coefficients(self.pack, self.device)
        self.contract = contract(self.policy.numerics, self.problem, self.device, self.pack, self.features)
        ours = {name: variant for name, variant in self.pack.variants.items() if variant.op == self.problem.op}
        self.fits = {name: variant for name, variant in ours.items() if not self.reject(name, variant)}
        self.fallback = self.pack.fallback.get(self.problem.op, "")

    def reject(self, name: str, variant: Variant) -> bool:
        """Whether a requirement does not hold; the reasons are kept. Of a kernel for something else one is enough."""
        asked = (variant, self.problem, self.device, self.features)
        reasons = [why for rule in KIND if (why := rule(*asked))][:1]
        if not reasons:
            reasons = [why for rule in REQUIREMENTS if (why := rule(*asked))]
            reasons += [self.blocked[name]] if name in self.blocked else []
            broken = [why for rule in self.contract if (why := rule(*asked))]
            if broken and not reasons:
                self.able.append(name)
            reasons += broken
        self.rejections += [Rejection(name, reason) for reason in reasons]
        return bool(reasons)

    def regular(self) -> list[Variant]:
        """The variants that fit, without the fallback's."""
        return [variant for variant in self.fits.values() if variant.family != self.fallback]

    def image(self, variant: Variant) -> Candidate | None:
        """The variant from the best image that serves the GPU and has not failed."""
        for arch in self.archs:
            if self.pack.image_of(arch, variant) and ("image", arch, variant.name) not in self.failed:
                return Candidate(variant, "image", arch)
        return None

    def jit(self, variant: Variant) -> Candidate | str:
        """The variant through NVRTC, or the C++ compiler for the host device; or why not."""
        if self.policy.jit == "off":
            return "the policy is jit='off'"
        if self.device.is_host:
            why = self.why_no_compiler()
            return why or self.failed.get(("jit", HOST, variant.name)) or Candidate(variant, "jit", HOST)
        tools = self.toolchain()
        arch = jit.target(self.device.cc, self.pack.archs, tools)
        if arch is None:
            return tools.why_none or f"NVRTC {tools.version} has no target that runs on {self.device}"
        return self.failed.get(("jit", arch, variant.name)) or Candidate(variant, "jit", arch)

    def in_background(self, variants: list[Variant]) -> Answer | str:
        """What is compiled already, best first, while the best of all is compiled; NVRTC is not even loaded here."""
        broken = {name for source, _, name in self.failed if source != "image"}
        wanted = self.rank(Candidate(v, "jit", self.compiled.get(v.name, "")) for v in variants if v.name not in broken)
        if not wanted:
            return f"none of {len(variants)} variants could be compiled, see below"
        ready = [candidate for candidate in wanted if candidate.arch]
        if wanted[0].arch:
            return Answer(ready, f"no image fits; least predicted time of {len(wanted)}, and compiled already")
        self.pending = wanted[0].variant.name
        reason = f"the policy is jit='background', and {self.pending} is not compiled yet"
        return Answer(ready, f"compiled already; {reason}") if ready else reason

    def predict(self, variant: Variant) -> float:
        """Predicted time in microseconds."""
        name = variant.name
        if name not in self.predicted:
            cost, fitted = self.pack.cost[variant.family], self.coefficients.get(name)
            self.predicted[name] = predict(variant, self.problem, self.device, cost, fitted)
        return self.predicted[name]

    def held(self, variant: Variant) -> int:
        """Blocks of a variant that an SM holds at once."""
        blocks: int = resident(variant, self.device, self.coefficients.get(variant.name))
        return blocks

    def rank(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Fastest first, behind them what loads less at once than others of its family.

        Among equals the wider loads, then the name, so that two processes choose alike.
        """
        every = list(candidates)
        first = {id(variant) for variant in contenders((candidate.variant for candidate in every), self.held)}
        return sorted(
            every,
            key=lambda c: (id(c.variant) not in first, self.predict(c.variant), -c.variant.align, c.variant.name),
        )

    def tried(self) -> list[Variant]:
        """What the cost model chooses among: also the fallback's where it was measured and can be the fastest."""
        p = self.problem
        small = 2.0 * p.m * p.n * p.k * p.batch <= FALLBACK_FLOPS and self.policy.jit != "require"
        return [v for n, v in self.fits.items() if v.family != self.fallback or (small and n in self.coefficients)]

    def beats_the_rest(self, fallback: list[Candidate]) -> bool:
        """Whether the fallback is faster than all that could be compiled first."""
        rest = [self.predict(variant) for variant in self.regular()]
        if self.policy.jit == "off" or not fallback or not rest:
            return False
        return self.predict(fallback[0].variant) < min(rest)


def _forced(search: Search) -> Answer | str:
    name = search.policy.force_variant
    if name is None:
        return "no variant is forced"
    variants = search.pack.variants
    if name not in variants:
        raise UnknownName("variant", name, variants, "`tilery list` shows all.")
    reasons = [rejection.reason for rejection in search.rejections if rejection.name == name]
    found = search.image(variants[name]) or search.jit(variants[name])
    reasons += [found] if isinstance(found, str) else []
    if variants[name].op != search.problem.op:
        reasons.append(f"it computes {variants[name].op}, the problem is {search.problem.op}")
    if reasons or isinstance(found, str):
        advice = f"{name} was forced and cannot serve this problem: {'; '.join(reasons)}."
        raise UnknownName("variant for this problem", name, search.fits, advice)
    return Answer([found], "forced by the policy")


def _named(search: Search, times: Mapping[str, float | None], what: str) -> Answer | str:
    """The ranked names of a record or row, as far as they fit and have an image."""
    fitting = [search.fits[name] for name in times if name in search.fits]
    found = [candidate for variant in fitting if (candidate := search.image(variant))]
    if not found:
        return f"{what}, but none of its {len(times)} variants fits and has an image"
    return Answer(found, what, {name: us for name, us in times.items() if us is not None})


def _exact(search: Search) -> Answer | str:
    p = search.problem
    key, plain = record_key(p), plain_key(p)
    known = records(search.pack, search.device)
    asked = [(search.local, ", by this machine's tuner"), (dict(known.get(key, ())), "")]
    if plain != key:
        asked.append((dict(known.get(plain, ())), f", without {_difference(key, plain)}"))
    silent = []
    for times, how in asked:
        if times:
            answer = _named(search, times, f"measured on {search.device.name}{how}")
            if not isinstance(answer, str):
                return answer
            silent.append(answer)
    return silent[-1] if silent else f"no record of this problem on {search.device.name}"


def _difference(key: Key, plain: Key) -> str:
    """What of a problem was not measured, for people."""
    parts = [key.epilogue] if key.epilogue else []
    parts += [f"{key.out_dtype} output"] if key.out_dtype != plain.out_dtype else []
    return " and ".join(parts)


def _bucket(search: Search) -> Answer | str:
    p = search.problem
    sizes = tuple(bucket(size) for size in (p.m, p.n, p.k))
    text = "x".join(map(str, sizes))
    pattern = (p.op, compute_dtype(p), p.layout, p.align, *sizes)
    rows = {gpu: names for (*row, gpu), names in search.pack.table.items() if tuple(row) == pattern}
    if names := of_silicon(rows, search.device):
        return _named(search, dict.fromkeys(names), f"row of bucket {text} for {search.device.name}")
    return f"no row for bucket {text}"


def _model(search: Search) -> Answer | str:
    return _ranked(search, sass=True)


def _portable(search: Search) -> Answer | str:
    return _ranked(search, sass=False)


def _ranked(search: Search, sass: bool) -> Answer | str:
    kind = "machine code" if sass else "PTX"
    variants = search.tried() if sass else search.regular()
    found = search.rank(c for v in variants if (c := search.image(v)) and image.is_sass(c.arch) is sass)
    if all(candidate.variant.family == search.fallback for candidate in found) and not search.beats_the_rest(found):
        return f"no variant that fits has an image of {kind} for {search.device}"
    return Answer(found, f"least predicted time of {len(found)} variants with {kind}")


def _jit(search: Search) -> Answer | str:
    missing = [variant for variant in search.regular() if search.image(variant) is None]
    if not missing:
        return "no variant of the pack fits that lacks an image"
    # What serves meanwhile could have other bits than what is compiled: only without a contract.
    if search.policy.jit == "background" and search.policy.numerics == "fast" and not search.waits:
        return search.in_background(missing)
    tried = {variant.name: search.jit(variant) for variant in missing}
    found = [candidate for candidate in tried.values() if not isinstance(candidate, str)]
    search.rejections += [Rejection(name, why) for name, why in tried.items() if isinstance(why, str)]
    if not found:
        return f"none of {len(missing)} variants can be compiled: {next(iter(tried.values()))}"
    why = f"no image fits; least predicted time of {len(found)} that {_compiler(search)} can compile"
    return Answer(search.rank(found), why)


def _fallback(search: Search) -> Answer | str:
    if search.policy.jit == "require":
        return "the policy is jit='require', which forbids the fallback"
    variants = [variant for variant in search.fits.values() if variant.family == search.fallback]
    if not variants:
        return f"no variant of the fallback {search.fallback or '(none declared)'} fits"
    options = [search.image(variant) or search.jit(variant) for variant in variants]
    found = [candidate for candidate in options if not isinstance(candidate, str)]
    if not found:
        return f"{search.fallback} has no image for {search.device}, and {options[0]}"
    found = sorted(search.rank(found), key=lambda candidate: candidate.source != "image")
    return Answer(found, f"{search.fallback} takes every problem")


Tier = Callable[[Search], Answer | str]
TIERS: Mapping[str, Tier] = {
    "forced": _forced,
    "exact": _exact,
    "bucket": _bucket,
    "model": _model,
    "portable": _portable,
    "jit": _jit,
    "fallback": _fallback,
}
"""Asked in this order; the first that answers wins, the others leave their reason."""

NO_FAILURES: Failures = {}


def why_no_compiler() -> str:
    """Why this machine has no C++ compiler for the host device, or ""."""
    from .host import compiler

    return compiler.find().why_none


NOTHING: Mapping[str, str] = {}


def choose(
    problem: Problem,
    device: DeviceInfo,
    pack: Pack,
    policy: Policy,
    failed: Failures = NO_FAILURES,
    toolchain: Callable[[], jit.Toolchain] = jit.toolchain,
    *,
    compiled: Mapping[str, str] = NOTHING,
    waits: bool = False,
    no_compiler: Callable[[], str] = why_no_compiler,
    blocked: Mapping[str, str] = NOTHING,
    local: Mapping[str, float] = NOTHING_MEASURED,
) -> Decision:
    """The variant that serves a Problem on a GPU or the host device, with the reasons against all others.

    Args:
        problem: what is asked.
        device: the GPU, present or described.
        pack: what can be chosen.
        policy: the user's settings.
        failed: what did not load or compile in this process, with the reason.
        toolchain: the NVRTC there is; asked only when the JIT is considered.
        compiled: variants that NVRTC compiled in this process and that are loaded on the GPU, with their arch.
        waits: with jit='background', choose what is to be compiled rather than what serves until it is.
        no_compiler: why there is no C++ compiler, or ""; asked only when the JIT is considered for the host device.
        blocked: variants that must not serve, whatever their source, with the reason.
        local: microseconds by variant that this machine's tuner measured for the problem, best first.

    Raises:
        UnknownName: the forced variant is unknown or does not fit.
        UnsupportedProblem: nothing can serve it; the message has every reason.
    """
    search = Search(problem, device, pack, policy, failed, toolchain, compiled, waits, no_compiler, blocked, local)
    search.rejections += [Rejection(name, f"{why} ({source} {arch})") for (source, arch, name), why in failed.items()]
    silent: list[tuple[str, str]] = []
    for tier, ask in TIERS.items():
        answer = ask(search)
        if isinstance(answer, str):
            silent.append((tier, answer))
        else:
            return _decision(search, tier, answer, silent)
    raise UnsupportedProblem(
        f"nothing can serve {problem_text(problem)} on {device}",
        [f"{tier}: {reason}" for tier, reason in silent] + summary(search.rejections) + _contract_advice(search),
    )


def _contract_advice(search: Search) -> list[str]:
    """What to do where a variant could serve but for the numerics contract."""
    if not search.able:
        return []
    copies = "pass copies with adjacent elements along one axis, or " if search.problem.layout == "any" else ""
    asked = search.policy.numerics
    less = "'deterministic' or 'fast'" if asked == "batch_invariant" else "'fast'"
    return [f"numerics={asked!r} alone keeps {search.able[0]} from serving: {copies}ask for numerics={less} here"]


def _decision(search: Search, tier: str, answer: Answer, silent: list[tuple[str, str]]) -> Decision:
    variant, source, arch = answer.candidates[0]
    ranked = tuple(_timed(search, one.variant, answer.measured) for one in answer.candidates)
    return Decision(
        problem=search.problem,
        device=search.device,
        variant=variant,
        tier=tier,
        arch=arch,
        source=source,
        reason=answer.reason,
        silent=tuple(silent),
        rejections=_shared(tuple(search.rejections)),
        ranked=ranked,
        pending=search.pending,
        miss=_miss(search, tier, answer.candidates[0]),
    )


@lru_cache(maxsize=256)
def _shared(rejections: tuple[Rejection, ...]) -> tuple[Rejection, ...]:
    """The same object for equal ones, as those of one dtype, layout and alignment are: 25 KB, in each of many Plans."""
    return rejections


def _timed(search: Search, variant: Variant, measured: Mapping[str, float]) -> Ranked:
    us = measured.get(variant.name)
    return Ranked(variant.name, search.predict(variant)) if us is None else Ranked(variant.name, us, "measured")


def _miss(search: Search, tier: str, chosen: Candidate) -> str:
    """What happens because no image fits, "" where one does."""
    mode = f"jit={search.policy.jit!r}"
    if search.pending:
        return f"{chosen.variant.name} serves while {search.pending} is compiled in the background ({mode})"
    if chosen.source == "jit" and (search.waits or chosen.variant.name in search.compiled):
        return f"{_compiler(search)} compiled {chosen.variant.name}, once ({mode})"
    if chosen.source == "jit":
        return f"{_compiler(search)} compiles {chosen.variant.name} before it serves, once ({mode})"
    return f"the fallback serves ({mode})" if tier == "fallback" else ""


def _compiler(search: Search) -> str:
    return "the C++ compiler" if search.device.is_host else "NVRTC"
