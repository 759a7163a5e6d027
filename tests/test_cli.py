"""The command: what it prints, what it returns, and how it runs other people's jobs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from amp import cli
from amp.integration import activation
from amp.integration.measuring import hardware
from amp.policy import Policy

pytestmark = pytest.mark.kernels

ROOT = pathlib.Path(__file__).parents[1]
FORCED = ["--dtype", "bfloat16", "--emulate", "1", "--assignment", "all"]

JOB = """
import sys
import tensorflow as tf
import beside

assert __name__ == "__main__"
print("arguments", sys.argv)
weights = tf.Variable(tf.ones([8, 8]))
fn = tf.function(lambda x: tf.tanh(tf.matmul(x, weights)))
for _ in range(2):
    fn(tf.ones([4, 8]))
sys.exit(3)
"""


def amp(place: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
    environment["AMP_CACHE_DIR"] = os.environ["AMP_CACHE_DIR"]
    environment |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "amp.cli", *args]
    return subprocess.run(
        command, cwd=place, env=environment, text=True, capture_output=True
    )


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A GraphDef and a SavedModel of the same function."""
    place = tmp_path_factory.mktemp("graphs")
    module = tf.Module()
    module.weights = tf.Variable(tf.ones([8, 8]))
    spec = [tf.TensorSpec([4, 8])]

    @tf.function(input_signature=spec)
    def serve(x):
        return tf.tanh(tf.matmul(x, module.weights, name="product"))

    module.serve = serve
    tf.saved_model.save(module, str(place / "saved"))
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(tf.float32, [4, 8], name="x")
        tf.tanh(tf.matmul(x, tf.ones([8, 8]), name="product"), name="y")
    for name in ("graph.pb", "graph.pbtxt"):
        tf.io.write_graph(built, str(place), name, as_text=name.endswith("txt"))
    return place


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
    for name in cli._FIELDS:
        assert f"--{name.replace('_', '-')}" in done.stdout


def test_without_a_command_it_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2
    assert "usage: amp" in capsys.readouterr().err


def test_doctor_says_what_this_machine_can_do(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AMP_DTYPE", "float16")
    monkeypatch.setenv("AMP_DTPYE", "float16")
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = {line[:12].rstrip(): line[13:] for line in lines}
    assert told["tensorflow"] == tf.__version__
    assert told["device"] == hardware.device().describe()
    assert told["operations"] == "0 of past jobs measured"
    assert told["figures"] == hardware.device().source
    assert told["auto"] == hardware.resolve(Policy()).reason
    assert told["so"].startswith("float16 on")
    assert told["unknown"] == "AMP_DTPYE is no variable of amp"
    assert told["hooks"] == "all present"
    assert "tf_amp.pth" in told["AMP_ENABLE"]
    assert activation.active() is None


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own, forgotten afterwards."""
    monkeypatch.setenv("AMP_CACHE_DIR", str(tmp_path))
    hardware.device.cache_clear()
    yield tmp_path
    hardware.device.cache_clear()


def test_tune_stores_shows_and_is_planned_from(cache, capsys):
    command = ["tune", "--executor", "kernels"]
    assert cli.main([*command, "--show"]) == 0
    assert "amp tune measures it" in capsys.readouterr().out
    assert cli.main([*command, "--seconds", "0.5"]) == 0
    told = capsys.readouterr()
    (file,) = (cache / "profiles").iterdir()
    assert f"stored in {file}" in told.out
    assert "AddV2 8 8" in told.out
    assert "calibrated" in hardware.device().name
    assert cli.main([*command, "--show"]) == 0
    assert capsys.readouterr().out == told.out
    assert cli.main(["doctor"]) == 0
    doctor = capsys.readouterr().out
    assert "measured here by `amp tune`" in doctor
    assert "AMP_CACHE_DIR is no variable" not in doctor
    assert cli.main(["tune", "--executor", "xla", "--show"]) == 0
    assert "nothing of this device" in capsys.readouterr().out


def test_tune_needs_time(cache, capsys):
    assert cli.main(["tune", "--seconds", "0"]) == 2
    assert "no time to measure in" in capsys.readouterr().err
    assert not list(cache.iterdir())


def test_doctor_tells_of_a_missing_hook(capsys, monkeypatch):
    monkeypatch.setattr(activation, "_installed", False)
    monkeypatch.setattr(activation, "_SETTLED", {})
    monkeypatch.setattr(tf, "__version__", "2.9.1")
    assert cli.main(["doctor"]) == 1
    assert "TensorFlow 2.9.1 is too old" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt", "saved"])
def test_explain_reads_graphs_and_saved_models(graph, name, capsys):
    assert cli.main(["explain", str(graph / name), *FORCED]) == 0
    out = capsys.readouterr().out
    assert "rewritten, emulated" in out
    assert cli.main(["explain", str(graph / name), *FORCED, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["nodes_low"] >= 2
    command = ["explain", str(graph / name), *FORCED, "--node", "product"]
    assert cli.main(command) == 0
    assert "product (MatMul) is bfloat16: a product" in capsys.readouterr().out


def test_explain_takes_flags_before_variables(graph, capsys, monkeypatch):
    monkeypatch.setenv("AMP_DTYPE", "float16")
    monkeypatch.setenv("AMP_DENY", "Tanh")
    command = ["explain", str(graph / "graph.pb"), *FORCED, "--node", "y"]
    assert cli.main(command) == 0
    assert "y (Tanh) is float32: denied by the policy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["nowhere.pb"], "there is no such file"),
        (["graph.pb", "--dtype", "float8"], "'float8' is not accepted"),
        (["graph.pb", "--allow", "MatMull"], "there is no op 'MatMull'"),
        (["graph.pb", "--keep", "nothing*"], "'nothing*' matches no node"),
        (["graph.pb", "--node", "nothing"], "no decision was made about"),
        (["broken.pb"], "this is no GraphDef"),
        (["broken.pbtxt"], "this is no GraphDef"),
        (["empty"], "there is no such file"),
    ],
)
def test_bad_input_has_four_parts_and_code_two(graph, args, found, capsys, monkeypatch):
    monkeypatch.chdir(graph)
    (graph / "broken.pb").write_bytes(b"\xff\xff\xff")
    (graph / "broken.pbtxt").write_text("node { what }")
    (graph / "empty").mkdir(exist_ok=True)
    forced = [] if "--dtype" in args else FORCED
    assert cli.main(["explain", *args, *forced]) == 2
    err = capsys.readouterr().err
    assert found in err
    for part in ("where:", "allowed:", "do now:"):
        assert part in err


@pytest.fixture
def job(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/train.py").write_text(JOB)
    (tmp_path / "jobs/beside.py").touch()
    return tmp_path


@pytest.mark.slow
@pytest.mark.processes
def test_run_is_python_under_amp_enable(job):
    options = [*FORCED, "--report=reports"]
    done = amp(job, "run", *options, "jobs/train.py", "--a", "1", "--", "--report")
    assert done.returncode == 3, done.stderr
    assert done.stdout == (
        "arguments ['jobs/train.py', '--a', '1', '--', '--report']\n"
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("amp: 1 of 1 functions rewritten, ")
    place = job / "reports"
    assert " nodes in bfloat16 on " in last
    assert last.endswith(f", emulated, 0 steps skipped; reports: {place}")
    assert len(list((job / "reports").glob("*.json"))) == 1


@pytest.mark.processes
def test_run_a_module(job):
    (job / "tool.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = amp(job, "run", "-m", "tool", "-m", "x")
    assert done.returncode == 0
    assert done.stdout == "__main__ ['-m', 'x']\n"
    assert done.stderr == (
        "amp: nothing was rewritten: the job imported no TensorFlow, or see above\n"
    )


@pytest.mark.processes
def test_run_passes_a_failure_through(job):
    (job / "fails.py").write_text("raise KeyError('mine')\n")
    done = amp(job, "run", "fails.py")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr


@pytest.mark.processes
def test_run_nothing(job):
    done = amp(job, "run", "missing.py")
    assert done.returncode == 2
    assert "there is no such file" in done.stderr
    assert amp(job, "run").returncode == 2
