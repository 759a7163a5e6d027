"""`make` installs what EXTRAS ask for, once; pip and Python are stand-ins here."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not shutil.which("make"), reason="make is not here"),
]

ROOT = pathlib.Path(__file__).parents[1]
# What is asked of it goes into a file; it makes an environment with itself in it.
PYTHON = """#!/bin/sh
echo "$*" >> asked
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin"; cp python "$3/bin/python"; fi
"""


@pytest.fixture
def installed(tmp_path: pathlib.Path):
    """Runs make; returns the extras that were installed, and what was uninstalled."""
    for name in ("Makefile", "pyproject.toml", "setup.py", "tf_amp.pth"):
        shutil.copy(ROOT / name, tmp_path)
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    inherited = ("EXTRAS", "MAKEFLAGS", "MAKELEVEL", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if k not in inherited}

    def run(*options: str) -> tuple[list[str], list[str]]:
        asked.write_text("", encoding="utf-8")
        command = ["make", *options, "PYTHON=./python"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        lines = asked.read_text(encoding="utf-8").splitlines()
        return (
            [line.partition(".[")[2].rstrip("]") for line in lines if ".[" in line],
            [line.split()[-1] for line in lines if "uninstall" in line],
        )

    return run


def test_what_is_installed_is_not_installed_again(installed) -> None:
    asked = "EXTRAS=cpu,demo,dev"
    extras, _ = installed("test", asked)
    assert extras == ["cpu,demo,dev"]
    assert installed("test", asked) == ([], [])
    assert installed("demo", asked) == ([], [])
    assert installed(".venv/.installed", asked) == ([], [])


@pytest.mark.parametrize(("more", "added"), [("", ["cpu,demo"]), (",convergence", [])])
def test_the_demo_installs_what_extras_leave_out(installed, more, added) -> None:
    """Both `demo` and `convergence` have the images that it trains on."""
    asked = f"EXTRAS=cpu,dev{more}"
    installed("test", asked)
    assert installed("demo", asked)[0] == added
    assert installed("demo", asked)[0] == []


def test_the_keras_of_the_tests_brings_no_tensorflow(installed, tmp_path) -> None:
    for extras, lines in (("cpu,dev", 1), ("cpu,docs", 0)):
        installed("test", f"EXTRAS={extras}")
        asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
        assert sum(line.endswith("--no-deps tf-keras") for line in asked) == lines


def test_another_tensorflow_takes_the_place_of_the_one_that_is_there(installed) -> None:
    large, all_of_it = "EXTRAS=tensorflow,demo,dev", ["tensorflow,demo,dev"]
    installed("test", "EXTRAS=cpu,dev")
    assert installed("test", large) == (all_of_it, ["tensorflow-cpu"])
    assert installed("demo", large) == ([], [])
    assert installed("demo", "EXTRAS=cpu,dev") == (["cpu,demo"], ["tensorflow"])
    assert installed("test", large) == (all_of_it, ["tensorflow-cpu"])


def test_the_tensorflow_with_cuda_is_none_for_cpus(installed) -> None:
    with_cuda = (["gpu,demo"], ["tensorflow-cpu"])
    assert installed("demo", "EXTRAS=gpu,demo") == with_cuda
    assert installed("demo", "EXTRAS=gpu,demo") == ([], [])
    assert installed("demo") == (["cpu,demo"], ["tensorflow"])
    assert installed("test", "EXTRAS=gpu,dev") == (["gpu,dev"], ["tensorflow-cpu"])


def test_the_demo_installs_less_and_the_rest_comes_when_asked_for(installed) -> None:
    assert installed("demo")[0] == ["cpu,demo"]
    assert installed("demo")[0] == []
    assert installed("test")[0] == ["cpu,demo,convergence,dev,docs"]
    assert installed("demo")[0] == []
