"""The command itself: version, help, errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tilery
from tilery.cli import listing
from tilery.errors import InvalidInput, PackError, TileryError, UnknownName, UnsupportedProblem

COMMANDS = ("demo", "doctor", "list", "explain")


def test_version(run, spawn):
    assert run("--version").stdout == f"tilery {tilery.__version__}\n"
    done = spawn("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tilery {tilery.__version__}\n", "")


def test_help_names_every_command(run):
    text = run("--help").stdout
    assert all(f" {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(run, name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_an_unknown_command_is_bad_input_with_the_nearest_one(run):
    result = run("explian")
    assert result.exit_code == 2
    assert "explain" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("m is 1; pass 2"), 2),
        (UnknownName("arch", "sm_8", ["sm_80"]), 2),
        (PackError("an image is broken; reinstall"), 1),
        (UnsupportedProblem("nothing serves", ["jit: off"]), 1),
        (TileryError("something [red]else[/red]"), 1),
    ],
)
@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"]])
def test_an_error_is_told_in_its_own_words_on_stderr(run, monkeypatch, error, code, arguments):
    def fail():
        raise error

    monkeypatch.setattr(listing, "builtin", fail)
    result = run(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == f"error: {error}\n"


def test_a_real_process_shows_no_traceback(spawn):
    done = spawn("list", "--arch", "sm_9O")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown arch 'sm_9O': did you mean 'sm_90a'")
    assert "Traceback" not in done.stderr


def test_importing_tilery_does_not_import_the_command_line():
    loaded = "[m for m in sys.modules if m.startswith(('tilery.cli', 'typer', 'rich'))]"
    code = f"import sys, tilery; tilery.gemm; print({loaded})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
