"""What a warning says of a job whose gradients overflow: what, where, what to try.

`stalls` asks for the text. What is found inside a step is told by a `Finding`, which
`integration.observing.samples` makes. Text only; nothing is read from TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

_NAMED = 3
_KEPT = 12  # readers named in a pattern for `keep`, which is of use if it is whole
_SHORT = 20  # fewer steps may not be enough to find the scale
# Ops at whose poles an epsilon is meant to stand.
_POLES = frozenset(
    {"RealDiv", "Div", "Reciprocal", "Inv", "Rsqrt", "RsqrtGrad", "Log", "SqrtGrad"}
    | {"DivNoNan", "Pow", "Xdivy", "ReciprocalGrad", "InvGrad", "Sqrt", "Log1p"}
)
_LIMITS = {
    "float16": "float16 ends at 65504, and rounds what is under 3e-8 to 0",
    "bfloat16": "bfloat16 has two to three digits",
}
# What names the first tensor: of a step that can be called, and of a session's graph.
_CALLED = "amp.compare(step, *batch)"
_SAVED = (
    "`amp compare graph.pb --inputs batch.npz` (the loss, written after "
    "tf.compat.v1.graph_util.convert_variables_to_constants)"
)
Event = Literal["stalled", "floor", "never"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The first tensor that was not finite in a step whose gradients overflowed.

    Attributes:
      variable: the variable whose gradient came to be not finite first.
      tensor: the name of the node that makes it, with the number of the output if that
        is not the first.
      op: the op that makes it, "" for an argument of the function.
      dtype: the 16-bit type that it, or the result that it reads, is held in; "" where
        all is float32.
      forward: whether it is of the forward pass.
      value: what it holds: "NaN" or "infinity".
      is_state: whether it is the value of a variable.
      own: whether the program itself asked for 16 bits there.
      readers: the operations that read it, which have to stay float32 too if it is to
        arrive there as it is; those of the forward pass first.
      line: the user's line that made it, as "file:line"; "" if that is not known.
      rounded: the 16-bit type of something that it is computed from; "" where nothing
        is.
    """

    variable: str
    tensor: str
    op: str
    dtype: str
    forward: bool
    value: str
    is_state: bool
    own: bool
    readers: tuple[str, ...] = ()
    line: str = ""
    rounded: str = ""

    @property
    def unhelped(self) -> str:
        """What to tell where no loss scale can help and float32 may; else ""."""
        if not (self.forward and self.dtype) or self.own:
            return ""
        return f"no loss scale helps where {self.tensor} is past {self.dtype}'s range"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A job that does not train, or may not.

    Attributes:
      event: "stalled" after so many skipped updates in a row, "floor" when the scale
        has reached its minimum, "never" if no gradient was ever finite.
      scaler: what the scaler is called.
      names: of the variables whose gradients were not finite.
      times: in how many gradient calls they were not.
      scale: the loss scale, as text.
      skipped: whether an optimizer skipped updates for them. It does not where
        gradients are only looked at, added up, or used by hand.
      in_session: whether the step is a run of a session, which cannot be called.
    """

    event: Event
    scaler: str
    names: Sequence[str]
    times: int
    scale: str
    skipped: bool = True
    in_session: bool = False


def text(case: Case, finding: Finding | None) -> str:
    """Returns the warning.

    Args:
      case: what has happened.
      finding: where, as far as that is known.
    """
    said = f"loss scaler {case.scaler!r}: {_what(case)}. "
    if case.event == "never" and case.times < _SHORT:
        said += "The scale begins high and halves at each of them: a job with more "
        said += "steps may find one that fits. "
    tool = _SAVED if case.in_session else _CALLED
    if finding is None:
        return said + _unknown(tool)
    return f"{said}{_where(finding)}. {_try(finding, tool)}"


def _what(case: Case) -> str:
    names, times, scale = listed(case.names), case.times, case.scale
    if case.event == "floor":
        return (
            f"{scale}, which is its floor, and gradients of {names} were not finite on "
            "the way there: from now on an overflow only skips updates"
        )
    if case.event == "never":
        none = "no update was made: " if case.skipped else ""
        steps = "steps" if case.skipped else "calls"
        text = f"the gradients of {names} were not finite in any of {times} {steps}"
        return f"{none}{text}; {scale}"
    if case.skipped:
        return (
            f"training may stand still: {times} updates were skipped because the "
            f"gradients of {names} were not finite; {scale}"
        )
    return (
        f"the gradients of {names} were not finite in {times} calls, and no optimizer "
        f"skipped an update for it: what they train otherwise stands still; {scale}"
    )


def listed(names: Sequence[str]) -> str:
    """Returns the first names, and how many more there are."""
    first = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{first}{more}" or "its variables"


def _unknown(tool: str) -> str:
    return (
        "If the loss itself is finite, scale it down (a mean instead of a sum) or give "
        f"DynamicLossScale a lower minimum; otherwise {tool} names the first tensor "
        "that is not finite"
    )


def _where(finding: Finding) -> str:
    held = f", {finding.dtype or 'float32'}"
    fed = f"an input of the step{held if finding.dtype else ''}"
    kind = f"{finding.op}{held}" if finding.op else fed
    tensor = f"{finding.tensor} ({kind}): {finding.value}"
    made = "made" if finding.op else "given"
    tensor += f" ({made} at {finding.line})" if finding.line else ""
    first = f"The gradient of {finding.variable} was the first"
    if finding.forward:
        return f"The first tensor that was not finite is {tensor}. {first} to follow"
    return (
        f"The forward pass was finite; the first tensor of the backward pass that was "
        f"not is {tensor}, on the way to the gradient of {finding.variable}"
    )


def _try_input(finding: Finding, keep: str) -> str:
    if finding.dtype and not finding.own:  # finite until it was cast
        return (
            f"It is finite in float32, and past {finding.dtype}'s range: try data of "
            f"smaller units (-1e4 for -1e9 in a mask), {keep}, or dtype='bfloat16' "
            "(AMP_DTYPE=bfloat16)"
        )
    return "So it comes with the data: look at what is fed"


def _try(finding: Finding, tool: str) -> str:
    node = finding.tensor.partition(":")[0]
    # An input is no node, so that no pattern is for it.
    kept = [node] * bool(finding.op) + list(finding.readers[:_KEPT])
    them = "these" if finding.readers else "it"
    wide = f"AMP_KEEP={','.join(kept)!r} or " if kept else ""
    wide += f"amp.keep_float32() around {them}"
    keep = "a cast to float32 before it" if finding.own else wide
    if finding.is_state:
        past = f"holds values past {finding.dtype}'s range: training diverges, so try "
        past += "a smaller learning rate" if finding.dtype else ""
        holds = past if finding.dtype else "itself holds it"
        return f"The variable {holds}; then go back to an earlier checkpoint"
    if not finding.op or finding.op in ("IteratorGetNext", "Placeholder"):
        return _try_input(finding, keep)
    if not finding.forward:
        return (
            "Try a smaller loss: a mean instead of a sum, or a lower minimum of "
            "DynamicLossScale; where a norm, a root or a division is differentiated, a "
            "larger epsilon"
        )
    pole = finding.op in _POLES
    if not finding.dtype and finding.rounded:
        return (
            f"It is float32, but computed from values in {finding.rounded}, which "
            f"rounds them: {tool} says whether it is finite without "
            "that. Where a rounded value is a divisor, or its logarithm or root taken, "
            f"a larger epsilon helps; otherwise {keep}, or what they are computed from"
        )
    if not finding.dtype:
        more = " (an epsilon that is too small, a logarithm of 0)" if pole else ""
        return (
            f"All of it is float32, so mixed precision is not the cause{more}: "
            "tf.debugging.enable_check_numerics() without it shows the line"
        )
    constant = finding.op in ("Cast", "Const")
    ways = "smaller values before it, or "
    ways = (
        "a constant that it can hold (-1e4, say, for -1e9), or " if constant else ways
    )
    ways = "a larger epsilon, or " if pole else ways
    return (
        f"Try {ways}{keep}, or dtype='bfloat16' (AMP_DTYPE=bfloat16): "
        f"{_LIMITS[finding.dtype]}"
    )
