"""`FunctionPlans`: the forms that one function may run in, made when first asked for.

Used by `function_twins`. Here a plan is made into functions of TensorFlow's runtime,
and these are removed again; which of them runs is decided elsewhere, and nothing is
timed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as context_lib

from amp.graph_rewrite.assign.nominee import CUT, REWRITTEN, Nodes, Nominee
from amp.graph_rewrite.graph import calls
from amp.graph_rewrite.report import Report
from amp.graph_rewrite.rewrite import Prepared, Rewrite
from amp.graph_rewrite.steps import uncollected
from amp.integration import heap, tensor_pool
from amp.integration.contests import entrants
from amp.integration.contests.entrants import (
    MEASURED,
    Found,
    NotMade,
    nominee_under,
)
from amp.integration.contests.stored_checks import Low, covers
from amp.integration.functions.plan_prices import PlanPrices
from amp.integration.racing import exemptions
from amp.integration.racing.race_log import FLOAT32, Setup
from amp.integration.runtime import definitions, twin_making
from amp.integration.runtime.twin_making import MadeTwin


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A plan that was made into functions.

    Attributes:
      twin: these functions.
      report: on the plan.
      low: the nodes that it holds in 16 bits, by the use of the function as given.
    """

    twin: MadeTwin
    report: Report
    low: Low

    @property
    def in_float32(self) -> bool:
        """Whether it makes nothing 16-bit."""
        return not any(self.low.values())


class FunctionPlans:
    """The plans of one function, and the functions made from them so far.

    Args:
      name: the original's name.
      prepared: the function, analyzed and priced.
      kept: nodes that stay float32 in every plan.
      proven: the plan that an earlier run of the job made and checked, "" for none.

    Attributes:
      original: the original's name.
      making: seconds that the latest plan took to make.
      prepared: as given; None once there will be no further plan.
      prices: by which plans were made, and reports predict.
      borne: the 16-bit nodes that further plans may have, those of any of these; None
        for any nodes (`Checked.borne`).
      repriced: the same at the prices of the plan `MEASURED`; None without one.
      spares: whether a rewrite saves enough time by anything else than 16 bits, or any
        time by doing without a loss scale that the user did not ask for. Where types
        are emulated it is not to: what runs is to be the program's own arithmetic.
    """

    def __init__(
        self, name: bytes, prepared: Prepared, kept: Nodes, proven: str = ""
    ) -> None:
        self.original, self.making = name, 0.0
        self.prepared: Prepared | None = prepared
        self.prices = PlanPrices(prepared.timer)
        self.borne: Sequence[Low] | None = None
        self.repriced: Prepared | None = None
        self._kept, self._proven = kept, proven
        self._settled, policy = prepared.settled, prepared.settled.policy
        emulated = policy is not None and policy.emulate
        rewritten = nominee_under(self._settled, REWRITTEN.name)
        spares = (prepared.spares or rewritten.unscaled) and not emulated
        # The user's own float32 is to run or race whatever it is predicted to gain.
        own = rewritten.unscaled and not prepared.spares
        rewritten = dataclasses.replace(rewritten, everything=own)
        self.spares = spares and prepared.foreseen(rewritten).gains
        uses = calls.uses_with_weights(prepared.given)
        by_xla = any(use.xla for use in uses) or bool(tf.config.optimizer.get_jit())
        self._setup = Setup(
            # In float32 this changes nothing but a scale that nobody asked for.
            plain=REWRITTEN.name if own and self.spares else FLOAT32,
            compiled=by_xla,
            # An iterator in the function may give batches of other sizes.
            uneven=prepared.sizes is not None and bool(prepared.sizes.tensors),
        )
        self._cheapest: Nodes = {}  # why the cheapest plan leaves nodes in float32
        self._race = policy is not None and not exemptions.why_not(policy)
        self._left: dict[str, Callable[[], None]] = {}  # checks, by plan
        self._made: dict[str, Made | NotMade] = {}
        # The report on the cheapest plan, or else on the one made first: others are
        # only tried if they are predicted to be close, also once it has been let go.
        self._best: Report | None = None
        self._lows: list[Low] = []

    @property
    def setup(self) -> Setup:
        """What is known of a race between the plans."""
        return dataclasses.replace(self._setup, making=self.making)

    def nominee(self, plan: str) -> Nominee:
        """The plan of a name, with the nodes that stay float32."""
        nominee = nominee_under(self._settled, plan).keeping(self._kept)
        if plan == self._setup.plain:
            nominee = dataclasses.replace(nominee, everything=True)
        return nominee.keeping(self._cheapest) if nominee.in_float32 else nominee

    def instead(self, cheapest: Report, *, stepped: bool) -> str:
        """The plan to begin with where the cheapest changes nothing, "" for none.

        Args:
          cheapest: the report on it.
          stepped: whether a training step was made in float32 before.
        """
        if self.prepared is not None and self.spares:
            self._cheapest = self.prepared.reasons(self.nominee(CUT.name))
            return REWRITTEN.name
        return self.worth_a_race(cheapest) if stepped else ""

    def worth_a_race(self, float32: Report) -> str:
        """The plan that is to race though none is predicted to gain, "" if none is.

        Args:
          float32: the report on the cheapest plan, which changes nothing.
        """
        if self.prepared is None or not self._race:
            return ""
        return entrants.beside_float32(self.prepared, float32, self.nominee)

    def was_made(self, low: Low) -> bool:
        """Whether a plan with these 16-bit nodes was made, be it let go or not."""
        return low in self._lows

    def reprice(self, prepared: Prepared) -> None:
        """Has the plan `MEASURED` made of the function at other prices."""
        self.repriced = prepared
        self.prices.made_by(MEASURED.name, prepared.timer)

    def tell_prices(self, prepared: Prepared) -> None:
        """Has the reports on plans that were made predict by other prices.

        Args:
          prepared: the function at these prices.
        """
        made = list(self._made.items())
        plans = {plan: one.low for plan, one in made if isinstance(one, Made)}
        self.prices.tell(prepared, plans)

    def known(self, plan: str) -> Made | NotMade | None:
        """What became of a plan, None if it was not asked for or was let go."""
        return self._made.get(plan)

    def function(self, plan: str) -> bytes:
        """The function to call for a plan; the original's where it was not made."""
        made = self._made.get(plan)
        return made.twin.name if isinstance(made, Made) else self.original

    @uncollected()
    def make(
        self, context: Any, plan: str, doubt: float = 1.0
    ) -> tuple[Made | NotMade, Rewrite | None]:
        """Makes the functions of a plan.

        Not to be called in two threads for the same plan at a time.

        Args:
          context: TensorFlow's eager context.
          plan: the name of one of `NOMINEES`.
          doubt: by which factor predictions of this function are known to be wrong.

        Returns:
          What became of it, and the rewrite, if there was one.

        Raises:
          AmpError: what the rewrite found wrong.
        """
        start = time.perf_counter()
        prepared = self.prepared
        if plan == MEASURED.name and self.repriced is not None:
            prepared = self.repriced
        made: Made | NotMade = NotMade("not made, the race was over")
        rewrite = None
        if prepared is not None:
            why_not = self._why_not(prepared, plan, doubt)
            why_not = why_not or self._not_borne(prepared, plan)
            made = NotMade(why_not)
            if not why_not:
                made, rewrite = self._make(context, prepared, plan)
                if isinstance(made, Made):
                    self.prices.made(plan, prepared, made.low)
                heap.trim()
                tensor_pool.trim()  # what lies where others needed it
        self.making = time.perf_counter() - start
        self._made[plan] = made
        return made, rewrite

    def make_instead(
        self, context: Any, plan: str, *, stepped: bool = False
    ) -> tuple[str, Made | NotMade, Rewrite | None]:
        """Makes the plan that is to run where one changes nothing, if there is any.

        Args:
          context: TensorFlow's eager context.
          plan: the name of the one that was not made.
          stepped: as of `instead`.

        Returns:
          Its name, what became of it, and the rewrite; those of the other without one.
        """
        made = self._made[plan]
        instead = ""
        if isinstance(made, NotMade) and made.report is not None:
            instead = self.instead(made.report, stepped=stepped)
        if not instead:
            return plan, made, None
        return (instead, *self.make(context, instead))

    def _make(
        self, context: Any, prepared: Prepared, plan: str
    ) -> tuple[Made | NotMade, Rewrite]:
        nominee = self.nominee(plan)
        proven = plan == self._proven
        later = proven or self._race
        twin, rewrite = twin_making.registered(
            context, prepared, nominee, later, by_turns=self._race
        )
        if twin.name == self.original:
            return NotMade("not made, it changes nothing", rewrite.report), rewrite
        self._lows.append(rewrite.low)
        if not proven:
            self._left[plan] = rewrite.left
        if self._best is None or plan == CUT.name:
            self._best = rewrite.report
        return Made(twin, rewrite.report, rewrite.low), rewrite

    def _why_not(self, prepared: Prepared, plan: str, doubt: float) -> str:
        """Why a plan is not worth a try beside the cheapest, "" if it is."""
        if plan in (CUT.name, MEASURED.name) or self._best is None:
            return ""
        found = Found(prepared, self._best, self._lows)
        return entrants.why_not_made(found, self.nominee(plan), doubt)

    def _not_borne(self, prepared: Prepared, plan: str) -> str:
        """Why a plan is not to run for its accuracy, "" if it may."""
        if self.borne is None:
            return ""
        low = prepared.foreseen(self.nominee(plan)).low
        return "" if covers(self.borne, low) else entrants.NOT_BORNE

    def check(self, plan: str) -> None:
        """Makes those checks of a plan that may wait until it has won a race.

        Raises:
          VerifyError: one of them fails.
        """
        left = self._left.pop(plan, None)
        if left is None:
            return
        try:
            left()
        except Exception:
            raise
        except BaseException:
            self._left[plan] = left  # interrupted: they are still to be made
            raise

    def report(self, plan: str) -> Report:
        """The report on a plan that was made."""
        made = self._made[plan]
        assert isinstance(made, Made)
        return self.prices.predicted(plan, made.report)

    def released(self, plan: str) -> None:
        """Lets a plan go of which no call is running any more."""
        self.let_go(context_lib.context(), plan)

    def let_go(self, context: Any, plan: str) -> None:
        """Removes the functions of a plan, and with them their executors and memory."""
        made, _ = self._made.pop(plan, None), self._left.pop(plan, None)
        self.prices.forget(plan)
        if isinstance(made, Made):
            definitions.unregister(context, made.twin.functions)
            heap.trim()

    def let_all_go(self, context: Any) -> None:
        """Removes the functions of every plan."""
        for plan in list(self._made):
            self.let_go(context, plan)

    def settle(self) -> None:
        """Lets go what is only needed to make further plans: there will be none.

        But for one that was found by what was measured and is still to race.
        """
        self.prepared = None
        if MEASURED.name in self._made:
            self.repriced = None
        heap.trim()

    def functions(self) -> list[str]:
        """The names of all functions made for the original that are still there."""
        made = [one for one in list(self._made.values()) if isinstance(one, Made)]
        return [name for one in made for name in one.twin.functions]
