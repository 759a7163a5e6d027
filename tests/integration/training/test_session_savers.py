"""State that the plugin adds: never uninitialised, saved with all, in no one's way."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from amp.integration import active
from amp.integration.install import install
from amp.loss_scaling import DynamicLossScale, entries, state
from amp.loss_scaling.process import SCALING

v1 = tf.compat.v1
RULE = DynamicLossScale(initial=8.0, growth_interval=3)


@pytest.fixture(autouse=True)
def _installed():
    install()


@pytest.fixture
def scope(monkeypatch):
    def enter(rule):
        monkeypatch.setattr(active, "active_loss_scale", lambda: rule)

    enter(RULE)
    return enter


class Job:
    """A v1 job that knows nothing of scalers; it builds what `order` says, in order."""

    def __init__(self, order="init train saver", variables=1):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ws = [
                v1.get_variable(f"w{i}", initializer=[1.0]) for i in range(variables)
            ]
            self.factor = v1.placeholder_with_default(1.0, [])
            for part in order.split():
                getattr(self, f"build_{part}")()

    def build_init(self):
        self.init = v1.global_variables_initializer()

    def build_train(self):
        loss = tf.reduce_sum(tf.add_n([w**2 for w in self.ws])) * self.factor
        self.train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    def build_saver(self):
        self.saver = v1.train.Saver()

    def build_listed(self):
        self.saver = v1.train.Saver(v1.global_variables())

    def build_chosen(self):
        self.saver = v1.train.Saver({w.op.name: w for w in self.ws})

    def session(self):
        return v1.Session(graph=self.graph)

    def steps(self, session, *factors):
        for factor in factors:
            session.run(self.train, {self.factor: factor})

    @property
    def scaler(self):
        with self.graph.as_default():
            (found,) = state.current().states
        return found

    def state(self, session):
        kept = [v for v in self.scaler.variables if v is not self.scaler.tally]
        found = session.run(kept)
        return [np.asarray(value).tolist() for value in found]


@pytest.mark.parametrize(
    "order", ["init train saver", "train init saver", "init saver train"]
)
def test_a_job_meets_no_uninitialised_variable(scope, order):
    job = Job(order)
    with job.graph.as_default():
        assert [v.op.name for v in v1.global_variables()] == ["w0"]
        assert v1.local_variables() == []
        left = v1.report_uninitialized_variables()
        scale = state.current().scale
    with job.session() as session:
        session.run(job.init)
        assert session.run(left).tolist() == []
        assert session.run(scale) == 8.0
        job.steps(session, 1.0, np.inf)
        assert session.run(job.scaler.scale) == 4.0


def test_a_job_that_sets_its_variables_itself_trains(scope):
    job = Job("train")
    with job.session() as session:
        job.ws[0].load([1.0], session)
        job.steps(session, 1.0)
        np.testing.assert_allclose(session.run(job.ws[0]), 0.8, rtol=1e-6)


@pytest.mark.parametrize("saver", ["saver", "listed"])
def test_a_saver_of_all_keeps_the_state(scope, tmp_path, saver):
    first = Job(f"init train {saver}")
    with first.session() as session:
        session.run(first.init)
        first.steps(session, 1.0, 1.0, np.inf, 1.0)
        path = first.saver.save(session, str(tmp_path / "model"))
        wanted = first.state(session)
    second = Job(f"init train {saver}")
    with second.session() as session:
        second.saver.restore(session, path)
        assert second.state(session) == wanted
        assert session.run(second.scaler.scale) == 4.0


def test_saving_before_the_first_step_saves_the_first_values(scope, tmp_path):
    job = Job("init train saver")
    with job.session() as session:
        session.run(job.init)
        path = job.saver.save(session, str(tmp_path / "model"))
    reader = tf.train.load_checkpoint(path)
    assert reader.get_tensor("amp_loss_scale_0/scale") == RULE.initial


@pytest.mark.parametrize("order", ["init train chosen", "init saver train"])
def test_a_saver_of_a_choice_saves_that(scope, tmp_path, order):
    job = Job(order)
    with job.session() as session:
        session.run(job.init)
        job.steps(session, 1.0)
        path = job.saver.save(session, str(tmp_path / "model"))
    assert [name for name, _ in tf.train.list_variables(path)] == ["w0"]


@pytest.mark.parametrize("saver", ["saver", "listed"])
def test_checkpoints_with_and_without_the_state_restore(scope, tmp_path, saver):
    paths = {}
    for rule in (None, RULE):
        scope(rule)
        job = Job(f"init train {saver}")
        with job.session() as session:
            session.run(job.init)
            job.steps(session, 1.0)
            paths[rule] = job.saver.save(session, str(tmp_path / f"{rule}"))
    scope(None)
    job = Job(f"init train {saver}")
    with job.session() as session:
        job.saver.restore(session, paths[RULE])
        np.testing.assert_allclose(session.run(job.ws[0]), 0.8, rtol=1e-6)
    scope(RULE)
    job = Job(f"init train {saver}")
    with job.session() as session:
        session.run(job.init)
        job.steps(session, np.inf)
        job.saver.restore(session, paths[None])
        np.testing.assert_allclose(session.run(job.ws[0]), 0.8, rtol=1e-6)
        assert session.run(job.scaler.scale) == RULE.initial


@pytest.fixture
def without(tmp_path):
    """A checkpoint of a job without the plugin, whose weights had another shape."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name in ("w0", "w1"):
            v1.get_variable(name, initializer=[[5.0]])
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, str(tmp_path / "without"))


def test_a_saver_that_reshapes_does_so_without_the_state_too(scope, without):
    job = Job("init train", variables=2)
    with job.graph.as_default():
        saver = v1.train.Saver(reshape=True)
    with job.session() as session:
        session.run(job.init)
        saver.restore(session, without)
        assert session.run(job.ws) == [[5.0], [5.0]]
        assert session.run(job.scaler.scale) == RULE.initial


def test_restoring_again_adds_no_node(scope, tmp_path):
    scope(None)
    job = Job("init saver")
    with job.session() as session:
        session.run(job.init)
        path = job.saver.save(session, str(tmp_path / "without"))
    scope(RULE)
    job = Job("init train saver")
    with job.session() as session:
        session.run(job.init)
        sizes = []
        for _ in range(3):
            job.steps(session, np.inf)
            job.saver.restore(session, path)
            sizes.append(len(job.graph.get_operations()))
            assert session.run(job.scaler.scale) == RULE.initial
    assert sizes == sizes[:1] * 3


def test_what_trained_more_variables_restores(scope, tmp_path):
    larger = Job("init train saver", variables=2)
    with larger.session() as session:
        session.run(larger.init)
        larger.steps(session, 1.0, np.inf)
        path = larger.saver.save(session, str(tmp_path / "model"))
    job = Job("init train saver")
    with job.session() as session:
        job.saver.restore(session, path)
        assert session.run(job.scaler.scale) == 4.0
        assert not session.run(job.scaler.left_out).any()


def test_an_entry_of_another_shape_is_left_out_and_said_once(
    scope, tmp_path, monkeypatch
):
    said = []
    monkeypatch.setattr(entries, "skipped", lambda *told: said.append(told))
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("w0", initializer=[5.0])
        v1.get_variable("amp_loss_scale_0/scale", initializer=[1.0, 2.0])
        v1.get_variable("amp_loss_scale_0/good_steps", initializer=[1, 2])
        v1.get_variable("amp_loss_scale_0/skipped_steps", initializer=4)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
    job = Job("init train saver")
    with job.session() as session:
        session.run(job.init)
        job.steps(session, np.inf)
        job.saver.restore(session, path)
        assert session.run(job.ws[0]) == 5.0
        assert session.run(job.scaler.scale) == RULE.initial
        job.steps(session, 1.0)
    assert [entry.rpartition("/")[2] for entry, _ in said] == [
        "scale",
        "good_steps",
        "skipped_steps",
    ]
    assert said[0][1] == "float32, shape (2,)"


@pytest.mark.parametrize(
    ("stored", "restored"), [(2.0**60, RULE.maximum), (2.0**-60, RULE.minimum)]
)
def test_a_restored_scale_fits_the_rule(scope, tmp_path, stored, restored):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("w0", initializer=[5.0])
        v1.get_variable("amp_loss_scale_0/scale", initializer=stored)
        v1.get_variable("amp_loss_scale_0/good_steps", initializer=1)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "model"))
    job = Job("init train saver")
    with job.session() as session:
        job.saver.restore(session, path)
        found = session.run([job.scaler.scale, job.scaler.good_steps])
        assert found == [restored, 1]


def taken(variables):
    with tf.GradientTape() as tape:
        loss = tf.add_n([v**2 for v in variables])
    return tape.gradient(loss, variables)


@pytest.mark.parametrize("made", ["before", "after"])
def test_what_trains_other_variables_restores(scope, tmp_path, made):
    def fresh():
        SCALING.reset()
        return tf.train.Checkpoint(v=tf.Variable(1.0), loss_scale=state.current())

    saved = fresh()
    pair = [tf.Variable(1.0), tf.Variable(2.0)]
    taken(pair)
    saved.v.assign(5.0)
    saved.loss_scale.states[0].scale.assign(4.0)
    path = saved.save(str(tmp_path / "model"))
    restored, alone = fresh(), [tf.Variable(1.0)]
    if made == "before":
        taken(alone)
    status = restored.restore(path)
    if made == "after":
        taken(alone)
    status.assert_consumed()
    assert restored.v.numpy() == 5.0
    assert restored.loss_scale.states[0].scale.numpy() == 4.0


def test_an_exported_graph_trains_on_where_it_was(scope, tmp_path):
    job = Job("init train saver")
    with job.session() as session:
        session.run(job.init)
        job.steps(session, np.inf)
        path = job.saver.save(session, str(tmp_path / "model"))
    names = job.train.name, job.factor.name
    with tf.Graph().as_default(), v1.Session() as session:
        saver = v1.train.import_meta_graph(f"{path}.meta")
        saver.restore(session, path)
        session.run(names[0], {names[1]: np.inf})
        assert session.run("amp_loss_scale_0/scale/Read/ReadVariableOp:0") == 2.0


def test_a_supervised_job_starts_and_resumes(scope, tmp_path):
    for scale in (4.0, 2.0):
        job = Job("train")
        with job.graph.as_default():
            supervisor = v1.train.Supervisor(
                logdir=str(tmp_path), save_summaries_secs=0, save_model_secs=0
            )
            with supervisor.managed_session() as session:
                job.steps(session, np.inf)
                assert session.run(job.scaler.scale) == scale
                supervisor.saver.save(session, supervisor.save_path)


@pytest.mark.parametrize("flow", ["v1", "v2"])
def test_state_has_a_value_inside_functions_loops_and_branches(scope, flow):
    if flow == "v1":
        v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=1.0, use_resource=True)
            init = w.initializer
            take = tf.function(lambda: v1.gradients(w * w, [w])[0])
            found = [
                take(),
                tf.cond(w > 0, take, lambda: 0.0),
                tf.cond(w > 0, lambda: v1.gradients(w * w, [w])[0], lambda: 0.0),
                tf.while_loop(
                    lambda i, _: i < 2,
                    lambda i, _: (i + 1, v1.gradients(w * w, [w])[0]),
                    (0, 0.0),
                )[1],
            ]
            session.run(init)
            assert session.run(found) == [2.0] * 4
    finally:
        v1.enable_control_flow_v2()
