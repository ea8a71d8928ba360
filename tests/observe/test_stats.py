"""Statistics: what a report has, its Prometheus text, and the command that sums up a trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tilery
from tests.runtime.simulated import problem
from tests.runtime.world import STREAM, Params, World
from tilery import exposition, policy, trace
from tilery import stats as stats_function
from tilery.cli import app
from tilery.decision import problem_text
from tilery.host import plan as host_plan
from tilery.plan import plan_for
from tilery.policy import Policy
from tilery.requests import read
from tilery.stats import MAX_UNCOVERED, Served, count, report, reset

NASTY = 'C:\\new "quoted"\nsecond line, {label="x"} # é'
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:\\[\\"n]|[^"\\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:\\[\\"n]|[^"\\\n])*)"')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> tuple[Samples, dict[str, str]]:
    """Samples and kinds of a text in the format of Prometheus; anything that is not of that format fails."""
    samples: Samples = {}
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in helped
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert kind in ("counter", "gauge") and name in helped and name not in kinds
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, inside, value = match.groups()
            assert list(kinds)[-1] == name  # the samples of a metric are together, behind its head
            pairs = LABEL.findall(inside or "")
            labels = tuple((key, re.sub(r'\\[\\"n]', lambda m: UNESCAPED[m[0]], raw)) for key, raw in pairs)
            assert (name, labels) not in samples
            samples[name, labels] = float(value)
    return samples, kinds


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["stats", *map(str, arguments)])


def call(times: int, **changes: Any) -> None:
    made = plan_for(problem(**changes), 0)
    for _ in range(times):
        made.launch(Params(), STREAM)


def test_hit_rates_are_of_the_look_ups_that_got_to_a_level() -> None:
    for name, times in (("hits", 9), ("misses", 1), ("memory_hits", 5), ("seed_hits", 1), ("user_hits", 3)):
        count("store", name, times)
    assert stats_function()["hit_rates"] == {"memory": 5 / 10, "seed": 1 / 5, "user": 3 / 4}


def test_no_look_up_gets_behind_a_level_that_has_all() -> None:
    count("store", "hits", 4)
    count("store", "memory_hits", 4)
    assert stats_function()["hit_rates"] == {"memory": 1.0}


def test_memo_and_calls(world: World) -> None:
    call(10)
    call(1, m=16)
    call(0, m=32)
    found = stats_function()
    assert (found["plans"], found["calls"]) == ({"model": 3}, {"model": 11})
    assert found["memo"] == {"hits": 9, "misses": 3}
    assert found["hit_rates"]["memo"] == 9 / 12


def test_uncovered_problems_by_calls(world: World) -> None:
    policy.use(Policy(jit="off"))
    call(2, layout="tt", m=16)
    call(5, layout="tt", m=32)
    call(9)
    found = stats_function()
    assert [(row["problem"]["m"], row["calls"]) for row in found["uncovered"]] == [(32, 5), (16, 2)]
    assert found["uncovered"][0]["miss"] == "the fallback serves (jit='off')"
    assert found["uncovered_others"] == {"problems": 0, "calls": 0}
    (reason,) = found["fallbacks"]
    assert "the policy is jit='off'" in reason


def test_the_list_of_uncovered_problems_is_bounded() -> None:
    rows = [Served(problem(m=m), "fallback", m, "missed") for m in range(1, MAX_UNCOVERED + 11)]
    found = report([*rows, Served(problem(m=3), "fallback", 5000, "missed")], {})
    assert len(found["uncovered"]) == MAX_UNCOVERED
    assert [(row["problem"]["m"], row["calls"]) for row in found["uncovered"][:2]] == [(3, 5003), (1010, 1010)]
    assert found["uncovered_others"] == {"problems": 10, "calls": 1 + 2 + sum(range(4, 12))}


def test_calls_that_the_reference_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_plan, "plan_for", lambda problem: None)
    for _ in range(3):
        tilery.gemm(np.ones((2, 2), "f4"), np.ones((2, 2), "f4"))
    assert stats_function()["reference"] == {"calls": 3}
    assert stats_function()["calls"] == {}


def test_groups_that_others_count_are_reported() -> None:
    count("new group", "things", 2)
    assert stats_function()["new group"] == {"things": 2}


def test_prometheus_of_this_process(world: World) -> None:
    policy.use(Policy(jit="off"))
    call(3)
    call(1234567, layout="tt", m=0)
    call(2, layout="tt")
    count("jit", "seconds", 0.125)
    count("jit", "compiles", 2)
    count("store", "user_hits", 12345678)
    count("rejected", NASTY)
    samples, kinds = parse(tilery.prometheus())
    assert samples["tilery_calls_total", (("tier", "model"),)] == 3
    assert samples["tilery_calls_total", (("tier", "fallback"),)] == 2
    assert samples["tilery_plans_total", (("tier", "fallback"),)] == 2
    assert samples["tilery_jit_seconds_total", ()] == 0.125
    assert samples["tilery_jit_total", (("event", "compiles"),)] == 2
    assert samples["tilery_store_total", (("event", "user_hits"),)] == 12345678
    assert samples["tilery_rejected_total", (("reason", NASTY),)] == 1
    text = problem_text(problem(layout="tt"))
    assert samples["tilery_uncovered_calls_total", (("problem", text),)] == 2
    assert kinds["tilery_calls_total"] == "counter"
    assert kinds["tilery_hit_rate"] == "gauge"


def test_every_counter_is_in_the_text() -> None:
    computed = ("plans", "calls", "memo", "hit_rates")
    groups = {*exposition.TIMED, *(metric.group for metric in exposition.METRICS), "new group"}.difference(computed)
    for group in groups:
        count(group, NASTY, 7)
    samples, _ = parse(tilery.prometheus())
    counted = [name for (name, labels), value in samples.items() if value == 7 and labels[-1][1] == NASTY]
    assert len(counted) == len(groups) == len(set(counted))
    assert samples["tilery_events_total", (("group", "new group"), ("event", NASTY))] == 7


def test_series_of_problems_are_bounded() -> None:
    rows = [Served(problem(m=m), "fallback", m, "missed") for m in range(1, MAX_UNCOVERED + 101)]
    samples, _ = parse(exposition.text(report(rows, {})))
    found = {labels[0][1]: value for (name, labels), value in samples.items() if "uncovered" in name}
    assert len(found) == exposition.SHOWN_UNCOVERED + 1
    assert sum(found.values()) == sum(range(1, MAX_UNCOVERED + 101))


def test_the_function_is_not_hidden_by_a_module() -> None:
    from tilery import exposition as module

    assert tilery.prometheus is module.prometheus
    assert tilery.prometheus().startswith("# HELP tilery_")


def test_a_trace_summed_up(world: World, file: Path) -> None:
    policy.use(Policy(trace=file, jit="off"))
    call(3)
    call(2, layout="tt")
    reset()  # the blocklist is looked for in the store too
    count("jit", "seconds", 1.5)
    count("tune", "seconds", 2.5)
    count("store", "hits", 3)
    count("store", "misses", 1)
    count("store", "user_hits", 3)
    trace.flush()
    found = json.loads(run(file, "--json").stdout)
    assert found["calls"] == {"model": 3, "fallback": 2}
    assert found["hit_rates"] == {"memo": 3 / 5, "memory": 0.0, "seed": 0.0, "user": 0.75}
    assert (found["jit"]["seconds"], found["tune"]["seconds"]) == (1.5, 2.5)
    assert [row["calls"] for row in found["uncovered"]] == [2]
    text = run(file).stdout
    assert text.startswith("1 processes, 2 problems\n")
    assert problem_text(problem(layout="tt")) in text
    assert re.search(r"fallback +2 *\n", text) and re.search(r"user +75\.0% *\n", text)
    samples, _ = parse(run(file, "--prometheus").stdout)
    assert samples["tilery_calls_total", (("tier", "model"),)] == 3
    assert samples["tilery_hit_rate", (("level", "user"),)] == 0.75


def test_processes_add_up(world: World, file: Path) -> None:
    call(3)
    trace.flush()
    first = file.read_text()
    (process,) = {json.loads(line)["process"] for line in first.splitlines()}
    file.with_name(f"{file.name}.1").write_text(first.replace(process, "another"))
    found = json.loads(run(file, "--json").stdout)
    assert (found["processes"], found["problems"]) == (2, 1)
    assert (found["calls"], found["plans"], found["origins"]) == ({"model": 6}, {"model": 2}, {"image": 2})


def test_the_trace_of_the_policy_is_the_default(world: World, file: Path) -> None:
    call(1)
    trace.flush()
    assert json.loads(run("--json").stdout)["calls"] == {"model": 1}
    policy.use(Policy())
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name a FILE" in result.stderr


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("m,n,k\n1,2,3\n")
    result = run(tmp_path / "file")
    assert result.exit_code == 2
    assert "no event of a trace" in result.stderr


def test_requests_of_a_trace_are_its_problems_by_calls(world: World, file: Path) -> None:
    call(1, m=16, bias=True, activation="gelu")
    call(5, m=32, layout="any", align=8)
    call(1, m=48)
    call(3, m=48)
    trace.flush()
    expected = [problem(m=32, layout="any", align=8), problem(m=48), problem(m=16, bias=True, activation="gelu")]
    assert read(file, "s8") == expected
    file.write_text('{"event": "cal\n' + file.read_text())
    assert read(file, "s8") == expected


def test_json_lines_with_a_problem_are_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"problem": {"m": 3, "n": 4, "k": 5}}\n{"problem": {"m": 1, "n": 4, "k": 5}}\n')
    assert [one.m for one in read(path, "f32")] == [3, 1]
