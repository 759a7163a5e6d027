"""`RunPlans`: the forms that one run of a session may take, made when first asked for.

Used by `run_twins`. Here a run is translated for the view of a plan; which of them is
made is decided elsewhere, and nothing is timed or run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from amp.graph_rewrite.assign.nominee import CUT
from amp.graph_rewrite.candidates.sources import is_source
from amp.graph_rewrite.graph import ir, serde
from amp.graph_rewrite.report import Report
from amp.integration import heap
from amp.integration.contests.entrants import NOMINEES, Found, NotMade, why_not_made
from amp.integration.functions.twins import Twins
from amp.integration.observing import step_variants
from amp.integration.racing.race_log import FLOAT32, Setup
from amp.integration.runtime import definitions
from amp.integration.sessions.executed_nodes import Executed, added, report_on_run
from amp.integration.sessions.graph_views import GraphViews
from amp.integration.sessions.planned_parts import Planned, some
from amp.integration.sessions.policy_view import PolicyView, Run, Uncastable
from amp.integration.sessions.run_checks import RunCheck
from amp.integration.sessions.run_values import RunValues, values_of


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A run that the user asks for.

    Attributes:
      targets, fetches: operations and tensors of the user's graph.
      feeds: the shapes of what is fed, None where they are not known, by the reference
        (`tensor.ref()`) of the user's tensor.
    """

    targets: Sequence[Any]
    fetches: Sequence[Any]
    feeds: Mapping[Any, ir.Shape]

    @property
    def names(self) -> list[str]:
        """Of the operations to run, and of those that make fetched tensors."""
        fetched = [tensor.op.name for tensor in self.fetches]
        return [*(operation.name for operation in self.targets), *fetched]

    def __str__(self) -> str:
        return some(self.names)


@dataclasses.dataclass(frozen=True, slots=True)
class MadeRun:
    """A run, translated for the view of a plan.

    Attributes:
      run: what to run.
      planned: the newest part of the graph of which the plan has changed a node that
        the run executes; None if there is none, so that the run is as in float32.
    """

    run: Run
    planned: Planned | None = None


class RunPlans:
    """The forms of one run.

    Args:
      views: of the graph.
      twins: of the policy; None for a run in float32.
      asked: the run.

    Attributes:
      twins, asked: as given.
      making: seconds that the latest plan took to make.
    """

    def __init__(self, views: GraphViews, twins: Twins | None, asked: Asked) -> None:
        self.twins, self.asked, self.making = twins, asked, 0.0
        self._views = views
        self._made: dict[str, MadeRun | NotMade] = {}
        self._reports: dict[str, Report] = {}
        self._executed: set[str] = set()
        self._whole: set[str] = set()
        self._values: RunValues | None = None

    @property
    def graph(self) -> Any:
        """The user's graph."""
        return self._views.twin.user

    def known(self, plan: str) -> MadeRun | NotMade | None:
        """What became of a plan, None if it was not asked for."""
        return self._made.get(plan)

    def float32(self) -> Run:
        """The run in float32.

        Raises:
          InvalidArgumentError: the user changed a node that a session had run.
        """
        made = self._made.get(FLOAT32)
        if not isinstance(made, MadeRun):
            with self._views.lock:
                made = MadeRun(self._translated(self._views.float32))
            self._made[FLOAT32] = made
        return made.run

    def make(self, plan: str, doubt: float = 1.0) -> MadeRun | NotMade:
        """Translates the run for a plan, and adds to the twin the nodes that it lacks.

        Args:
          plan: the name of one of `NOMINEES`.
          doubt: by which factor predictions of this run are known to be wrong.

        Raises:
          AmpError: what the rewrite found wrong.
          InvalidArgumentError: the user changed a node that a session had run.
        """
        start = time.perf_counter()
        with self._views.lock:
            if plan not in self._made:
                self._made[plan] = self._make(plan, doubt)
                heap.trim()
        self.making = time.perf_counter() - start
        return self._made[plan]

    def check(self, plan: str) -> RunCheck:
        """What compares a plan that was made.

        Raises:
          NotRepeatable: what it gives cannot be computed without changing something.
        """
        assert self.twins is not None
        if self._values is None:
            asked, executed = self.asked, self._find_executed()
            module = self.module()
            self._values = values_of(module, asked.feeds, asked.fetches, executed)
        return RunCheck(self._views, self.twins, plan, self._values)

    def drop(self, plan: str, why: str) -> None:
        """Notes that a plan cannot run."""
        self._made[plan] = NotMade(why)

    def _make(self, plan: str, doubt: float) -> MadeRun | NotMade:
        assert self.twins is not None
        why_not = self._why_not(self.twins, plan, doubt)
        if why_not:
            return NotMade(why_not)
        view = self._views.view(self.twins, plan)
        tensors = [reference.deref() for reference in self.asked.feeds]
        refused = NotMade("not made, a tensor that is fed is not as it was in it")
        if not all(map(view.accepts, tensors)):
            return refused
        try:
            run = self._translated(view)
        except Uncastable:
            return NotMade("not made, it reads an array that is 16-bit")
        if not all(map(view.accepts, tensors)):  # of what was just added
            return refused
        made = MadeRun(run, self._changed(view))
        if made.planned is None and plan != CUT.name:
            return NotMade("not made, it changes nothing")
        if made.planned is not None and self._needs_more(view, run):
            return NotMade("not made, it needs more than the run as it was built")
        return made

    def _needs_more(self, view: PolicyView, run: Run) -> bool:
        """Whether a form must be fed or changes what the user's run does not.

        No plan does so by itself, but a run may be fed in place of what a plan counts
        on.
        """
        twin = self._views.twin
        needed = self._find_executed()
        roots = [*run.targets, *(tensor.op for tensor in run.fetches)]
        found = step_variants.executed(roots, frozenset(run.feeds.values()))
        for name, node in twin.definitions.nodes.items():
            made = None if name in needed else view.operation(name)
            if made is not None and made.name in found:
                types = [t.dtype.base_dtype.as_datatype_enum for t in made.outputs]
                if is_source(node.op, types):
                    return True
        return False

    def _translated(self, view: PolicyView) -> Run:
        asked = self.asked
        return view.run(asked.targets, asked.fetches, asked.feeds)

    def _why_not(self, twins: Twins, plan: str, doubt: float) -> str:
        """Why a plan is not worth a try beside the cheapest, "" if it is."""
        cheapest = self._made.get(CUT.name)
        if plan == CUT.name or not isinstance(cheapest, MadeRun):
            return ""
        planned = cheapest.planned
        if planned is None:
            return "not made, the cheapest changes nothing either"
        made = [
            (name, each)
            for name, view in self._views.views(twins).items()
            for each in view.planned
            if each.part is planned.part
        ]
        if plan in dict(made):  # for another run
            return ""
        if planned.part.prepared is None:
            return "not made, the race was over"
        prepared = planned.part.prepared.prepared
        found = Found(prepared, planned.report, [each.low for _, each in made])
        return why_not_made(found, NOMINEES[plan], doubt)

    def _changed(self, view: PolicyView) -> Planned | None:
        executed = self._find_executed()
        for planned in reversed(view.planned):
            if not executed.isdisjoint(planned.changed):
                return planned
        return None

    def _find_executed(self) -> set[str]:
        """The names of the user's nodes that the run executes."""
        if not self._executed:
            asked = self.asked
            roots = [*asked.targets, *(tensor.op for tensor in asked.fetches)]
            self._executed = step_variants.executed(roots, asked.feeds)
        return self._executed

    def executes(self, names: set[str]) -> bool:
        """Whether the run executes one of some of the user's nodes."""
        return not names.isdisjoint(self._find_executed())

    def _find_whole(self) -> set[str]:
        """The same, and what would make that which is fed: a graph of its own."""
        if not self._whole:
            known = self._views.twin.definitions
            known.update(self._views.twin.user)
            self._whole = known.ancestors(self.asked.names)
        return self._whole

    def computes(self) -> bool:
        """Whether the run executes an operation that gains by 16 bits."""
        with self._views.lock:
            executed = self._find_executed()
            nodes = [node for node in self._nodes() if node.name in executed]
            return self._views.twin.definitions.compute(nodes)

    def _nodes(self) -> list[Any]:
        whole, known = self._find_whole(), self._views.twin.definitions
        names = sorted(whole, key=known.order.__getitem__)
        return [known.nodes[name] for name in names]

    def module(self) -> ir.Module:
        """The run as a graph of its own, as the user built it."""
        twin = self._views.twin
        with self._views.lock:
            known, nodes = twin.definitions, self._nodes()
            proto = tf.compat.v1.GraphDef(node=nodes, library=known.library(nodes))
            if known.versions is not None:
                proto.versions.CopyFrom(known.versions)
            return serde.read_graph(proto, twin.user_shape, definitions.traced_shapes)

    def news(self, plan: str) -> list[Planned]:
        """What a plan's view came to since this was last asked."""
        assert self.twins is not None
        with self._views.lock:
            return self._views.view(self.twins, plan).news()

    def reports(self, plan: str, news: Sequence[Planned]) -> list[tuple[bool, Report]]:
        """The reports on a run by a plan that was made, if it does not race.

        Args:
          plan: its name.
          news: the parts of the graph that no run was told of before.

        Returns:
          For each of them, and for what changes the run, whether it changes any run,
          and the report.
        """
        made = self._made[plan]
        assert isinstance(made, MadeRun)
        parts = {id(planned): planned for planned in (*news, made.planned) if planned}
        return [(bool(p.changed), self._cut(p, made.run)) for p in parts.values()]

    @property
    def setup(self) -> Setup:
        """What is known of a race between the plans.

        A session's float32 keeps its loss scale, and so is the user's own.
        """
        forms = [one for one in self._made.values() if isinstance(one, MadeRun)]
        planned = [one.planned for one in forms if one.planned is not None]
        cut = self._made.get(CUT.name)
        by_xla = bool(tf.config.optimizer.get_jit())
        if isinstance(cut, MadeRun) and cut.planned is not None:
            by_xla = by_xla or cut.planned.part.compiled
        return Setup(
            making=self.making,
            compiled=by_xla,
            uneven=any(each.report.sizes_assumed for each in planned),
        )

    def report(self, plan: str) -> Report:
        """The report on a plan that was made, and that changes the run."""
        if plan not in self._reports:
            made = self._made[plan]
            assert isinstance(made, MadeRun)
            self._reports[plan] = self._cut(self._planned(plan), made.run)
        return self._reports[plan]

    def _cut(self, planned: Planned, run: Run) -> Report:
        """The report on a part that was planned, of what the run executes of it."""
        asked, twin = self.asked, self._views.twin
        with self._views.lock:
            names = self._find_executed() | {
                reference.deref().op.name for reference in asked.feeds
            }
            nodes = [node for node in planned.part.nodes if node.name in names]
            library = twin.definitions.library(nodes)
            roots = [*run.targets, *(tensor.op for tensor in run.fetches)]
            fed = frozenset(run.feeds.values())
            casts, clusters = added(step_variants.executed_part(twin.graph, roots, fed))
        functions = {f.signature.name: len(f.node_def) for f in library.function}
        executed = frozenset(node.name for node in nodes)
        made = Executed(executed, functions, casts, clusters)
        return report_on_run(planned.report, made)

    def _planned(self, plan: str) -> Planned:
        made = self._made[plan]
        assert isinstance(made, MadeRun)
        assert made.planned is not None
        return made.planned

    def digest(self, plan: str) -> str:
        """A name for a plan that was made, the same in every run of the job."""
        return self._planned(plan).digest

    def race(self) -> None:
        """Is told that plans of the run race: further ones may be made."""
        assert self.twins is not None
        with self._views.lock:
            self._views.parts(self.twins).racing.add(self)

    def settle(self) -> None:
        """Lets go what is only needed to make further plans: the run has none."""
        if self.twins is not None:
            with self._views.lock:
                self._views.parts(self.twins).settle(self)
        self._executed = self._whole = set()
        heap.trim()

    def released(self, plan: str) -> None:
        """Nothing: nodes of a graph, and executors of a session, stay with them."""
