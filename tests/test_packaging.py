"""The `.pth` file reaches site-packages by wheel and by editable wheel, and is idle."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ROOT = pathlib.Path(__file__).parents[1]
PTH = "tf_amp.pth"
BUILD = "import sys; from setuptools import build_meta; {call}(sys.argv[1])"

# Stands for a start of Python (-S: with no other site-packages) on `sys.argv[1]`.
START = """
import sys, site
before = set(sys.modules)
site.addsitedir(sys.argv[1])
new = set(sys.modules) - before
ours = ("amp", "_tf_amp_start", "_tf_amp_imports")
print("imported", sorted(m for m in new if m.split(".")[0] in ours))
"""
# The same, then a job that imports a stand-in for TensorFlow, beside what `job` holds.
JOB = """
import sys, site
site.addsitedir(sys.argv[1])
sys.path.insert(0, "job")
import tensorflow, amp
print("amp is", getattr(amp, "mine", None) or amp.__file__)
"""
AUTOSTART = "def install() -> None:\n    print('installed')\n"


def python(*args: str, cwd: pathlib.Path, **variables: str) -> str:
    """Runs Python without the environment of this project and returns its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of what is packed, with an autostart that only says it was reached."""
    pytest.importorskip("setuptools", minversion="70.1")
    copy = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "setup.py", PTH, "_tf_amp_start.py"):
        shutil.copy(ROOT / name, copy)
    (copy / "README.md").touch()
    shutil.copytree(
        ROOT / "amp", copy / "amp", ignore=shutil.ignore_patterns("__pycache__")
    )
    (copy / "amp/__init__.py").write_text("")
    (copy / "amp/integration/__init__.py").write_text("")
    (copy / "amp/integration/launch/autostart.py").write_text(AUTOSTART)
    return copy


@pytest.fixture(scope="module", params=["build_wheel", "build_editable"])
def installed(
    request: pytest.FixtureRequest,
    project: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> pathlib.Path:
    """A directory as an installer fills it: the wheel, unpacked (PEP 427)."""
    wheels = tmp_path_factory.mktemp("wheels")
    call = f"build_meta.{request.param}"
    python("-c", BUILD.format(call=call), str(wheels), cwd=project)
    (wheel,) = wheels.glob("*.whl")
    packages = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages


def started(packages: pathlib.Path, **variables: str) -> str:
    return python("-ISc", START, str(packages), cwd=packages.parent, **variables)


def test_pth_is_recorded_so_that_uninstalling_removes_it(
    installed: pathlib.Path,
) -> None:
    (record,) = installed.glob("tf_amp-*.dist-info/RECORD")
    paths = [line.split(",")[0] for line in record.read_text().splitlines()]
    assert PTH in paths
    assert (installed / PTH).read_text() == (ROOT / PTH).read_text()


def test_pth_imports_nothing_without_the_variable(installed: pathlib.Path) -> None:
    assert "installed" not in started(installed)
    assert "imported []" in started(installed)


def test_pth_imports_no_amp_before_tensorflow(installed: pathlib.Path) -> None:
    output = started(installed, AMP_ENABLE="1")
    assert "imported ['_tf_amp_imports', '_tf_amp_start']" in output


def ran(installed: pathlib.Path, place: pathlib.Path, **files: str) -> str:
    """What a job under AMP_ENABLE=1 prints, beside files of its own."""
    for name, text in {"tensorflow.py": "", **files}.items():
        (place / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "job" / name).write_text(text)
    return python("-ISc", JOB, str(installed), cwd=place, AMP_ENABLE="1")


def test_the_job_starts_with_tensorflow(
    installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output = ran(installed, tmp_path)
    assert output.startswith("installed\namp is /")
    assert output.rstrip().endswith("amp/__init__.py")


@pytest.mark.parametrize("file", ["amp.py", "amp/__init__.py"])
def test_a_module_of_the_users_called_amp_wins_and_one_line_says_so(
    installed: pathlib.Path, tmp_path: pathlib.Path, file: str
) -> None:
    output = ran(installed, tmp_path, **{file: "mine = 'mine'\nprint('imported')"})
    said, *job = output.splitlines()
    assert said.startswith("amp: mixed precision is off: another module is called amp")
    assert file in said
    assert job == ["imported", "amp is mine"]  # once, and by the job alone


def test_a_folder_called_amp_beside_the_job_hides_nothing(
    installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output = ran(installed, tmp_path, **{"amp/notes.txt": "no package"})
    assert output.startswith("installed\namp is /")
    assert output.rstrip().endswith("amp/__init__.py")


def test_wheel_holds_every_module_and_nothing_else(installed: pathlib.Path) -> None:
    top = {path.name for path in installed.iterdir()} - {PTH, "__pycache__"}
    top = {name for name in top if not name.startswith(("__editable__", "tf_amp-"))}
    if (installed / "amp").exists():
        assert top == {"amp", "_tf_amp_start.py"}
        packed = {str(p.relative_to(installed)) for p in installed.glob("amp/**/*.py")}
        assert packed == {
            str(p.relative_to(ROOT)) for p in ROOT.glob("amp/**/*.py")
        } | {"amp/__init__.py", "amp/integration/__init__.py"}
    else:
        assert not {name for name in top if not name.startswith("__pycache__")}


PAGE = """
import sys
sys.path.insert(0, sys.argv[1])
from amp.report_page import page
text = page.page("job", {"report": 1})
print("cytoscape" in text, "dagre" in text, "</html>" in text)
"""


def test_the_report_page_is_made_from_what_the_wheel_holds(
    installed: pathlib.Path,
) -> None:
    if not (installed / "amp").exists():
        pytest.skip("an editable wheel leaves the package where it is")
    output = python("-ISc", PAGE, str(installed), cwd=installed.parent)
    assert output == "True True True\n"
    vendor = installed / "amp/report_page/assets/vendor"
    assert len(list(vendor.glob("*.LICENSE.txt"))) == 2
