"""`amp run` runs what Python runs, as Python runs it, whatever is called `amp` there.

Every job runs in a process of its own. A stand-in for TensorFlow saves the seconds that
importing it takes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
PACKAGES = [place for place in sys.path if place.endswith("-packages")]

TELL = """
import re, sys, __main__
names = {n: str(v) for n, v in globals().items() if n.startswith("__")}
names.pop("__builtins__"), names.pop("__main__")
told = re.sub(" at 0x[0-9a-f]+|0x[0-9a-f]+", "", str(sorted(names.items())))
print(told, sys.argv, sys.path[0], vars(__main__) is globals())
"""
MINE = "mine = 'mine'\nprint('imported')\n"
OWN = """
import os, sys
sys.path.insert(1, os.path.join(os.path.dirname(__file__), ".."))  # the stand-in
import tensorflow, amp
print(amp.mine, amp.__file__)
"""
FILES = {
    "tell.py": TELL,
    "place/__main__.py": TELL,
    "package/__init__.py": "import sys; print(sys.argv)",
    "package/__main__.py": TELL,
    "package/part.py": TELL,
    "raises.py": "def f():\n    raise KeyError('mine')\ntry:\n    f()\n"
    "except KeyError as e:\n    raise ValueError('then') from e\n",
    "wrong.py": "x = (\n",
    "text.py": "import sys; sys.exit('a text')",
    "code.py": "raise SystemExit(7)",
    "leaves.py": "import os; print('out', flush=True); os._exit(9)",
    "interrupted.py": "raise KeyboardInterrupt",
    "killed.py": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "late.py": "import atexit, sys, threading, time\n"
    "atexit.register(sys.stderr.write, 'at exit\\n')\n"
    "wait = lambda: (time.sleep(0.2), sys.stderr.write('thread\\n'))\n"
    "threading.Thread(target=wait).start()\n",
    "hook.py": "import sys\n"
    "sys.excepthook = lambda k, v, t: print(k, v, t.tb_lineno, t.tb_next)\n1 / 0\n",
    "spawns.py": "import multiprocessing, pickle\n"
    "def f(x): return x * x, __name__\n"
    "class A: pass\n"
    "if __name__ == '__main__':\n"
    "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
    "        print(pool.map(f, [2]), pickle.loads(pickle.dumps(A())).__class__)\n",
    "forks.py": "import os, sys\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\n",
    "ours.py": "from amp.errors import GraphError\n"
    "raise GraphError('a', where='b', allowed='c', remedy='d')\n",
    "closes.py": "import sys; sys.stderr.close()",
    "started.py": "import os, sys\n"
    "print(os.environ.get('PYTHONPATH'), sys.path, sys.flags, sys.warnoptions)\n"
    "print(sys.stdout.write_through)\n",
    "site/sitecustomize.py": "print('a start of their own')",
    "wrong_site/sitecustomize.py": "import nowhere",
    # A project with an `amp` of its own: a module, and a package.
    "own/amp.py": MINE,
    "own/train.py": OWN,
    "owned/amp/__init__.py": MINE,
    "owned/__main__.py": OWN,
    "command/command.py": "import sys; from amp.cli import main; sys.exit(main())",
    "tensorflow.py": "",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("scripts")
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    with zipfile.ZipFile(place / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", TELL)
    (place / "link.py").symlink_to("place/__main__.py")
    return place


def run(
    *command: str, cwd: Path, given: str = "", python: str = sys.executable, path: str
) -> subprocess.CompletedProcess[str]:
    others = ("AMP_", "PYTHON")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    environment["AMP_CACHE_DIR"] = os.environ["AMP_CACHE_DIR"]
    environment["PYTHONPATH"] = path
    return subprocess.run(
        [python, *command],
        cwd=cwd,
        env=environment,
        text=True,
        input=given,
        capture_output=True,
    )


def as_python(
    place: Path,
    *command: str,
    given: str = "",
    options: tuple[str, ...] = (),
    path: str = str(ROOT),
) -> subprocess.CompletedProcess[str]:
    """Checks that `amp run` does what python does; one line on stderr comes last."""
    python = run(*options, *command, cwd=place, given=given, path=path)
    amp = (*options, "-m", "amp", "run")
    ours = run(*amp, *command, cwd=place, given=given, path=path)
    assert ours.returncode == python.returncode, ours.stderr
    assert ours.stdout == python.stdout
    assert ours.stderr.startswith(python.stderr)
    line = ours.stderr.removeprefix(python.stderr)
    assert line.count("\n") == line.startswith("amp: nothing was rewritten")
    return ours


@pytest.mark.parametrize(
    "command",
    [
        ("tell.py", "a", "-m", "--dtype", "x", "--"),
        ("./tell.py",),
        ("place/__main__.py",),
        ("place",),
        ("archive.zip", "a"),
        ("link.py",),
        ("-m", "package", "a"),
        ("-m", "package.part"),
        ("-c", TELL, "a"),
        ("raises.py",),
        ("wrong.py",),
        ("text.py",),
        ("code.py",),
        ("leaves.py",),
        ("interrupted.py",),
        ("killed.py",),
        ("late.py",),
        ("hook.py",),
        ("forks.py",),
        ("spawns.py",),
        ("ours.py",),
        ("closes.py",),
        ("started.py",),
        ("-m", "missing"),
        ("-m", "package.missing"),
        ("-m", "tell.missing"),
    ],
    ids=lambda command: command[-1].strip()[:12],
)
def test_a_script_runs_as_under_python(place: Path, command: tuple[str, ...]) -> None:
    as_python(place, *command)


@pytest.mark.parametrize(
    "options", [("-W", "error", "-O"), ("-u",), ("-B", "-X", "utf8")]
)
def test_the_options_of_python_are_the_jobs_too(place: Path, options: Any) -> None:
    as_python(place, "started.py", options=options)


@pytest.mark.parametrize("site", ["site", "wrong_site"])
def test_the_jobs_own_sitecustomize_is_imported(place: Path, site: str) -> None:
    """By the process while it is that of the command, and again by the job."""
    path = os.pathsep.join([str(place / site), str(ROOT)])
    python = run("code.py", cwd=place, path=path)
    ours = run("-m", "amp", "run", "code.py", cwd=place, path=path)
    assert ours.stdout == 2 * python.stdout
    assert ours.stderr.startswith(2 * python.stderr + "amp: nothing was rewritten")
    assert ("a start of their own" in ours.stdout) == (site == "site")
    assert ("No module named 'nowhere'" in ours.stderr) == (site == "wrong_site")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has no `.pth` file of ours; packages are found by PYTHONPATH."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=False, symlinks=True)
    return str(place / "bin" / "python")


@pytest.mark.parametrize(
    "command",
    [
        ("own", "train.py"),
        ("own", "-m", "train"),
        (".", "own/train.py"),
        (".", "owned"),
    ],
)
@pytest.mark.parametrize("installed", [True, False])
def test_the_users_own_amp_wins_and_one_line_says_so(
    place: Path, bare: str, command: tuple[str, ...], installed: bool
) -> None:
    ours = run(
        *(str(place / "command/command.py"), "run", *command[1:]),
        cwd=place / command[0],
        python=sys.executable if installed else bare,
        path=os.pathsep.join([str(ROOT), *PACKAGES]),
    )
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.startswith("imported\nmine ")
    assert ours.stderr.count("\n") == 2, ours.stderr
    off, last = ours.stderr.splitlines()
    assert off.startswith("amp: mixed precision is off: another module is called amp")
    assert last.startswith("amp: nothing was rewritten")


def test_a_checkout_that_the_job_would_not_find_is_found(
    place: Path, bare: str
) -> None:
    command = ("-m", "amp", "run", str(place / "ours.py"))
    ours = run(*command, cwd=ROOT, python=bare, path=os.pathsep.join(PACKAGES))
    assert "amp.errors.GraphError: a" in ours.stderr


def test_the_line_is_the_last_and_leaves_no_directory_behind(place: Path) -> None:
    kept = Path(os.environ["AMP_CACHE_DIR"], "reports")
    before = set(kept.glob("*"))
    ours = as_python(place, "late.py")
    assert ours.stderr.startswith("thread\nat exit\namp: ")
    assert set(kept.glob("*")) == before


def test_standard_input_is_a_script_too(place: Path) -> None:
    code = "import sys\nprint(__name__, sys.argv, repr(sys.path[0]))\n"
    as_python(place, "-", "a", given=code)


def test_options_may_end_before_the_script(place: Path) -> None:
    command = ("-m", "amp", "run", "--", "tell.py", "a")
    ours = run(*command, cwd=place, path=str(ROOT))
    assert "['tell.py', 'a']" in ours.stdout


# A process hands on what it ignores: a job in the background of a shell ignores SIGINT,
# and so would the tests' processes if the tests ran there.
WITH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{handler})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def ended(*command: str, number: int, handler: str) -> int:
    """Sends a signal to a job once it says "up"; gives its exit status."""
    process = subprocess.Popen(
        [sys.executable, "-c", WITH.format(handler=handler), *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    process.communicate()  # closes its input, which lets it end by itself
    return process.returncode


@pytest.mark.parametrize(
    ("number", "handler", "status"),
    [
        (signal.SIGINT, "SIG_DFL", -signal.SIGINT),
        (signal.SIGTERM, "SIG_DFL", -signal.SIGTERM),
        (signal.SIGINT, "SIG_IGN", 0),  # in the background of a shell
        (signal.SIGTERM, "SIG_IGN", -signal.SIGTERM),
    ],
)
def test_a_signal_from_outside_reaches_the_job(
    number: int, handler: str, status: int
) -> None:
    code = "import sys\nprint('up', flush=True)\nsys.stdin.read()\n"
    for command in (("-c", code), ("-m", "amp", "run", "-c", code)):
        assert ended(*command, number=number, handler=handler) == status, command


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (("missing.py",), "there is no such file"),
        (("python", "tell.py"), "there is no such file"),
        (("empty",), "there is no __main__.py"),
        (("--dtype", "float8", "tell.py"), "'float8' is not accepted"),
    ],
)
def test_what_is_not_there_is_said_in_four_parts(
    place: Path, command: tuple[str, ...], found: str
) -> None:
    (place / "empty").mkdir(exist_ok=True)
    done = run("-m", "amp", "run", *command, cwd=place, path=str(ROOT))
    assert done.returncode == 2
    assert f"Error: {found}" in done.stderr
    for part in ("where:", "allowed:", "do now:"):
        assert part in done.stderr
