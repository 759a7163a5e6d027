"""Why a node has its type, in words: the chain of causes, and what would change it.

Used by `Report.explain`, and so by `amp explain --node`. The rules' meanings are in
`plan`; nothing is decided or priced here, and no file is read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

from amp.graph_rewrite import decisions as of_nodes
from amp.graph_rewrite import figures
from amp.graph_rewrite.decisions import Decision
from amp.graph_rewrite.ops import op_table
from amp.graph_rewrite.plan import RULES

_KEEP_LOW = (
    "to have it in float32: AMP_KEEP={name} (Policy(keep=...)), or "
    "amp.keep_float32() around its line; AMP_DENY={op} for every {op}"
)
_ACCURACY = "nothing should: in 16 bits its rounding would be seen in the results"
_DEVICE = "another device may: `amp explain --device NAME`"
# By the rule of the root cause, or its `Decision.change`, what would give the node
# another type. "held" is for a node that only holds a value, "python" for a Python
# function, "settled" for any other op that `allow` may not name, and "overflow" for a
# range that is not a constant's.
CHANGES: Mapping[str, str] = {
    "compute": _KEEP_LOW,
    "follow": _KEEP_LOW,
    "move": _KEEP_LOW,
    "already": "the graph is built so: a cast or a policy in the model's own code",
    "keep": "building it outside amp.keep_float32(), or another AMP_KEEP",
    "optimizer": "nothing: updates of weights are in float32 on purpose",
    "custom": "nothing in a saved graph; in the job itself it may be 16-bit",
    "deny": "leaving {op} out of AMP_DENY (Policy(deny=...))",
    "unlisted": (
        "AMP_ALLOW={op} (Policy(allow=...)), if {op} has a 16-bit kernel and its "
        "values fit; nothing is known of it. What comes and goes in float32 is cast"
    ),
    "python": (
        "nothing, AMP_ALLOW={op} neither: a Python function returns the types that it "
        "was written for. TensorFlow's own ops in its place may be 16-bit"
    ),
    "settled": (
        "nothing, AMP_ALLOW={op} neither: what it takes or gives has a type that is "
        "settled elsewhere, or that has no 16-bit form"
    ),
    "held": "nothing: it holds float32, which its readers cast",
    "listed": "AMP_ALLOW={op} (Policy(allow=...)) overrides the white-list",
    "kernel": (
        "another 16-bit type (AMP_DTYPE=float16 or bfloat16), a TensorFlow or library "
        f"with a 16-bit kernel for {{op}}, or another op; {_DEVICE}"
    ),
    "device": "placing it on the plan's kind of device (tf.device)",
    "tied": "what holds the node that it is tied to",
    "unscale": "nothing: what is unscaled no longer fits float16",
    "unscaled": "taking the gradients where mixed precision is on",
    "unguarded": (
        "AMP_DTYPE=bfloat16, which has float32's range, or taking the gradient by a "
        "variable as well"
    ),
    "computation": "tf.function(jit_compile=True) in place of what is named",
    "searched": "nothing should: a search along a line needs all digits of float32",
    "zeroed": (
        "a small number added to what is divided by, amp.loss_scaling.apply_if_finite "
        "around the update, or AMP_DTYPE=bfloat16"
    ),
    "state": "nothing: a variable is updated in float32",
    "settles": "a loop that runs a fixed number of times: rounded, it may never settle",
    "given": "nothing should: nobody computed the value, and a reader needs it exactly",
    "decision": "nothing should: rounding may change what is chosen",
    "range": (
        "AMP_DTYPE=bfloat16, which holds what float32 holds (with fewer digits), or a "
        "constant that float16 holds (from 6e-5 to 65504)"
    ),
    "overflow": (
        "AMP_DTYPE=bfloat16, which holds what float32 holds (with fewer digits): "
        "float16 ends at 65504, which is 256 squared, and rounds what is under 3e-8 "
        "to 0"
    ),
    "count": "fewer terms, or sums in parts; float32 costs time only for this node",
    "loss": f"{_ACCURACY}; only what stands between two products is rounded",
    "result": _ACCURACY,
    "cancels": _ACCURACY,
    "steep": _ACCURACY,
    "solve": _ACCURACY,
    "recurrence": _ACCURACY,
    "decay": _ACCURACY,
    "scalar": "nothing should: it saves no time",
    "list": "what holds the op on the list that is named",
    "loop": "what holds the node of the loop that is named",
    "variable": "a resource variable (tf.Variable), which is read once and cast",
    "fed": "nothing: what is fed is float32; its readers cast it",
    "products": "another plan: this one has products only, to compare with",
    "rewritten": "another plan: in this one only the kernels are others",
    "accuracy": "AMP_CHECK=0 asks no more; but it was found at fault",
    "unreached": "a product before it in 16 bits: there is none",
    "cost": (
        "a larger shape, of which the start of a kernel and the casts are a smaller "
        f"part; {_DEVICE}; AMP_ASSIGNMENT=all takes it though it is slower"
    ),
    "gain": (
        "larger shapes (a larger batch); AMP_MIN_GAIN=0 takes any gain, "
        f"AMP_ASSIGNMENT=all even none; {_DEVICE}"
    ),
    "first": (
        "a second call, before which the plan is made; a loop around the steps inside "
        "the function is planned at its first call"
    ),
    "trial": (
        "AMP_TRIAL=0 runs the plan without a race; the plans that raced are in the "
        "report. A larger batch may turn the race"
    ),
}


def named(decisions: Sequence[Decision], node: str) -> list[int]:
    """The places of the decisions on a node.

    A node in a function, or in an inlined one, may be named without the names before
    its own; a whole name stands for that one alone.
    """
    whole = [place for place, one in enumerate(decisions) if one.node == node]
    ends = (f"::{node}", f"/{node}")
    return whole or [p for p, one in enumerate(decisions) if one.node.endswith(ends)]


_MOST = 4  # names that a misspelt one may have meant


def similar(decisions: Sequence[Decision], node: str) -> list[str]:
    """Names of nodes that a misspelt one may have meant, the likeliest first.

    Args:
      decisions: those there are.
      node: the name that none of them has.
    """
    every = list(dict.fromkeys(one.node for one in decisions))
    lower = node.lower()
    inside = [name for name in every if lower in name.lower()]
    # One that differs in case alone comes before what is in its scope.
    inside.sort(key=lambda name: not f"/{name.lower()}".endswith(f"/{lower}"))
    short: dict[str, str] = {}
    for name in every:
        short.setdefault(name.rpartition("/")[2].rpartition("::")[2], name)
    close = difflib.get_close_matches(node, every, _MOST)
    near = difflib.get_close_matches(node.rpartition("/")[2], list(short), _MOST)
    found = (*inside, *close, *(short[name] for name in near))
    return list(dict.fromkeys(found))[:_MOST]


def explain(decisions: Sequence[Decision], node: str, text: Mapping[str, str]) -> str:
    """The chain of causes of a node, and what would change it.

    Args:
      decisions: of a report.
      node: the node, as `named` takes it; each that is found is explained.
      text: the text of the lines of code that the decisions name.
    """
    places = named(decisions, node)
    if not places:
        found = similar(decisions, node)
        meant = f"; did you mean {', '.join(found)}?" if found else ""
        return f"no decision was made about a node {node!r}{meant}"
    causes = of_nodes.causes(decisions)
    parts = []
    for place in places:
        chain = [decisions[each] for each in of_nodes.chain(place, causes)]
        parts.append("\n".join(_lines(chain, decisions, text)))
    return "\n".join(parts)


def reason(one: Decision) -> str:
    """A decision in a line: node, op, type, what its rule means, rule and cause."""
    means = RULES.get(one.rule, one.rule)
    return f"{one.node} ({one.op}) is {one.dtype}: {means} [{one.rule}: {one.cause}]"


def _lines(
    chain: Sequence[Decision],
    decisions: Sequence[Decision],
    text: Mapping[str, str],
) -> Iterator[str]:
    first, root = chain[0], chain[-1]
    yield reason(first)
    yield from _facts(first, text)
    if first.rule in _JUDGED:
        yield f"  cost     {_JUDGED[first.rule](first, decisions)}"
    for one in chain[1:]:
        yield f"  because  {reason(one)}"
        yield from _place(one, text)
    if root is not first and root.rule in _JUDGED:
        yield f"  cost     {_JUDGED[root.rule](root, decisions)}"
    change = CHANGES.get(root.change or root.rule, "")
    if change:
        name = root.node.rpartition("::")[2]
        of = "" if root is first else f"of {name}: "
        yield f"  change   {of}{change.format(op=root.op, name=name)}"


def _place(one: Decision, text: Mapping[str, str]) -> Iterator[str]:
    if one.layer:
        yield f"  layer    {one.layer}"
    if one.source:
        line = text.get(one.source, "")
        yield f"  source   {one.source}{f'  {line}' if line else ''}"


def _facts(one: Decision, text: Mapping[str, str]) -> Iterator[str]:
    """Where a node comes from, its sizes and its predicted times."""
    yield from _place(one, text)
    if one.sizes:
        yield f"  sizes    {one.sizes}"
    if one.seconds32 or one.seconds16:
        high, low = figures.time(one.seconds32), figures.time(one.seconds16)
        yield f"  time     {high} in float32, {low} in 16 bits, without casts"


def _cost(one: Decision, decisions: Sequence[Decision]) -> str:
    """Why a node is not faster in 16 bits, from its predicted times."""
    saved = one.seconds32 - one.seconds16
    if saved <= 0:
        return f"16 bits take {figures.time(-saved)} more in the kernel itself"
    read = [decisions[place] for place in one.reads]
    cast = sum(each.elements for each in read if each.dtype == "float32")
    told = f"16 bits save {figures.time(saved)}, and casts would take more"
    if cast:
        told += f": of {cast:,} elements that it reads"
    return told + _rows(one)


_FEW = 32  # rows of a product, of which a cast of the weights is no small part


def _rows(one: Decision) -> str:
    """That a matrix product has few rows, if it has."""
    rows = one.sizes.rpartition("-> ")[2].split("x")[0]
    few = rows.isdecimal() and int(rows) < _FEW
    if not few or op_table.facts(one.op).work != "matmul":
        return ""
    return f"; it has {rows} rows only, for each of which a weight is used once"


def _gain(one: Decision, decisions: Sequence[Decision]) -> str:
    """What else takes the time of a step that gains too little."""
    total = sum(each.seconds for each in decisions)
    kept = of_nodes.kept_in_float32(decisions)
    most = [each for each in kept if each.rule != one.rule and each.seconds][:2]
    rules = (f"{figures.time(each.seconds)} by {each.rule!r}" for each in most)
    told = f"of {figures.time(total)} in all, "
    return told + (f"{' and '.join(rules)} stay float32" if most else "little changes")


_JUDGED = {"cost": _cost, "gain": _gain}
