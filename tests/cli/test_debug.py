from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import variants_of
from tests.host.test_planted import FAULTS, mutated
from tilery.cli import debug

Run = Callable[..., Any]

MMA = variants_of("gemm_mma", "bf16", "nt", 16)[0].name
NAIVE = variants_of("gemm_naive", "f32", "any", 1)[0].name
SIZES = ("--m", "125", "--n", "131", "--k", "208", "--seed", "7")
# A test that hangs fails long before the run of all tests is given up.
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Templates with a fault, by its name."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = mutated(FAULTS[name], tmp_path_factory.mktemp("planted"))
        return made[name]

    return get


def test_a_right_variant(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    result = run("debug", NAIVE, "--seed", "5", "--batch", "2", "--bias", "--activation", "gelu", "--accumulate")
    assert result.exit_code == 0, result.stdout
    assert re.fullmatch(
        rf"{NAIVE}, 33 x 33 x 3, batch 2, seed 5\n"
        r"ok: 4 thread orders, no fault, the largest error is 0\.\d+ of the bound\n",
        result.stdout,
    )
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.setattr(debug, "compile", None)  # the second time it comes from the store
    found = json.loads(run("debug", NAIVE, "--json", "--k", "0", "--align-offset", "3", "--schedules", "2").stdout)
    assert (found["ok"], found["wrong"], found["fault"]) == (True, None, None)
    assert found["problem"] == {"m": 33, "n": 33, "k": 0, "batch": 1}
    assert 0 <= found["seed"] < 2**32


def test_a_wrong_element_and_its_writer(run: Run, planted: Callable[[str], Path]) -> None:
    templates = str(planted("swapped fragment row"))
    result = run("debug", MMA, *SIZES, "--json", "--templates", templates)
    assert result.exit_code == 1
    wrong = json.loads(result.stdout)["wrong"]
    assert wrong["order"] == 7
    assert wrong["count"] > 1000
    assert abs(wrong["got"] - wrong["expected"]) > wrong["bound"] > 0
    # the tile is 256 x 128, and one block's rows reach over all of D's
    assert (wrong["row"], wrong["block"]) == (0, wrong["col"] // 128)
    text = run("debug", MMA, *SIZES, "--templates", templates).stdout
    line = r"wrong: \d+ of 16375 elements; the first is D\[0, (\d+)\], written by thread (\d+) of block 0: "
    assert (match := re.search(line, text)), text
    assert (int(match[1]), int(match[2])) == (wrong["col"], wrong["thread"])
    again = re.search("^again: tilery (.*)$", text, re.MULTILINE)
    assert again is not None
    repeated = json.loads(run(*shlex.split(again[1]), "--json").stdout)
    assert repeated["wrong"] == wrong
    assert repeated["schedules"] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "removed barrier between passes",
            r"race: \w+ byte \d+ of shared memory at (epilogue|gemm_mma).cuh:\d+, with no",
        ),
        (
            "off-by-one store",
            r"writes element \d+ of d at epilogue.cuh:\d+|writes .* at epilogue.cuh:\d+, up to \d+ bytes",
        ),
        ("removed wait", r"reads .* at gemm_mma.cuh:\d+, before the wait for the cp.async that fills it by thread \d+"),
    ],
)
def test_faults_with_template_lines(run: Run, planted: Callable[[str], Path], name: str, text: str) -> None:
    result = run("debug", MMA, *SIZES, "--json", "--schedules", "8", "--templates", str(planted(name)))
    assert result.exit_code == 1, result.stderr
    fault = json.loads(result.stdout)["fault"]
    assert re.search(rf"^kernel {MMA}, block \(\d+, 0, 0\), thread \d+: {text}", fault["text"]), fault
    assert 7 <= fault["order"] < 15


def test_a_deadlock_ends(spawn: Run, planted: Callable[[str], Path]) -> None:
    """In a process of its own, so that a hang would end after a while."""
    done = spawn("debug", MMA, *SIZES, "--templates", str(planted("barrier in a divergent branch")))
    assert done.returncode == 1, done.stderr
    here = r"__syncthreads \(gemm_mma.cuh:(\d+)\)"
    waits = rf"32 threads \(from 0 on\) wait at {here}; 224 threads \(from 32 on\) wait at {here}"
    found = re.search(rf"kernel {MMA}, block \(0, 0, 0\): deadlock: {waits} \(order 7\)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert int(found[2]) == int(found[1]) + 1


def test_unknown_variant(run: Run) -> None:
    result = run("debug", MMA.replace("bf16", "bf6"))
    assert result.exit_code == 2
    assert f"'{MMA}'" in result.stderr
    assert "did you mean" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((MMA, "--k", "100"), r"takes no .*100 \(m, n, k\).* 16 bytes; the next that it takes is \d+ x \d+ x 104"),
        ((MMA, "--align-offset", "4"), r"--align-offset 4 must be a multiple of 8"),
        ((NAIVE, "--block", "9"), r"--block 9: this launch has 9, counted from 0"),
        ((NAIVE, "--thread", "256"), r"--thread 256: this launch has 256, counted from 0"),
        ((NAIVE, "--activation", "rleu"), r"did you mean 'relu'"),
        ((NAIVE, "--out-dtype", "s8"), r"cannot write s8; out_dtype can be f32, f16, bf16"),
        ((NAIVE, "--templates", "/nowhere"), r"/nowhere.*must be a whole copy of"),
    ],
)
def test_bad_input(run: Run, arguments: tuple[str, ...], text: str) -> None:
    result = run("debug", *arguments)
    assert result.exit_code == 2, result.stdout
    assert re.search(text, result.stderr), result.stderr


def test_a_template_that_does_not_compile(run: Run, tmp_path: Path) -> None:
    templates = Path(shutil.copytree(debug.TEMPLATES, tmp_path / "templates"))
    (templates / "gemm_naive.cuh").write_text("#error on purpose\n")
    result = run("debug", NAIVE, "--templates", str(templates))
    assert result.exit_code == 1
    assert "gemm_naive.cuh:1:2: error: #error on purpose" in result.stderr


def test_no_compiler(spawn: Run) -> None:
    done = spawn("debug", NAIVE, CXX="/nowhere/g++")
    assert done.returncode == 1
    assert re.search(f"{NAIVE} cannot be compiled .* there is no C\\+\\+ compiler '/nowhere/g\\+\\+'", done.stderr)
    assert "Traceback" not in done.stderr


def test_no_folder_to_write_to(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    result = run("debug", NAIVE)
    assert result.exit_code == 1
    assert re.search(r"no library can be built in a temporary folder: .*file.*TMPDIR can name another", result.stderr)


@pytest.fixture
def gdb() -> str:
    path = shutil.which("gdb")
    if path is None:
        pytest.skip("gdb is not installed")
    done = subprocess.run([path, "-nx", "-batch", "-ex", "run", "--args", "true"], capture_output=True, text=True)
    if "exited normally" not in done.stdout:
        pytest.skip(f"gdb cannot run a program here: {done.stderr.strip()[-200:]}")
    return path


def stopped(command: str, env: dict[str, str]) -> str:
    """What gdb shows of the thread where the command stops, and then of the frames of a fault."""
    name, *rest = shlex.split(command)
    steps = ["frame", "print ((host::Fiber*)host::current)->number", "backtrace 3", "continue", "backtrace 8"]
    at = rest.index("--args")
    options = [word for step in steps for word in ("-ex", step)]
    full = [name, "-nx", "-batch", *rest[:at], *options, *rest[at:]]
    return subprocess.run(full, capture_output=True, text=True, timeout=TIMEOUT_S, env=env).stdout


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"TILERY_STORE": str(tmp_path / "store"), "DEBUGINFOD_URLS": ""}


def test_gdb_stops_in_the_thread_that_was_asked_for(run: Run, gdb: str, environment: dict[str, str]) -> None:
    found = json.loads(run("debug", NAIVE, "--seed", "3", "--gdb", "--json", "--block", "4", "--thread", "77").stdout)
    assert found["ok"]
    shown = stopped(found["gdb"], environment)
    assert "tilery_host_stop (block=4, thread=77)" in shown, shown
    assert re.search(rf"^#0 +{NAIVE} \(.*\) at .*/{NAIVE}.cu:\d+$", shown, re.MULTILINE), shown
    assert "$1 = 77\n" in shown


def test_gdb_stops_in_the_writer_of_the_wrong_element(
    run: Run, gdb: str, environment: dict[str, str], planted: Callable[[str], Path]
) -> None:
    options = (*SIZES, "--templates", str(planted("swapped fragment row")))
    result = run("debug", MMA, *options, "--gdb")
    writer = re.search(r"written by thread (\d+) of block (\d+)", result.stdout)
    assert writer is not None
    shown = stopped(result.stdout.splitlines()[-1], environment)
    assert f"tilery_host_stop (block={writer[2]}, thread={writer[1]})" in shown, shown
    assert f"$1 = {writer[1]}\n" in shown


def test_gdb_goes_on_to_the_fault(
    run: Run, gdb: str, environment: dict[str, str], planted: Callable[[str], Path]
) -> None:
    options = (*SIZES, "--templates", str(planted("off-by-one store")))
    result = run("debug", MMA, *options, "--gdb")
    who = re.search(r"block \((\d), 0, 0\), thread (\d+): .* at (epilogue.cuh:\d+)", result.stdout)
    assert who is not None, result.stdout
    shown = stopped(result.stdout.splitlines()[-1], environment)
    assert f"tilery_host_stop (block={who[1]}, thread={who[2]})" in shown, shown
    _, found, stack = shown.partition("host::Worker::fail (")
    assert found, shown
    assert f"/{who[3]}" in stack, shown
