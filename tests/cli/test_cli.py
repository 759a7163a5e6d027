"""The table of commands: help, usage errors, and one file a command."""

from __future__ import annotations

import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from amp import cli
from amp.cli import policy_flags
from amp.cli.command import Modules
from amp.policy import FIELDS

ROOT = pathlib.Path(__file__).parents[2]
FORCED = ["--emulate", "1", "--assignment", "all"]


@pytest.mark.processes
def test_help_needs_no_tensorflow(tmp_path):
    code = (
        "import sys; from amp import cli\ntry: cli.main(['run', '--help'])\n"
        "except SystemExit: print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
    )
    assert done.stdout.endswith("False\n")
    for field in FIELDS.values():
        assert f"{field.flag} VALUE" in done.stdout


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["rewrite", "graph.pb"], "the following arguments are required: OUT"),
        (["doctor", "more"], "unrecognized arguments: more"),
        (["tune", "--seconds", "long"], "argument --seconds: invalid float value"),
        (["explain", "--node"], "argument --node: expected one argument"),
    ],
)
def test_a_command_line_that_is_not_understood_has_four_parts(argv, found, capsys):
    assert cli.main(argv) == 2
    where = " ".join(["amp", *argv[:1]])
    told = capsys.readouterr().err
    assert told.startswith(f"amp: UsageError: {found}")
    assert f"  where:   {where}\n  allowed: {where} " in told
    assert f"  do now:  `{where} --help` says what each does\n" in told


def test_the_forms_of_a_usage_are_told_apart(capsys):
    assert cli.main(["explain", "--node"]) == 2
    told = capsys.readouterr().err
    assert "amp explain [options] PATH or amp explain [options] --diff A B\n" in told


@pytest.mark.parametrize("command", ["explain", "compare", "rewrite", "tune"])
def test_a_path_that_is_not_there_is_refused_without_tensorflow(command, tmp_path):
    nowhere, out = str(tmp_path / "nowhere"), str(tmp_path / "out")
    more = {"rewrite": [nowhere, out], "tune": ["--saved-model", nowhere]}
    argv = [command, *more.get(command, [nowhere])]
    code = f"import sys; from amp import cli; assert cli.main({argv!r}) == 2"
    code += "; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    assert "there is no such file" in done.stderr


@pytest.mark.parametrize("command", ["explain", "compare", "rewrite", "tune"])
def test_a_missing_tensorflow_is_an_error_in_four_parts(command, tmp_path):
    (tmp_path / "graph.pb").touch()
    argv = [command, str(tmp_path / "graph.pb"), str(tmp_path / "out.pb")]
    argv = argv[: {"tune": 1, "rewrite": 3}.get(command, 2)]
    code = "import sys; sys.modules['tensorflow'] = None\n"
    code += f"from amp import cli; sys.exit(cli.main({argv!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("amp: TensorFlowError: TensorFlow cannot be imported")
    assert "do now:  install it (pip install tensorflow)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("error", [ValueError("so it is"), OSError("so it is")])
def test_an_error_of_ours_shows_where_and_is_none_of_what_was_found(
    error, monkeypatch, capsys
):
    def failing(argv):
        raise error

    monkeypatch.setattr(cli, "_parsed", failing)
    assert cli.main(["compare"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert f"{type(error).__name__}: so it is\n" in told


def test_python_runs_the_package_as_the_command(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "amp.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["amp", "explain", "nowhere.pb"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("amp", run_name="__main__")
    assert caught.value.code == 2
    assert "there is no such file" in capsys.readouterr().err


def test_each_command_is_a_file_and_says_in_its_help_what_it_does(capsys):
    shared = {"__init__", "command", "policy_flags", "progress_bar"}
    shared |= {"terminal", "screen", "op_libraries"}
    files = {path.stem for path in (ROOT / "amp/cli").glob("*.py")}
    assert files - shared == cli.COMMANDS.keys()
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"{name:<9} {command.help}" in told


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["dcotor"], "did you mean doctor?"),
        (["--hlep"], "did you mean --help?"),
        (["frobnicate"], "`amp --help` says what each does"),
        (["explain", "--dytpe", "float16", "x.pb"], "did you mean --dtype?"),
        (["run", "--dytpe=float16", "x.py"], "did you mean --dtype?"),
        (["tune", "--frobnicate"], "`amp tune --help` says what each does"),
    ],
)
def test_what_is_misspelt_is_answered_with_what_was_meant(argv, meant, capsys):
    assert cli.main(argv) == 2
    told = capsys.readouterr().err
    assert f"do now:  {meant}" in told
    for part in ("does not know", "where:", "allowed:"):
        assert part in told


def test_an_interrupt_ends_without_a_traceback(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parsed", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "amp: interrupted\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_no_flag_may_be_abbreviated(name, capsys):
    flags = re.findall(r"  (--[a-z-]{4,})", _help(name, capsys))
    for flag in {flag for flag in flags if flag != "--help"}:
        assert cli.main([name, flag[:-1], "1", "target"]) == 2
        assert f"does not know '{flag[:-1]}'" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_has_examples_that_are_understood(name, capsys):
    lines = cli.COMMANDS[name].examples
    told = _help(name, capsys)
    assert lines
    for line in lines:
        assert f"  {line}\n" in told
        words = shlex.split(line.partition(" > ")[0])
        assert words[0] == "amp"
        assert cli._parsed(words[1:]).command is cli.COMMANDS[name]


def _help(name, capsys):
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    return capsys.readouterr().out


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert not end.value.code
    assert re.fullmatch(
        r"tf-amp (\d+\.\d+\.\d+|not installed)\n", capsys.readouterr().out
    )


@pytest.mark.parametrize("name", ["explain", "compare", "rewrite"])
@pytest.mark.parametrize("field", [*policy_flags.OF_JOBS, "report"])
def test_what_only_a_running_job_has_is_no_flag_of_a_plan(name, field, capsys):
    """It would be accepted, and do nothing; `rewrite` alone writes a report."""
    if (name, field) != ("rewrite", "report"):
        assert FIELDS[field].flag not in _help(name, capsys)


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (["--dtype", "flaot16"], "where:   --dtype\n"),
        (["--keep", "nothing*"], "where:   --keep\n"),
        (["--allow", "MatMull"], "where:   --allow\n"),
    ],
)
def test_an_error_names_the_flag_that_was_used(graph, flags, where, capsys):
    assert cli.main(["explain", str(graph / "graph.pb"), *FORCED, *flags]) == 2
    assert where in capsys.readouterr().err


def test_an_error_names_the_variable_where_no_flag_was_used(graph, capfd, monkeypatch):
    monkeypatch.setenv("AMP_DTYPE", "flaot16")
    monkeypatch.setenv("AMP_DTPYE", "float16")
    assert cli.main(["explain", str(graph / "graph.pb")]) == 2
    told = capfd.readouterr().err
    assert "where:   AMP_DTYPE\n" in told
    assert "did you mean float16?" in told
    assert "amp: AMP_DTPYE (did you mean AMP_DTYPE?) is no variable" in told


@pytest.mark.parametrize(("given", "asked"), [(None, "2"), ("0", "0")])
def test_tensorflow_is_asked_to_say_less_unless_the_user_did(monkeypatch, given, asked):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if given is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", given)
    Modules({"any": "json"}).any.dumps(1)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == asked
