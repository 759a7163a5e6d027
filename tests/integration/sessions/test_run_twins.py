"""Runs of a session are made in several forms by turns, then in the fastest."""

from __future__ import annotations

import collections
import functools
import threading
from typing import Any

import jumping_clock
import numpy as np
import pytest
import tensorflow as tf
from jumping_clock import Clock
from session_graphs import v1
from tensorflow.python.client import session as session_lib

import amp
from amp.graph_rewrite.assign.nominee import CUT, EVERYTHING, PRODUCTS, UNCLUSTERED
from amp.graph_rewrite.rewrite import Prepared
from amp.integration.contests import contest, entrants
from amp.integration.racing import race_rules, winner_checks
from amp.integration.racing.race_log import FLOAT32
from amp.integration.sessions.run_plans import RunPlans
from amp.integration.sessions.session_twins import SessionTwin

pytestmark = pytest.mark.kernels
clock = jumping_clock.clock

# Every bfloat16 rounding is off by 2**-8 at most; under 2**3 of them in a row here.
BFLOAT16 = 2.0**-8 * 2**3
SIZE = 256  # of the products, which are predicted to be faster in 16 bits
SLOW = 0.05  # seconds that the first slow plan takes longer; a step takes milliseconds
ENOUGH = 8 * (2 + race_rules.looks(5)[-1])  # steps, by which every race has ended
STEPS = {"step", "late_step"}  # the operations whose runs are looked at
PLANS = (CUT.name, EVERYTHING.name, PRODUCTS.name)


@pytest.fixture(autouse=True)
def all_are_close(only_amx: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan that differs is tried, whatever it is predicted to take."""
    monkeypatch.setattr(entrants, "CLOSE_IF_MODELLED", 100.0)


class Ran(list[str]):
    """The plan of each run; some may be slow, or raise."""

    slow: tuple[str, ...] = ()
    raises: dict[str, Exception]
    starts: bool = False  # whether what raises could start


@pytest.fixture
def ran(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The runs of `STEPS`."""
    seen, original = Ran(), SessionTwin.call
    seen.raises = {}

    def call(self: SessionTwin, twins: Any, request: Any, run: Any, starts: Any) -> Any:
        def counted(found: Any) -> Any:
            if STEPS.isdisjoint(request.asked().names):
                return run(found)
            seen.append(found.plan)
            if found.plan in seen.raises:
                raise seen.raises[found.plan]
            if found.plan in seen.slow:
                # No two alike, so that it is soon known which of them is the slower.
                clock.jump(SLOW * 3 ** seen.slow.index(found.plan))
            return run(found)

        def can_start(found: Any) -> bool:
            return seen.starts or found.plan not in seen.raises

        return original(self, twins, request, counted, can_start)

    monkeypatch.setattr(SessionTwin, "call", call)
    return seen


class Job:
    """A small model with a step of training; `model` in a graph of its own.

    Args:
      scope: the fields of the policy, None for none.
    """

    def __init__(self, shape: Any = (None, SIZE), **policy: Any) -> None:
        rows = np.random.RandomState(0).randn(SIZE, SIZE).astype("f")
        self.graph, self.policy = tf.Graph(), {"dtype": "bfloat16", **policy}
        self.data = rows if len(shape) == 2 else rows[None]
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, shape, name="x")
            start = v1.constant_initializer(rows / SIZE**0.5)
            self.w = v1.get_variable("w", [SIZE, SIZE], initializer=start)
            self.v = v1.get_variable("v", [SIZE, SIZE], initializer=start)
            self.count = v1.train.get_or_create_global_step()
            hidden = tf.tanh(tf.tensordot(self.x, self.w, 1))
            self.out = tf.tensordot(hidden, self.v, 1, name="out")
            self.loss = tf.reduce_mean(tf.square(self.out - 1.0), name="loss")
            descent = v1.train.GradientDescentOptimizer(0.1)
            self.train = descent.minimize(self.loss, self.count, name="step")
            self.init = v1.global_variables_initializer()

    def scope(self) -> Any:
        return amp.mixed_precision_scope(**self.policy)

    def session(self) -> Any:
        session = v1.Session(graph=self.graph)
        session.run(self.init)
        return session

    def steps(self, session: Any, count: int) -> list[float]:
        asked = [self.loss, self.train]
        return [session.run(asked, {self.x: self.data})[0] for _ in range(count)]


def trained(count: int, **policy: Any) -> tuple[list[float], int]:
    """The losses of some steps of a new job, and its counter after them."""
    job = Job(**policy)
    with job.scope(), job.session() as session:
        return job.steps(session, count), int(session.run(job.count))


def others(plan: str) -> tuple[str, ...]:
    return tuple(sorted({*PLANS, UNCLUSTERED.name, FLOAT32} - {plan}))


def runs() -> list[amp.Report]:
    return [r for r in amp.reports() if r.function.startswith("a session's run")]


@pytest.mark.parametrize("fastest", [*PLANS, FLOAT32])
def test_the_fastest_runs_in_the_end_and_every_run_is_one_step(
    ran: Ran, fastest: str
) -> None:
    ran.slow = others(fastest)
    job, losses = Job(), list[float]()
    with job.scope(), job.session() as session:
        while set(ran[-20:]) != {fastest}:  # a busy machine races longer
            assert len(losses) <= ENOUGH, ran
            losses += job.steps(session, 20)
        assert int(session.run(job.count)) == len(losses)
    with job.session() as session:  # without a policy
        want = job.steps(session, len(losses))
    np.testing.assert_allclose(losses, want, rtol=BFLOAT16)
    assert ran[:4] == [CUT.name, CUT.name, FLOAT32, FLOAT32]
    (report,) = runs()
    assert report.function == "a session's run (step, loss)"
    assert "are faster" in report.trial or "is faster" in report.trial
    assert {plan.name: plan.fate for plan in report.plans}[fastest] == "won"
    assert report.measured32 is not None
    assert report.measured16 is not None
    assert (report.measured16 < report.measured32) == (fastest != FLOAT32)
    assert (report.nodes_low > 0) == (fastest != FLOAT32)


def test_while_it_lasts_the_report_says_so(ran: Ran) -> None:
    trained(2)
    (report,) = runs()
    assert report.trial == contest.UNDER_WAY
    assert report.measured32 is report.measured16 is None
    assert report in amp.reports()


def test_variables_are_in_the_twin_once_however_many_plans_race(ran: Ran) -> None:
    ran.slow = others(PRODUCTS.name)  # so that no meeting lasts
    job = Job()
    with job.scope(), job.session() as session:
        job.steps(session, 80)
        names = collections.Counter(
            o.type for o in session._amp_twin.graph.get_operations()
        )
        mine = collections.Counter(o.type for o in job.graph.get_operations())
    assert len(set(ran)) == 4, "all plans were made"
    assert names["VarHandleOp"] == mine["VarHandleOp"]
    assert names["Placeholder"] == mine["Placeholder"]
    assert names["AssignSubVariableOp"] + names["ResourceApplyGradientDescent"] > 4


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"trial": False}, "AMP_TRIAL=0"),
        ({"assignment": "all"}, "assignment"),
        ({"emulate": True}, "emulation"),
    ],
)
def test_without_a_race_there_is_one_plan_and_runs_repeat_bit_for_bit(
    ran: Ran, fields: dict[str, Any], why: str
) -> None:
    first, again = trained(8, **fields)[0], trained(8, **fields)[0]
    assert set(ran) == {CUT.name}
    assert first == again
    assert len(runs()) == len(amp.reports()) == 2
    assert all(why in report.trial for report in runs())
    assert all(report.measured16 is None for report in runs())


def test_what_changes_nothing_does_not_race(ran: Ran) -> None:
    job = Job()
    with job.scope(), job.session() as session:
        job.steps(session, 1)
        count = v1.train.get_global_step(job.graph)
        for _ in range(5):
            session.run([count, job.w])
            session.run(job.init)
        found = session._amp_twin._runs.values()
    assert [run._contest is not None for run in found].count(True) == 1
    assert len(runs()) == 1


def test_a_plan_that_cannot_start_is_out_and_the_job_goes_on(ran: Ran) -> None:
    refused = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    ran.raises = {EVERYTHING.name: refused}
    ran.slow = others(PRODUCTS.name)
    with pytest.warns(RuntimeWarning, match="races without its plan 'everything'"):
        losses, count = trained(60)
    assert count == len(losses) == 60
    assert ran.count(EVERYTHING.name) == 1
    assert set(ran[-10:]) == {PRODUCTS.name}
    (report,) = runs()
    fates = {plan.name: plan.fate for plan in report.plans}
    assert fates[EVERYTHING.name] == "TensorFlow refused the twin"


def test_if_no_plan_can_start_float32_runs(ran: Ran) -> None:
    refused = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    ran.raises = dict.fromkeys([*PLANS, UNCLUSTERED.name], refused)
    with pytest.warns(RuntimeWarning, match="No OpKernel"):
        _, count = trained(20)
    assert count == 20
    assert set(ran[-10:]) == {FLOAT32}
    (report,) = runs()
    assert not report.rewritten
    assert report.verdict.endswith("; ended: TensorFlow refused the twin")


@pytest.mark.parametrize("fields", [{"trial": False}, {"emulate": True}])
def test_a_plan_that_cannot_start_is_not_called_rewritten_where_nothing_races(
    ran: Ran, fields: dict[str, Any]
) -> None:
    refused = tf.errors.InvalidArgumentError(None, None, "No OpKernel was registered")
    ran.raises = {CUT.name: refused}
    with pytest.warns(RuntimeWarning, match="No OpKernel"):
        _, count = trained(4, **fields)
    assert count == 4
    (report,) = runs()
    assert not report.rewritten
    assert report.nodes_low == 0
    assert "TensorFlow refused the twin" in report.verdict


def test_a_winner_that_no_longer_fits_is_not_called_rewritten(ran: Ran) -> None:
    ran.slow = others(CUT.name)
    large = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")
    job = Job()
    with job.scope(), job.session() as session:
        job.steps(session, 60)
        assert set(ran[-10:]) == {CUT.name}
        (report,) = runs()
        assert report.rewritten
        ran.raises = {CUT.name: large}
        with pytest.warns(RuntimeWarning, match="OOM"):
            job.steps(session, 200)
    (report,) = runs()
    assert not report.rewritten
    assert "its twin ran out of memory" in report.verdict


def test_a_plan_whose_rewrite_fails_is_out(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Prepared.made

    def broken(self: Prepared, nominee: Any, *args: Any) -> Any:
        if nominee.name == EVERYTHING.name:
            raise RuntimeError("broken")
        return made(self, nominee, *args)

    monkeypatch.setattr(Prepared, "made", broken)
    ran.slow = others(PRODUCTS.name)
    with pytest.warns(RuntimeWarning, match="races without its plan 'everything'"):
        _, count = trained(60)
    assert count == 60
    assert EVERYTHING.name not in ran
    assert set(ran[-10:]) == {PRODUCTS.name}


def test_an_error_on_the_way_is_the_users_and_runs_nothing_again(ran: Ran) -> None:
    job = Job()
    with job.scope(), job.session() as session:
        job.steps(session, 5)
        ran.starts = True
        error = tf.errors.InvalidArgumentError(None, None, "the data are damaged")
        ran.raises = dict.fromkeys([*PLANS, FLOAT32], error)
        before = len(ran)
        with pytest.raises(tf.errors.InvalidArgumentError, match="are damaged"):
            job.steps(session, 1)
        assert len(ran) == before + 1
        ran.raises = {}
        job.steps(session, 5)
        assert session.run(job.count) == 10


def test_float32_that_does_not_fit_leaves_the_twin_at_work(ran: Ran) -> None:
    ran.raises = {FLOAT32: tf.errors.ResourceExhaustedError(None, None, "no memory")}
    with pytest.warns(RuntimeWarning, match="ran out of memory in float32"):
        _, count = trained(40)
    assert count == 40
    assert ran.count(FLOAT32) == 1
    (report,) = runs()
    assert report.nodes_low


def test_plans_that_race_draw_apart_what_is_not_one_in_all_of_them(ran: Ran) -> None:
    """The shape of what is drawn is that of a product, whose type differs."""
    job = Job(trial=True, check=False)
    with job.scope(), job.session() as session:
        with job.graph.as_default():
            kept = v1.nn.dropout(job.out, rate=0.5, seed=7)
            mask = tf.not_equal(kept, 0.0)
            loss = tf.reduce_mean(tf.square(tf.tensordot(kept, job.w, 1)))
            descent = v1.train.GradientDescentOptimizer(0.0)
            late = descent.minimize(loss, job.count, name="late_step")
        fed = {job.x: job.data}
        masks = [session.run([mask, late], fed)[0].tobytes() for _ in range(12)]
    assert len({*ran}) > 1
    assert len({*masks}) == len(masks)


def test_plans_that_race_draw_apart_in_branches_too(ran: Ran) -> None:
    """Each view has branches of its own, of the same names in the program."""
    job = Job(trial=True, check=False)
    with job.scope(), job.session() as session:
        with job.graph.as_default():
            training = v1.placeholder_with_default(False, ())
            hidden, masks = job.out, []
            for seed in (7, 8):
                dropped = functools.partial(v1.nn.dropout, hidden, rate=0.5, seed=seed)
                kept = tf.cond(
                    training, dropped, functools.partial(tf.identity, hidden)
                )
                masks.append(tf.not_equal(kept, 0.0))
                hidden = tf.tensordot(kept, job.w, 1)
            loss = tf.reduce_mean(tf.square(hidden))
            descent = v1.train.GradientDescentOptimizer(0.0)
            late = descent.minimize(loss, job.count, name="late_step")
        fed = {job.x: job.data, training: True}
        found = [session.run([masks, late], fed)[0] for _ in range(12)]
    assert len({*ran}) > 1
    assert len({mask.tobytes() for each in found for mask in each}) == 24


FULL = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


@pytest.mark.parametrize(("trial", "before"), [(True, 0), (True, 60), (False, 1)])
def test_a_form_that_does_not_fit_leaves_float32_at_work(
    ran: Ran, trial: bool, before: int
) -> None:
    """Whenever that is, and if a part has run: without the plugin it might have fitted.

    A form that is proven is made without a question.
    """
    ran.slow = others(CUT.name) if trial else ()
    job = Job(trial=trial)
    with job.scope(), job.session() as session:
        job.steps(session, before)
        forms = [*PLANS, UNCLUSTERED.name]
        ran.raises, ran.starts = dict.fromkeys(forms, FULL), True
        made = len(ran)
        with pytest.warns(RuntimeWarning, match="OOM when allocating"):
            job.steps(session, 60)
        assert session.run(job.count) == before + 60
    assert trial or ran[made : made + 2] == [CUT.name, FLOAT32]
    assert set(ran[-10:]) == {FLOAT32}


def test_a_plan_that_does_not_fit_in_one_run_is_made_in_another(ran: Ran) -> None:
    """Another than one that TensorFlow refuses, which no run of the session has."""
    job = Job(trial=False)
    with job.scope(), job.session() as session:
        ran.raises = {CUT.name: FULL}
        with pytest.warns(RuntimeWarning, match="OOM when allocating"):
            job.steps(session, 1)
        ran.raises = {}
        session.run(job.train, {job.x: job.data})
    assert list(ran) == [CUT.name, FLOAT32, CUT.name]


def test_out_of_memory_in_float32_without_a_race_comes_from_one_run(ran: Ran) -> None:
    ran.slow = others(FLOAT32)
    job = Job()
    with job.scope(), job.session() as session:
        job.steps(session, 60)
        ran.raises = {FLOAT32: FULL}
        before = len(ran)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM"):
            job.steps(session, 1)
    assert len(ran) == before + 1


@pytest.mark.parametrize("fastest", [PRODUCTS.name, FLOAT32])
def test_the_next_run_of_the_job_starts_with_the_winner(ran: Ran, fastest: str) -> None:
    ran.slow = others(fastest)
    trained(60)
    ran.clear()
    made = len(amp.reports())
    trained(5)
    assert set(ran) == {fastest}
    (report,) = amp.reports()[made:]
    if fastest == FLOAT32:
        assert report.nodes_low == 0
        assert {d.rule for d in report.decisions if d.dtype == "float32"} == {"trial"}
    else:
        assert report.trial == contest.KNOWN


def test_a_winner_that_became_slower_than_float32_loses_its_place(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winner_checks, "CHECKS", ())
    monkeypatch.setattr(winner_checks, "EVERY", 5)
    monkeypatch.setattr(winner_checks, "LEAST_CALLS", 0)
    monkeypatch.setattr(winner_checks, "SHARE", 1.0)
    ran.slow = others(PRODUCTS.name)
    job = Job()
    with job.scope(), job.session() as session:
        job.steps(session, 60)
        assert set(ran[-4:]) <= {PRODUCTS.name, FLOAT32}
        ran.slow = others(FLOAT32)
        job.steps(session, 60)
        assert session.run(job.count) == 120
    assert set(ran[-10:]) == {FLOAT32}
    (report,) = runs()
    assert report.trial == "float32 became the faster: found by a check"


def test_a_checkpoint_in_the_middle_of_a_race_restores_without_the_plugin(
    ran: Ran, tmp_path: Any
) -> None:
    job = Job()
    with job.graph.as_default():
        saver = v1.train.Saver()
    with job.scope(), job.session() as session:
        job.steps(session, 7)
        path = saver.save(session, str(tmp_path / "model"), job.count)
        want = session.run([job.v, job.count])
        job.steps(session, 2)
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(job.v), want[0])
        job.steps(session, 2)
    assert len(set(ran)) == 2, "two plans have met"
    with v1.Session(graph=job.graph) as session:
        saver.restore(session, path)
        got = session.run([job.v, job.count])
    assert got[1] == want[1] == 7
    np.testing.assert_array_equal(got[0], want[0])


def test_a_second_session_of_the_graph_knows_the_winner(ran: Ran) -> None:
    ran.slow = others(PRODUCTS.name)
    job = Job()
    with job.scope():
        with job.session() as session:
            job.steps(session, 60)
        ran.clear()
        with job.session() as session:
            job.steps(session, 5)
    assert set(ran) == {PRODUCTS.name}


def test_what_is_built_later_races_by_plans_of_its_own(ran: Ran) -> None:
    ran.slow = others(PRODUCTS.name)
    job = Job()
    fed = {job.x: job.data}
    with job.scope(), job.session() as session:
        want = session.run(job.out, fed)
        job.steps(session, 60)
        with job.graph.as_default():
            late = tf.matmul(
                job.out, tf.tanh(tf.matmul(job.w, job.v)), name="late_step"
            )
        ran.clear()
        got = [session.run(late, fed) for _ in range(60)]
    assert {CUT.name, FLOAT32, PRODUCTS.name} <= set(ran)
    assert set(ran[-10:]) == {PRODUCTS.name}
    scale = np.abs(got[0]).max()
    np.testing.assert_allclose(got[-1], got[0], atol=BFLOAT16 * scale)
    assert want.shape == got[0].shape


def test_feeding_what_a_plan_has_changed_is_float32(ran: Ran) -> None:
    job = Job()
    with job.scope(), job.session() as session:
        job.steps(session, 1)
        inner = job.graph.get_tensor_by_name("Tanh:0")
        zeros = {inner: np.zeros([SIZE, SIZE], "f")}
        found = [session.run(job.out, zeros) for _ in range(3)]
    for out in found:
        np.testing.assert_array_equal(out, np.zeros([SIZE, SIZE], "f"))
    inner_run = session._amp_twin._runs.popitem()[1]
    assert inner_run._contest is None


def test_a_callable_races_as_a_run_does(ran: Ran) -> None:
    ran.slow = others(PRODUCTS.name)
    job = Job(shape=(SIZE, SIZE))
    with job.graph.as_default():
        given = tf.constant(job.data)
        step = tf.matmul(tf.tanh(tf.matmul(given, job.w)), job.v, name="late_step")
    with job.scope(), job.session() as session:
        run = session.make_callable(step)
        found = [run() for _ in range(60)]
    assert ran[0] == FLOAT32  # what the cheapest gives is compared with it
    assert CUT.name in ran
    assert set(ran[-10:]) == {PRODUCTS.name}
    scale = np.abs(found[0]).max()
    np.testing.assert_allclose(found[-1], found[0], atol=BFLOAT16 * scale)


@pytest.mark.parametrize("known", [True, False])
def test_what_is_made_in_one_form_only_takes_the_fastest_known(
    ran: Ran, known: bool
) -> None:
    ran.slow = others(PRODUCTS.name)
    if known:
        trained(60, shape=(SIZE, SIZE))
    job, made = Job(shape=(SIZE, SIZE)), len(amp.reports())
    with job.scope(), job.session() as session:
        options = session_lib.config_pb2.CallableOptions()
        options.target.append("step")
        options.fetch.append("loss:0")
        options.feed.append("x:0")
        run = session._make_callable_from_options(options)
        for _ in range(5):
            run(job.data)
        assert session.run(job.count) == 5
    (report,) = amp.reports()[made:]
    assert len(ran) == (60 if known else 0)
    assert "such a run is made in one form only" in report.trial
    low = {d.op for d in report.decisions if d.dtype == "bfloat16"}
    assert ("Tanh" in low) is not known


@pytest.mark.filterwarnings("ignore:.*partial_run")
def test_the_parts_of_a_partial_run_are_made_in_one_form(ran: Ran) -> None:
    job = Job(shape=(SIZE, SIZE))
    with job.scope(), job.session() as session:
        for _ in range(3):
            handle = session.partial_run_setup([job.loss, job.out], [job.x])
            out = session.partial_run(handle, job.out, {job.x: job.data})
            loss = session.partial_run(handle, job.loss)
            want = np.square(out - 1.0).mean()
            np.testing.assert_allclose(loss, want, rtol=BFLOAT16)
    (report,) = amp.reports()
    assert "such a run is made in one form only" in report.trial


def priced(shape: Any) -> amp.Report:
    """The report on two products of [1, SIZE, SIZE]."""
    rows = np.ones([1, SIZE, SIZE], "f")
    scope = amp.mixed_precision_scope(dtype="bfloat16", trial=False)
    with tf.Graph().as_default(), scope, v1.Session() as session:
        x = v1.placeholder(tf.float32, shape, name="x")
        out = tf.matmul(tf.tanh(tf.matmul(x, rows)), rows)
        session.run(out, {x: rows.tolist()})
    return amp.reports()[-1]


def test_a_plan_is_made_for_the_sizes_of_the_first_runs_feeds() -> None:
    """A product of unknown batch and length is priced as with static shapes."""
    static, told = priced([1, SIZE, SIZE]), priced([None, None, SIZE])
    assert told.made_for == {"x": [1, SIZE, SIZE]}
    assert static.made_for == {}
    assert not told.sizes_assumed
    assert (told.seconds32, told.seconds16) == (static.seconds32, static.seconds16)
    assert told.nodes_low == static.nodes_low > 0


class Cell:
    """A recurrent cell as `tf.compat.v1.nn.dynamic_rnn` takes one."""

    state_size = output_size = SIZE

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        return tf.zeros([batch_size, SIZE], dtype)

    def get_initial_state(
        self, inputs: Any = None, batch_size: Any = None, dtype: Any = None
    ) -> Any:
        return self.zero_state(batch_size, dtype)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        state = tf.tanh(tf.matmul(tf.concat([inputs, state], 1), self.weights))
        return state, state


def recurrent(steps: int, **policy: Any) -> list[float]:
    """The losses of steps of training of a recurrent network."""
    rows = np.random.RandomState(0).randn(2 * SIZE, SIZE).astype("f") / SIZE**0.5
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None, None, SIZE])
        start = v1.constant_initializer(rows / 2)
        weights = v1.get_variable("w", [2 * SIZE, SIZE], initializer=start)
        out, _ = v1.nn.dynamic_rnn(Cell(weights), x, dtype=tf.float32)
        loss = tf.reduce_mean(tf.square(out[:, -1] - 0.5))
        descent = v1.train.GradientDescentOptimizer(0.1)
        train = descent.minimize(loss, name="step")
        scope = amp.mixed_precision_scope(**policy) if policy else amp.keep_float32()
        fed = {x: np.tile(rows[None, :SIZE], [2, 1, 1])[:, :8]}
        with scope, v1.Session() as session:
            session.run(v1.global_variables_initializer())
            return [session.run([loss, train], fed)[0] for _ in range(steps)]


@pytest.mark.parametrize("fastest", [FLOAT32, PRODUCTS.name])
@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
def test_a_loop_ends_in_its_fastest_form(ran: Ran, fastest: str, v2: bool) -> None:
    ran.slow = others(fastest)
    (v1.enable_control_flow_v2 if v2 else v1.disable_control_flow_v2)()
    try:
        want, losses = recurrent(100), recurrent(100, dtype="bfloat16")
    finally:
        v1.enable_control_flow_v2()
    np.testing.assert_allclose(losses, want, rtol=BFLOAT16)
    assert CUT.name in ran
    assert set(ran[-10:]) == {fastest}


def test_threads_may_run_at_once_and_each_run_is_one_step(ran: Ran) -> None:
    job = Job()

    def work(session: Any) -> None:
        with job.scope():
            job.steps(session, 25)

    with job.scope():
        session = job.session()
    threads = [threading.Thread(target=work, args=(session,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with job.scope(), session:
        assert session.run(job.count) == 100
    assert len(ran) == 100


def test_the_end_of_one_race_leaves_other_runs_their_plans(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inference is run seldom, and races on when that of the training step is over."""
    ran.slow = (FLOAT32, EVERYTHING.name, PRODUCTS.name)
    why: dict[str, list[str]] = collections.defaultdict(list)
    original = RunPlans._why_not

    def why_not(self: RunPlans, *args: Any) -> str:
        found = original(self, *args)
        why[str(self.asked)].append(found)
        return found

    monkeypatch.setattr(RunPlans, "_why_not", why_not)
    job = Job()
    with job.scope(), job.session() as session:
        feed = {job.x: job.data}
        session.run(job.out, feed)
        job.steps(session, ENOUGH)
        assert under_way() == 1
        assert prepared(session)
        for _ in range(ENOUGH):
            session.run(job.out, feed)
        assert under_way() == 0
        assert not prepared(session), "nothing races any more"
    assert len(why) == 2
    assert all("the race was over" not in text for one in why.values() for text in one)


def under_way() -> int:
    """How many runs race."""
    return sum(report.trial.startswith("under way") for report in runs())


def prepared(session: Any) -> list[Any]:
    """The planned parts that further plans could be made of."""
    parts = session._amp_twin.views._parts.values()
    return [part for each in parts for part in each.parts if part.prepared is not None]
