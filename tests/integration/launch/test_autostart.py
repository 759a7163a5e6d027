"""`AMP_ENABLE` in the environment of jobs that never import the package.

Every job runs in a process of its own, started through the `.pth` file. Where only the
mechanics matter, a stand-in for TensorFlow saves the seconds that importing it takes.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import thorough

from amp.variables import known

pytestmark = pytest.mark.processes

ROOT = pathlib.Path(__file__).parents[3]
MODULES = "import sys; print(sorted(sys.modules))"

# A virtual environment that sees the packages of another one runs the file twice.
SITE = """
import site
for _ in range({times}):
    site.addsitedir({packages!r})
"""
# Stands for amp.integration.api, which needs TensorFlow.
ACTIVATION = """
import sys, types
stub = types.ModuleType("amp.integration.api")
stub.enable_at_first_use = lambda policy: print("enabled", policy)
stub.disable = lambda: None
sys.modules["amp.integration.api"] = stub
"""

TRAIN = """
import sys
import keras
import numpy as np

assert "amp" in sys.modules  # by the .pth file; nothing below knows of it
keras.utils.set_random_seed(0)
x = np.random.rand(256, 16).astype("float32")
y = x[:, :3] * 2.0 - 1.0
model = keras.Sequential([keras.layers.Dense(32, "relu"), keras.layers.Dense(3)])
model.compile(keras.optimizers.SGD(0.1), "mse")
loss = model.fit(x, y, epochs=4, verbose=0).history["loss"]
assert loss[-1] < loss[0]
model.save("model.keras")
model.save_weights("model.weights.h5")
model.export("exported", verbose=False)
np.savez("values.npz", x=x, y=model.predict(x, verbose=0))
"""
LOAD = """
import sys
import keras
import numpy as np
import tensorflow as tf

values = np.load("values.npz")
model = keras.models.load_model("model.keras")
want = model.predict(values["x"], verbose=0)
model.load_weights("model.weights.h5")
np.testing.assert_array_equal(model.predict(values["x"], verbose=0), want)
exported = tf.saved_model.load("exported")
got = exported.serve(values["x"])
np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # float32, 16 terms
# float16 keeps 11 significant bits; two layers of values below 4.
np.testing.assert_allclose(values["y"], want, atol=4 * 2**-11 * 4)
assert not any(name.partition(".")[0] == "amp" for name in sys.modules)
"""
REAL = """
import os
import tensorflow as tf
from amp.integration import active

assert active.active() is None  # AMP_DTYPE=float8 was refused, the job goes on
assert float(tf.function(lambda x: x + 1.0)(tf.constant(1.0))) == 2.0
os.environ["AMP_DTYPE"] = "bfloat16"
from amp.integration.launch import autostart
autostart.install()  # TensorFlow is there already
assert active.active().settled.policy.dtype == "bfloat16"
product = tf.function(lambda x: tf.matmul(x, x))
product(tf.ones([8, 8]))
"""
# A step that runs in 16 bits, with a Python function in it.
STEP = """
import tensorflow as tf

w = tf.Variable(tf.eye(8))

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        hidden = tf.py_function(lambda y: tf.nn.relu(y), [x @ w], tf.float32)
        loss = tf.reduce_mean(tf.ensure_shape(hidden, [8, 8]) @ w)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return loss

for _ in range(4):
    step(tf.ones([8, 8]))
print("trained")
"""
# Many products, whose plans could be by what was measured of them.
REPEATS = """
import hashlib
import tensorflow as tf

w = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]) / 16)
x = tf.random.stateless_normal([256, 256], [3, 4])

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.tanh(tf.tanh(x @ w) @ w) @ w))
    w.assign_sub(tape.gradient(loss, w))

for _ in range(40):
    step()
print(hashlib.sha256(w.numpy().tobytes()).hexdigest())
"""
# What a job does between importing Keras and its first step.
CHOOSES = """
import keras
import tensorflow as tf
from amp.graph_rewrite.cost.shipped_devices import CPU_AVX512_BF16
from amp.integration import active
from amp.integration.measuring import hardware

hardware.device = lambda: CPU_AVX512_BF16  # as after `tf.config.set_visible_devices`
tf.function(lambda x: x @ x)(tf.ones([8, 8]))
assert active.active().settled.device is CPU_AVX512_BF16
"""
# By variable, a value that cannot be followed, and what is said of it.
UNUSABLE = {
    "AMP_ALLOW": ("EagerPyFunc", "EagerPyFunc cannot be 16-bit: it runs Python"),
    "AMP_ASSIGNMENT": ("both", "'both' is not accepted"),
    "AMP_CACHE_DIR": ("file", ""),  # as if nothing was ever stored
    "AMP_CHECK": ("abc", "'abc' is not accepted"),
    "AMP_DENY": ("Mattmul", "there is no op 'Mattmul'"),
    "AMP_DTYPE": ("fp61", "'fp61' is not accepted"),
    "AMP_EMULATE": ("perhaps", "'perhaps' is not accepted"),
    "AMP_ENABLE": ("maybe", "AMP_ENABLE='maybe' is not understood (1 or 0)"),
    "AMP_KEEP": ("[", "keep pattern [ matched no node"),
    "AMP_LOSS_SCALE": ("abc", "loss scale 'abc' is not understood"),
    "AMP_MIN_GAIN": ("2", "'2' is not accepted"),
    "AMP_REPORT": ("file", "a report was not written"),
    "AMP_STRICT": ("abc", "'abc' is not accepted"),
    "AMP_TRIAL": ("abc", "'abc' is not accepted"),
    "AMP_TUNE_BUDGET": ("abc", "'abc' is not accepted"),
    "AMP_WIRE": ("abc", "'abc' is not accepted"),
}
# Those that are read when a step is; the others are refused before TensorFlow is there.
LATER = ("AMP_ALLOW", "AMP_CACHE_DIR", "AMP_DENY", "AMP_KEEP", "AMP_REPORT")

# What a job may have done to its standard error before it imports TensorFlow.
UNUSABLE_STDERR = (
    "sys.stderr = sys.__stderr__ = None",
    "sys.stderr.close()",
    "r, w = os.pipe(); os.close(r); os.dup2(w, 2)",
)


class Start:
    """Starts Python as in an environment that the package is installed in."""

    def __init__(self, place: pathlib.Path) -> None:
        self.place = place
        self.packages = place / "packages"
        self.packages.mkdir()
        (self.packages / "tf_amp.pth").write_text((ROOT / "tf_amp.pth").read_text())
        (place / "site").mkdir()
        self.times(1)

    def times(self, times: int) -> None:
        text = SITE.format(times=times, packages=str(self.packages))
        (self.place / "site/sitecustomize.py").write_text(text)

    def stand_in(self) -> None:
        """Lets `tensorflow` and a `keras` that imports it be empty modules."""
        (self.packages / "tensorflow.py").write_text("print('tensorflow')\n")
        (self.packages / "keras.py").write_text("import tensorflow\nprint('keras')\n")

    def run(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AMP_")}
        environment["AMP_CACHE_DIR"] = os.environ["AMP_CACHE_DIR"]
        path = (self.place / "site", self.packages, ROOT)
        environment |= {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.place,
            env=environment,
            text=True,
            capture_output=True,
        )


# What imports TensorFlow: our module, while it is loaded itself, or the job after it.
# One of each room, and of each way: all are found by the same loader.
FIRST = (
    *("import amp; amp.enable", "import amp; amp.loss_scaling.scalers"),
    *("from amp.policy import Policy", "from amp.graph_rewrite import rewrite"),
    "import amp.integration.hooks",
)
ENABLED = """
import sys
import tensorflow as tf
from amp.integration import active

tf.function(lambda x: x + 1.0)(tf.constant(1.0))
print(active.active().settled.policy.dtype)
assert not any("_amp_" in type(f).__module__ for f in sys.meta_path)
assert "_amp_" not in type(sys.modules["amp.policy"].__loader__).__module__
"""
RUN_MODULE = """
import runpy, sys
sys.argv = ["amp", "--help"]
runpy.run_module("amp", run_name="__main__", alter_sys=True)
"""
SPAWNS = """
import multiprocessing
import tensorflow
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print, args=("child",))
    child.start()
    child.join()
"""


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Start:
    return Start(tmp_path)


@pytest.fixture
def stand_in(start: Start) -> Start:
    start.stand_in()
    return start


def test_unset_imports_nothing(start):
    idle = start.run(MODULES)
    (start.packages / "tf_amp.pth").unlink()
    without = start.run(MODULES)
    assert idle.stdout == without.stdout
    assert idle.stderr == without.stderr == ""


@pytest.mark.parametrize("first", thorough.but(FIRST[:1], FIRST))
def test_a_job_may_import_any_module_of_ours_first(start, first):
    done = start.run(f"{first}\n{ENABLED}", AMP_ENABLE="1", AMP_DTYPE="bfloat16")
    assert done.returncode == 0, done.stderr
    assert "mixed precision is off" not in done.stderr
    assert done.stdout == "bfloat16\n"


def test_a_module_of_ours_may_be_run(start):
    done = start.run(RUN_MODULE, AMP_ENABLE="1")
    assert done.returncode == 0, done.stderr
    assert "usage: amp" in done.stdout


def test_names_of_ours_import_no_tensorflow_where_nothing_waits_for_it(stand_in):
    done = stand_in.run("import amp\namp.Policy", AMP_ENABLE="0")
    assert done.stdout == ""
    assert done.stderr == ""


@pytest.mark.parametrize("value", ["0", "off", "no", "false", "False", " "])
def test_off_values(stand_in, value):
    done = stand_in.run(f"{ACTIVATION}import keras", AMP_ENABLE=value)
    assert done.returncode == 0
    assert done.stdout == "tensorflow\nkeras\n"
    assert done.stderr == ""


@pytest.mark.parametrize("value", ["1", "on", "yes", "TRUE"])
@pytest.mark.parametrize("job", ["tensorflow", "keras"])
def test_enables_once_tensorflow_is_loaded(stand_in, value, job):
    done = stand_in.run(f"{ACTIVATION}import {job}", AMP_ENABLE=value, AMP_STRICT="1")
    assert done.stdout.splitlines()[:2] == ["tensorflow", "enabled Policy(strict=True)"]
    assert done.stderr == ""


def test_starting_imports_no_tensorflow(stand_in):
    done = stand_in.run(MODULES, AMP_ENABLE="1")
    assert "'_tf_amp_start'" in done.stdout
    assert "tensorflow" not in done.stdout
    assert "'amp" not in done.stdout  # the job may have a module of that name


def test_asking_whether_tensorflow_is_there_does_not_use_the_hook_up(stand_in):
    probe = "import importlib.util as u, sys\nassert u.find_spec('tensorflow')\n" * 2
    code = (
        f"{ACTIVATION}{probe}import tensorflow\n"
        "assert '_amp_' not in type(tensorflow.__loader__).__module__\n"
        "assert tensorflow.__spec__.loader is tensorflow.__loader__\n"
        "assert not any('_amp_' in type(f).__module__ for f in sys.meta_path)"
    )
    done = stand_in.run(code, AMP_ENABLE="1")
    assert done.stdout == "tensorflow\nenabled Policy()\n"
    assert done.stderr == ""


def test_installed_twice_enables_once(stand_in):
    stand_in.times(2)
    done = stand_in.run(f"{ACTIVATION}import tensorflow, keras", AMP_ENABLE="1")
    assert done.stdout.count("enabled") == 1


def test_no_tensorflow_is_the_job_s_own_affair(stand_in):
    missing = "sys.path = [p for p in sys.path if not p.endswith('-packages')]\n"
    (stand_in.packages / "tensorflow.py").unlink()
    code = (
        f"import sys\n{missing}"
        "try:\n    import tensorflow\nexcept ModuleNotFoundError as e:\n    print(e)"
    )
    done = stand_in.run(code, AMP_ENABLE="1")
    assert done.stdout == "No module named 'tensorflow'\n"


def test_a_malformed_switch_says_so_and_the_job_runs(stand_in):
    done = stand_in.run(f"{ACTIVATION}import keras", AMP_ENABLE="maybe")
    assert done.stdout == "tensorflow\nkeras\n"
    assert done.stderr == (
        "amp: AMP_ENABLE='maybe' is not understood (1 or 0); mixed precision is off\n"
    )


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("AMP_DTYPE", "float8", "'auto', 'float16', 'bfloat16'"),
        ("AMP_EMULATE", "perhaps", "1, true, on, yes or 0, false, off, no"),
        ("AMP_LOSS_SCALE", "-1", "a finite number over 0"),
        ("AMP_LOSS_SCALE", "nan", "a finite number over 0"),
        ("AMP_ASSIGNMENT", "some", "'cost', 'all'"),
        ("AMP_MIN_GAIN", "2", "from 0 up to, not including, 1"),
    ],
)
def test_a_malformed_variable_names_itself_and_the_job_runs(
    stand_in, variable, value, allowed
):
    done = stand_in.run(
        f"{ACTIVATION}import keras", AMP_ENABLE="1", **{variable: value}
    )
    assert done.returncode == 0
    assert done.stdout == "tensorflow\nkeras\n"
    assert "amp: mixed precision is off: PolicyError: " in done.stderr
    assert value in done.stderr
    where = f"  where:   {variable}\n"
    for part in (where, "  allowed: ", "  do now:  ", allowed):
        assert part in done.stderr
    assert "amp/integration" not in done.stderr, "a line of the program is shown"


def test_a_misspelt_variable_is_told_of_once_and_the_job_runs(stand_in):
    code = f"{ACTIVATION}{ACTIVATION}import tensorflow, keras"
    done = stand_in.run(code, AMP_ENABLE="1", AMP_DTPYE="float16")
    assert done.returncode == 0, done.stderr
    said = "amp: AMP_DTPYE (did you mean AMP_DTYPE?) is no variable of this package"
    assert done.stderr.count(said) == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_a_misspelt_variable_is_told_of_once_by_a_command_too(start):
    """`compare` reads the policy after TensorFlow is imported, `explain` before."""
    (start.place / "graph.pb").touch()
    for command in ("explain", "compare"):
        code = f"from amp import cli; assert cli.main(['{command}', 'graph.pb']) == 2"
        done = start.run(code, AMP_ENABLE="1", AMP_DTPYE="float16")
        assert done.returncode == 0, done.stderr
        assert "there is no node in it" in done.stderr
        assert done.stderr.count("AMP_DTPYE (did you mean AMP_DTYPE?)") == 1


@pytest.mark.parametrize("unusable", UNUSABLE_STDERR)
def test_a_job_that_nobody_listens_to_runs(stand_in, unusable):
    code = f"import os, sys\n{unusable}\n{ACTIVATION}import keras"
    done = stand_in.run(code, AMP_ENABLE="1", AMP_DTPYE="float16")
    assert done.stdout == "tensorflow\nenabled Policy()\nkeras\n"


def test_no_error_of_ours_leaves_the_import_of_a_job(stand_in):
    planted = "import sys\nsys.modules['amp.integration.launch.job_lines'] = None\n"
    done = stand_in.run(f"{planted}import keras", AMP_ENABLE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tensorflow\nkeras\n"
    assert "amp: mixed precision is off: ModuleNotFoundError: " in done.stderr
    strict = stand_in.run(f"{planted}import keras", AMP_ENABLE="1", AMP_STRICT="1")
    assert strict.returncode == 1


def test_children_of_a_job_do_not_repeat_it(stand_in):
    (stand_in.place / "job.py").write_text(SPAWNS)
    code = "import runpy; runpy.run_path('job.py', run_name='__main__')"
    done = stand_in.run(code, AMP_ENABLE="1", AMP_DTPYE="float16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tensorflow") == 2
    assert done.stderr.count("did you mean AMP_DTYPE?") == 1


@pytest.mark.parametrize("variable", sorted({*known()}.difference(LATER)))
def test_no_value_of_a_variable_ends_the_start_of_a_job(stand_in, variable):
    value, said = UNUSABLE[variable]
    given = {"AMP_ENABLE": "1", variable: value}
    done = stand_in.run(f"{ACTIVATION}import keras", **given)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tensorflow\nkeras\n"
    assert done.stderr.count(said) == 1
    assert "mixed precision is off" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "variable", thorough.but(("AMP_DTYPE",), [*LATER, "AMP_DTYPE"])
)
def test_no_value_of_a_variable_ends_a_job(start, variable):
    value, said = UNUSABLE[variable]
    (start.place / "file").write_text("a file, no directory")
    given = {"AMP_ENABLE": "1", "AMP_DTYPE": "bfloat16", "AMP_ASSIGNMENT": "all"}
    done = start.run(STEP, **{**given, variable: value})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert "Please report this" not in done.stderr
    if said:
        assert done.stderr.count(said) == 1
        assert "do now:  " in done.stderr


def test_strict_raises(stand_in):
    done = stand_in.run(
        f"{ACTIVATION}import keras", AMP_ENABLE="1", AMP_DTYPE="float8", AMP_STRICT="1"
    )
    assert done.returncode == 1
    assert "PolicyError: 'float8' is not accepted" in done.stderr
    assert "where:   AMP_DTYPE" in done.stderr


def test_any_failure_of_ours_leaves_the_job_running(stand_in):
    broken = ACTIVATION.replace('print("enabled", policy)', "1 / 0")
    done = stand_in.run(f"{broken}import keras", AMP_ENABLE="1")
    assert done.returncode == 0
    assert "amp: mixed precision is off: ZeroDivisionError" in done.stderr


@pytest.mark.slow
def test_with_tensorflow_itself(start):
    variables = {"AMP_DTYPE": "float8", "AMP_EMULATE": "1", "AMP_KEEP": "dense*"}
    done = start.run(REAL, AMP_ENABLE="1", **variables)
    assert done.returncode == 0, done.stderr
    assert "amp: mixed precision is off: PolicyError: 'float8'" in done.stderr
    assert "keep pattern dense* matched no node" in done.stderr


@pytest.mark.slow
def test_a_job_that_shows_what_is_logged_is_told_once_what_is_on(start):
    shows = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    variables = {"AMP_DTYPE": "bfloat16", "AMP_EMULATE": "1"}
    done = start.run(shows + REPEATS, AMP_ENABLE="1", **variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("loss scale none") == 1, done.stderr


@pytest.mark.slow
def test_what_a_job_chooses_after_importing_keras_counts(start):
    done = start.run(CHOOSES, AMP_ENABLE="1", AMP_DTYPE="bfloat16")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_keras_job_trains_and_what_it_saves_needs_no_plugin(start):
    variables = {
        "AMP_ENABLE": "1",
        "AMP_EMULATE": "1",
        "AMP_DTYPE": "float16",
        "AMP_ASSIGNMENT": "all",
        "AMP_REPORT": "reports",
        "PYTHONWARNINGS": "error,ignore::DeprecationWarning",  # that of Keras
    }
    done = start.run(TRAIN, **variables)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "amp: " in line]
    assert len(said) == 2, said
    assert said[0].startswith("amp: mixed precision is on: float16 emulated on ")
    assert " functions rewritten, " in said[1]
    texts = [p.read_text() for p in (start.place / "reports").glob("*.json")]
    reports = [json.loads(text) for text in texts]
    assert reports
    assert {report["dtype"] for report in reports} == {"float16"}
    step = max(reports, key=lambda report: report["nodes_total"])
    assert step["nodes_low"] > 5
    assert step["loss_scale"].startswith("dynamic")
    saved = (start.place / "exported/saved_model.pb").read_bytes()
    assert b"amp_float16" not in saved
    loaded = start.run(LOAD)
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.slow
def test_without_a_trial_the_next_process_gives_the_same_bits(start):
    """Also with the cache that the first one left."""
    given = {"AMP_ENABLE": "1", "AMP_TRIAL": "0", "AMP_DTYPE": "bfloat16"}
    given["AMP_CACHE_DIR"] = str(start.place / "cache")
    one, other = (start.run(REPEATS, **given) for _ in range(2))
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout != ""


@pytest.mark.parametrize("variable", ["AMP_CACHE_DIR", "AMP_REPORT"])
def test_files_go_where_the_job_started_wherever_it_goes_then(start, variable):
    job = f"""
import os
os.mkdir("elsewhere")
os.chdir("elsewhere")
print(os.environ["{variable}"])
"""
    done = start.run(job, **{"AMP_ENABLE": "1", variable: "./kept"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(start.place / "kept")
