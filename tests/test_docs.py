"""Examples of README and docs/ run as they stand; their tables say what code does."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from amp import cli
from amp.graph_rewrite.plan import RULES
from amp.integration.doctor import checkup, findings, hook_states, surroundings
from amp.loss_scaling import DynamicLossScale
from amp.policy import FIELDS
from convergence import __main__ as convergence

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPTIONS = (DOCS / "options.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
JOB = "# train.py"  # the first line of the example that is a job

# Each page has a process, forked so that TensorFlow is imported once; there each block
# starts afresh.
RUN_PAGES = """
import os, pathlib, sys
import tensorflow
for page in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    if os.fork() == 0:
        for path in sorted(page.iterdir()):
            print("block", path.name, flush=True)
            text = path.read_text(encoding="utf-8")
            exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
        sys.exit()
    _, status = os.wait()
    print("page", page.name, "ended with", status, flush=True)
"""


def blocks(page: pathlib.Path, language: str) -> list[tuple[int, str]]:
    """The blocks of a language, each with its line."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: match.start()].count("\n") + 2, match[2])
        for match in BLOCK.finditer(text)
        if match[1] == language
    ]


def examples(page: pathlib.Path) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with its line, but for the job."""
    return [b for b in blocks(page, "python") if not b[1].startswith(JOB)]


def commands() -> list[str]:
    """The commands of all pages, each once."""
    consoles = [text for page in PAGES for _, text in blocks(page, "console")]
    lines = [line for text in consoles for line in text.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return list(dict.fromkeys(line.removeprefix("$ ") for line in lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory with train.py, and in bin the commands that installing would give."""
    place = tmp_path_factory.mktemp("docs")
    python = [text for page in PAGES for _, text in blocks(page, "python")]
    (script,) = [text for text in python if text.startswith(JOB)]
    (place / "train.py").write_text(script)
    (place / "bin").mkdir()
    for name, options in (("python", ""), ("amp", "-m amp")):
        command = place / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        command.chmod(0o755)
    # What site does with the .pth file, where the package may not be installed.
    (place / "site").mkdir()
    (place / "site/sitecustomize.py").write_text(
        (ROOT / "tf_amp.pth").read_text(encoding="utf-8")
    )
    return place


def run(place: pathlib.Path, *command: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment["AMP_CACHE_DIR"] = os.environ["AMP_CACHE_DIR"]
    environment |= {
        "PYTHONPATH": f"{place / 'site'}{os.pathsep}{ROOT}",
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    done = subprocess.run(
        command,
        cwd=place,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def printed(place: pathlib.Path) -> str:
    """What the blocks of all pages print."""
    folder = place / "pages"
    for page in filter(examples, PAGES):
        (folder / page.stem).mkdir(parents=True)
        for line, text in examples(page):
            name = f"{page.stem}_line_{line:04d}.py"
            (folder / page.stem / name).write_text(text)
    return run(place, sys.executable, "-c", RUN_PAGES, str(folder))


# What is said where the plugin failed, and the job goes on without it.
FELL_BACK = re.compile("Please report this|as it was")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.kernels
@pytest.mark.parametrize("page", [*filter(examples, PAGES)], ids=lambda p: p.stem)
def test_python_blocks_run_in_order(printed, page):
    assert printed.count(f"block {page.stem}_line_") == len(examples(page))
    assert f"page {page.stem} ended with 0\n" in printed, printed
    assert not FELL_BACK.search(printed), printed


def test_pages_have_examples():
    assert sum(len(examples(page)) for page in PAGES) >= 16


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.kernels
def test_the_job_runs_unchanged_in_mixed_precision(place):
    ways = [command for command in commands() if command.endswith("train.py")]
    assert len(ways) == 2
    for command in ways:
        output = run(place, "sh", "-c", command)
        assert "loss:" in output
        assert "amp: " in output  # on, off and why, or the summary of `amp run`
        assert not FELL_BACK.search(output), output
    assert (place / "model.keras").exists()


@pytest.mark.processes
def test_the_other_commands_run(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("AMP_CACHE_DIR", str(place / "cache"))
    if not (place / "exported").exists():
        run(place, sys.executable, "train.py")
    chosen = [command for command in commands() if command.startswith("amp ")]
    chosen = [command for command in chosen if not command.startswith("amp run")]
    assert len(chosen) >= 3
    for command in chosen:
        timed = command in ("amp tune", "amp tune --saved-model exported")
        quick = ["--seconds", "0.5"] if timed else []
        assert cli.main([*shlex.split(command)[1:], *quick]) == 0, command
        assert capsys.readouterr().out


def test_the_page_of_the_doctor_names_every_check_and_every_state():
    page = (DOCS / "doctor.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", page.partition("## For")[0], re.MULTILINE)
    first = (
        *(surroundings.versions(), surroundings.environment()),
        *(surroundings.start(), surroundings.cache()),
        surroundings.reports({"AMP_REPORT": "reports"}),
    )
    made = [finding.check for found in first for finding in found]
    made += [check.name for check in checkup.CHECKS]
    seldom = ("temporary", "gpu")  # only where something is wrong
    assert [name for name in named if name not in seldom] == made
    for word in (*findings.STATUSES, *hook_states.STATES):
        assert f'"{word}"' in page
    assert f"| `schema` | {findings.SCHEMA} |" in page


def test_make_commands_are_targets_and_the_only_others():
    targets = re.findall(
        r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for command in commands():
        word, *rest = shlex.split(command)
        if word == "make":
            assert rest[0] in targets
        elif rest[:2] == ["-m", "convergence"]:
            # Real data is not at hand here: the command is at least a valid one.
            convergence._parser().parse_args(rest[2:])
        else:
            assert word == "amp" or command == "AMP_ENABLE=1 python train.py"
    assert "pytest" not in README


def test_policy_table_has_every_field_with_its_variable_and_default():
    rows = re.findall(
        r"^\| `(\w+)` \| `(AMP_\w+)` \|.*\| ([^|]+) \| [^|]+ \|$", OPTIONS, re.M
    )
    shown = {name: (variable, default) for name, variable, default in rows}
    words = {False: "`0`", (): "none", None: "none"}  # False == 0.0
    assert shown == {
        field.name: (
            field.variable,
            words.get(field.default, f"`{field.default}`"),
        )
        for field in FIELDS.values()
    }


def test_rows_of_the_dynamic_rule_are_its_fields_with_their_defaults():
    _, _, after = OPTIONS.partition("The fields of `DynamicLossScale`:")
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| [^|]+ \|$", after, re.M)
    fields = dataclasses.fields(DynamicLossScale)
    assert rows[: len(fields)] == [(one.name, str(one.default)) for one in fields]


def test_options_name_every_variable_that_the_package_reads():
    read = set()
    for path in [*ROOT.glob("amp/**/*.py"), ROOT / "_tf_amp_start.py"]:
        read |= set(
            re.findall(r"[\"'](AMP_[A-Z_]+)[\"']", path.read_text(encoding="utf-8"))
        )
    read |= {field.variable for field in FIELDS.values()}
    assert "AMP_CACHE_DIR" in read
    shown = set(re.findall(r"^\|.*?`(AMP_[A-Z_]+)`", OPTIONS, re.M))
    assert shown == read


def test_the_page_on_reports_lists_every_rule():
    text = (DOCS / "reports.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.M) == [*RULES.items()]


def test_the_readme_is_a_first_page():
    assert len(README.splitlines()) <= 150


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
