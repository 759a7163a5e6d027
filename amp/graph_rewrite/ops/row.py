"""The type of a row of the op table, and functions that make rows.

The rows themselves are in the modules of their families (`products`, `elementwise`,
`reductions`, `moves`, `structure`). No graph is walked and nothing is decided here.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping
from typing import Any

from amp.graph_rewrite.ops.accumulation import Terms


class Role(enum.Enum):
    """What the rewriter may do with an op.

    An op is `MOVE` only if each output value is an input value, 0 or 1, so that casting
    before or after the op gives the same values. Ops that compare or change signs are
    `FOLLOW`.
    """

    COMPUTE = "compute"  # where propagation starts
    FOLLOW = "follow"  # may be 16-bit downstream of a 16-bit product
    MOVE = "move"  # no arithmetic; may be 16-bit before or after such nodes
    KEEP = "keep"  # always float32


class Kind(enum.Enum):
    """A property of an op that some algorithm on graphs looks for."""

    # Enum's own is a call of Python; members of sets of kinds are only looked up.
    __hash__ = object.__hash__

    OTHER = "nothing that any algorithm looks for"
    CONSTANT = "a value known before any run"
    PLACEHOLDER = "what the caller passes"
    CAST = "the same values in another type, and nothing else"
    IDENTITY = "its input as it is, so that a reader may read the input instead"
    BUNDLE = "its inputs as they are, each given once all are there"
    STOP_GRADIENT = "its input, past which no gradient flows"
    NOTHING = "no tensors; only what waits for it and what it waits for"
    RESHAPE = "its elements in another shape, which an input tells"
    SHAPE = "the shape of each input, or what that tells"
    JOINED = "its inputs, one behind the other along the axis that the last one tells"
    INVERSE = "the inverse of the permutation that it reads"
    BROADCAST_AXES = "the axes over which gradients of broadcast operands are summed"
    SUM = "the sum or difference of operands, by which a loop may grow a total"
    BIAS = "its operand with a vector added along an axis"
    PRODUCT = "the product of two operands, element by element"
    SQUARE = "the square of an operand, or of a difference"
    POWER = "its first operand to the power of the second"
    ZEROS = "as many zeros as its operand has elements"
    ROUND = "whole numbers beside its operand"
    REMAINDER = "what is left of its operand by whole numbers of another"
    SIGN = "1, -1 or 0, as its operand is"
    CHECK = "whether its operand is finite, or a number"
    GUARD = "its operand, unless that is not finite: then it raises"
    PRINT = "its first operand, which it prints"
    SOLVE = "factors or inverts matrices, or solves a system of equations"
    VARIABLE = "a variable of a v1 graph: its own memory, read as a reference"
    READ_VARIABLE = "the value of the variable behind a handle"
    READ_PART = "part or shape of the variable behind a handle, which it only reads"
    WRITE = "changes the variable that its first input is, if that is one"
    NEXT = "the next element of an iterator"
    MAYBE_NEXT = "the next element of an iterator, if there is one, as an optional"
    ELEMENT = "the element of an optional"
    # Control flow of `tf.compat.v1`: loops run in frames, and branches that are not
    # taken give dead values.
    SWITCH = "one of two outputs alive"
    MERGE = "whichever input is alive"
    LOOP_CONDITION = "whether a frame runs once more"
    ENTER = "into a frame"
    EXIT = "out of a frame"
    NEXT_ITERATION = "to a frame's next trip"


# Asked about for every node of a graph. Before Python 3.12 a member is looked up in the
# class by a call, which takes longer than all else here.
_PRODUCTS = frozenset({Kind.PRODUCT, Kind.SQUARE})
_READS = frozenset({Kind.READ_VARIABLE, Kind.READ_PART})
_IN_MEMORY = frozenset({Kind.CONSTANT, Kind.VARIABLE, Kind.READ_VARIABLE})
_SUMS = frozenset({Kind.SUM, Kind.BIAS})
_COPIES = frozenset({Kind.CAST, Kind.IDENTITY, Kind.BUNDLE})
_FRAMES = frozenset(
    {
        *(Kind.SWITCH, Kind.MERGE, Kind.LOOP_CONDITION),
        *(Kind.ENTER, Kind.EXIT, Kind.NEXT_ITERATION),
    }
)


class Unmoved(enum.Enum):
    """When a kernel hands on its first operand's memory instead of moving elements."""

    NEVER = "never"
    SAME_COUNT = "the result has as many elements as the operand"
    SAME_ORDER = "input 1 leaves the axes of more than one element in their order"


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """The inputs with the weights of a kernel that multiplies, by their numbers.

    Attributes:
      numbers: numbers of the inputs with weights, filters or matrices.
      data: number of the input whose rows (steps and batch) are multiplied by each of
        the weights of a recurrent kernel.
      products: number of products with each weight and row: 2 for the gradient kernels
        that give the gradients of both data and weights.
    """

    numbers: tuple[int, ...]
    data: int = 0
    products: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The facts about one op.

    Attributes:
      op: OpDef name.
      role: what the rewriter may do with it; None for an op that is not on the
        white-list, and so is never converted.
      why: the reason for the role, also where it differs from TensorFlow's list.
      source: where the reason comes from, a key of `SOURCES`.
      attrs: type attributes that become 16-bit, all together; empty where the op passes
        a list handle and names no element type.
      float32_ports: arguments, by OpDef name, that stay float32 when the op is 16-bit.
      work: class of the op in the cost model, one of `WORK`; `arithmetic` has the
        formulas.
      weights: where the weights are, for the ops of its `work` that do not have them
        at input 1.
      kind: the property that algorithms on graphs look for.
      singular: flat input numbers at which a tiny positive value that is rounded to 0
        gives inf, NaN, an infinite derivative, or (`DivNoNan`) a jump to 0.
      poles: flat input numbers at which 0 gives inf or NaN, whatever the others are.
      zero: whether it is a root, a size or a sign of its operand, and so is 0 at 0.
      steep: whether its condition number |x f'(x) / f(x)| is unbounded, so that where x
        is large, or near a pole or jump, a rounding of x is a far larger error of the
        output.
      subtracts: whether it subtracts an input from another one or from 0.
      levels_off: whether outputs tend to a negative number, as exp(x) - 1 does, so that
        adding as much to them cancels.
      bounded: whether outputs stay small however large the inputs are.
      vanishes: whether outputs that are not bounded tend to 0, as log(1 + exp(x)) does.
      sums: a 16-bit output element is the sum or mean of many input elements. Not so
        for Softmax, LRN and FusedBatchNorm*, which divide by a sum or return it in
        float32, and AddN, MirrorPadGrad and gradients of pooling, which add up a few.
      adds_gradients: whether `GradientTape.gradient` adds up by it what several readers
        of a tensor give, outside the name scope of the gradient.
      terms: how many terms it adds up for an element of its output.
      adds_squares: whether these terms are squares, which leave float16's range.
      accumulates_low: 16-bit types in which TensorFlow's CPU kernel accumulates its
        sums (whole, or block by block) instead of in float32, on a CPU without
        arithmetic in the type.
      native_accumulates_low: the same on a CPU with such arithmetic; None where that
        makes no difference.
      gpu_accumulates_low: the same for TensorFlow's GPU kernel.
      xla_accumulates_low: the same for what XLA compiles.
      stand_in: the op that gives the same sums, and that a 16-bit node becomes where
        its kernel accumulates in float32 and this one's does not.
      selects: whether each output element is an input element (or a constant) chosen by
        size, such as the largest of a window.
      compares: numbers of the two inputs that are compared, element by element.
      kernel_compares: the same where no XLA compiles it, for gradients of pooling.
        cuDNN's looks for the result in the operand. oneDNN's takes the places from
        what the forward kernel of its own type left; where the types differ, a kernel
        runs that pools the operand again, and takes several times as long.
      chooses_by: numbers of the inputs whose size decides which elements of the others
        pass, so that an error there may turn one value into another.
      forward: the op that makes input 1 from input 0, with the same attributes, and
        leaves its places to this one's kernel; it is there when that is measured.
      opaque: arguments, by OpDef name, with bytes that one kernel leaves for another
        instead of numbers, in a layout that may depend on the kernel's type.
      same_list: whether it works on a tensor list, a TensorArray or a stack, so that
        its element type has to be that of all ops on the same list.
      hands_on_list: whether the lists at its outputs are those at its inputs, in this
        order, or have their element types.
      unmoved: when its kernel, for any device, moves nothing.
      float32_under_xla: whether XLA compiles it in float32 only, whatever the OpDef
        allows.
      fusible: whether it may be in a cluster of elementwise nodes that XLA compiles;
        the conditions are in `elementwise`.
      constant_operands: numbers of the integer inputs whose values XLA needs when it
        compiles a cluster with the op, so that it does so again for other values. An
        op that has some may be in a cluster also where it moves nothing.
    """

    op: str
    role: Role | None
    why: str
    source: str
    attrs: tuple[str, ...] = ("T",)
    float32_ports: tuple[str, ...] = ()
    work: str = "elementwise"
    weights: Weights = Weights((1,))
    kind: Kind = Kind.OTHER
    singular: tuple[int, ...] = ()
    poles: tuple[int, ...] = ()
    zero: bool = False
    steep: bool = False
    subtracts: bool = False
    levels_off: bool = False
    bounded: bool = False
    vanishes: bool = False
    sums: bool = False
    adds_gradients: bool = False
    terms: Terms = Terms.FEW
    adds_squares: bool = False
    accumulates_low: tuple[str, ...] = ()
    native_accumulates_low: tuple[str, ...] | None = None
    gpu_accumulates_low: tuple[str, ...] = ()
    xla_accumulates_low: tuple[str, ...] = ()
    stand_in: str = ""
    selects: bool = False
    compares: tuple[int, ...] = ()
    kernel_compares: tuple[int, ...] = ()
    chooses_by: tuple[int, ...] = ()
    forward: str = ""
    opaque: tuple[str, ...] = ()
    same_list: bool = False
    hands_on_list: bool = False
    unmoved: Unmoved = Unmoved.NEVER
    float32_under_xla: bool = False
    fusible: bool = False
    constant_operands: tuple[int, ...] = ()

    def adds_up_low(
        self, device_type: str, *, native: bool = False, xla: bool = False
    ) -> tuple[str, ...]:
        """The 16-bit types in which sums are accumulated by the kernel that runs.

        Args:
          device_type: "CPU" or "GPU".
          native: whether the device has arithmetic in the type that is asked about.
          xla: whether XLA compiles the op.
        """
        if xla:
            return self.xla_accumulates_low
        if device_type != "CPU":
            return self.gpu_accumulates_low
        if native and self.native_accumulates_low is not None:
            return self.native_accumulates_low
        return self.accumulates_low

    @property
    def multiplies(self) -> bool:
        """Whether each output element is a product of two elements."""
        return self.kind in _PRODUCTS

    @property
    def adds(self) -> bool:
        """Whether each output element is a sum, or a difference, of elements."""
        return self.kind in _SUMS

    @property
    def flows(self) -> tuple[str, ...]:
        """Arguments with a TensorArray's flow: a float32 that only orders the ops."""
        return self.float32_ports if self.same_list or self.hands_on_list else ()

    @property
    def in_frames(self) -> bool:
        """Whether it is control flow of `tf.compat.v1` (frames, dead values)."""
        return self.kind in _FRAMES

    @property
    def copies(self) -> bool:
        """Whether it gives the values of its inputs, in another type maybe."""
        return self.kind in _COPIES

    @property
    def moves(self) -> bool:
        """Whether it gives values of its inputs, at other places maybe."""
        return self.role is Role.MOVE or self.copies

    @property
    def only_reads(self) -> bool:
        """Whether it reads, but never writes, the variable whose handle it gets."""
        return self.kind in _READS

    @property
    def reads_state(self) -> bool:
        """Whether it is a variable or reads one: stateful, but running it does nothing.

        TensorFlow registers such ops as stateful.
        """
        return self.only_reads or self.kind is Kind.VARIABLE

    @property
    def writes_rows(self) -> bool:
        """Whether it writes rows of the variable whose handle it gets, by indices."""
        return self.work == "scatter" and self.kind is Kind.WRITE

    @property
    def in_memory(self) -> bool:
        """Whether its output takes no memory of its own (a constant or a variable)."""
        return self.kind in _IN_MEMORY


_HEADER = "tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h, 2.21"

SOURCES: Mapping[str, str] = {
    "tf:allow": f"AllowList of float16 or oneDNN in {_HEADER}",
    "tf:infer": f"InferList of float16 or oneDNN in {_HEADER}",
    "tf:deny": f"DenyList of float16 or oneDNN in {_HEADER}",
    "tf:clear": f"ClearList of float16 or oneDNN in {_HEADER}",
    "opdef": "the OpDef that TensorFlow 2.21 registers: types allowed, ports fixed",
    "measured": "CPU kernels of TensorFlow 2.21, run on probes in both 16-bit types",
    "definition": "the mathematical definition of the op",
}

WORK = (
    *("matmul", "batch_matmul", "einsum", "conv", "conv_grad_input"),
    "matmul_transposed",  # of few rows with a larger operand that is transposed
    *("conv_grad_filter", "depthwise", "depthwise_grad_input", "rnn"),
    "depthwise_grad_strided",  # the same with windows that are more than one apart
    *("elementwise", "transcendental", "reduce", "softmax", "normalise", "pool"),
    "composite",  # elementwise, of several operations: 16 bits may round after each
    "loss",  # of classes, with its gradient, in one kernel
    *("gather", "copy"),  # moves bytes
    *("scatter", "unique"),  # looks up rows, or values
    "free",  # moves no bytes
)
# Work that costs as other work does where a device has no figure of its own for it.
KIND_OF = {"composite": "elementwise", "matmul_transposed": "matmul"}


def rows(
    role: Role | None, ops: str, why: str, source: str, **facts: Any
) -> tuple[Row, ...]:
    """Makes one row for each of several ops that share all their facts.

    Args:
      role, why, source: as in `Row`.
      ops: OpDef names, separated by spaces.
      **facts: the other attributes of `Row`.
    """
    return tuple(Row(op, role, why, source, **facts) for op in ops.split())


compute = functools.partial(rows, Role.COMPUTE)
follow = functools.partial(rows, Role.FOLLOW)
move = functools.partial(rows, Role.MOVE)
keep = functools.partial(rows, Role.KEEP)
structural = functools.partial(rows, None, source="definition", attrs=())
