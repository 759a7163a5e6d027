"""Ops of which TensorFlow's graph passes make one kernel, by kind of device.

A table of what was observed; no graph is walked and nothing is priced here.

For a CPU: TensorFlow 2.21 with oneDNN, seen in the graphs that the remapper made
(`post_optimization_graph` of the run metadata), in float32 and in bfloat16 alike;
`test_epilogues` looks them up again. Not merged there, among others: an activation that
follows a product without a bias; a GELU, whose forward pass keeps what its gradient
reads; batch normalisation, addition and Relu. For a GPU: read in the source of the
remapper (`IsGpuCompatible` in remapper.cc), with TensorFlow's default settings, where
cublasLt's and cuDNN's runtime fusions are off; seen so on an H200 with TensorFlow 2.21.
"""

from __future__ import annotations

import dataclasses
import enum


class Other(enum.Enum):
    """What the other operand of a step has to be."""

    ANY = "anything"
    BIAS = "one element for each channel of the product"
    SAME = "of the same shape"
    MASK = "of rank 4, with one element along axis 1, the heads"
    VECTOR = "one element for each place along the last axis"
    NUMBER = "a single number"
    ITSELF = "what the first node of the chain reads"


class First(enum.Enum):
    """What the first node of a chain has to be."""

    ANY = "anything"
    WINDOW = "a convolution whose filter is larger than 1 by 1"
    ROWS = "a normalisation whose scale is filled in, for rows of an unknown number"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One node of a chain after the first.

    Attributes:
      ops: any of these.
      other: what its other operand has to be.
      either: whether the chain may come in at either operand instead of the first.
    """

    ops: frozenset[str]
    other: Other = Other.ANY
    either: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """A chain of nodes, each the only reader of the one before.

    Attributes:
      device: the device type.
      first: the ops that it may begin with.
      steps: the nodes that are merged into the first.
      dtypes: the types in which it is merged; all its nodes have the same.
      condition: on the first node.
      whole: whether it is merged as a whole or not at all, so that it takes all its
        nodes for any of them to be merged.
      merged: False for a chain in whose presence nothing is merged, not even the
        shorter chains that it begins with.
    """

    device: str
    first: frozenset[str]
    steps: tuple[Step, ...]
    dtypes: frozenset[str] = frozenset({"float32", "bfloat16"})
    condition: First = First.ANY
    whole: bool = False
    merged: bool = True


def _ops(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _cpu(first: str, *steps: Step, whole: bool = False, merged: bool = True) -> Chain:
    return Chain("CPU", _ops(first), steps, whole=whole, merged=merged)


def _then(text: str) -> Step:
    return Step(_ops(text))


_CONVOLUTIONS = "Conv2D Conv3D DepthwiseConv2dNative"
_ADDS = _ops("Add AddV2")
_BIAS_ADD = _then("BiasAdd")
_SEMANTIC = Step(_ADDS, Other.BIAS, either=True)  # an addition that is a bias
_BIASES = (_BIAS_ADD, _SEMANTIC)
_SIDE = Step(_ADDS, Other.SAME, either=True)  # a residual connection

# The ops that fill in the scale of a normalisation of rows (`First.ROWS`).
FILLS = _ops("Fill")

CHAINS: tuple[Chain, ...] = (
    *(
        chain
        for bias in _BIASES
        for chain in (
            _cpu(f"MatMul {_CONVOLUTIONS}", bias),
            _cpu(f"MatMul {_CONVOLUTIONS}", bias, _then("Relu Relu6 Elu")),
            _cpu("MatMul Conv2D Conv3D", bias, _then("LeakyRelu")),
            _cpu("MatMul", bias, _then("Tanh Sigmoid")),
        )
    ),
    _cpu("MatMul Conv2D Conv3D", _BIAS_ADD, _SIDE),
    _cpu("Conv2D Conv3D", _BIAS_ADD, _SIDE, _then("Relu Relu6 Elu LeakyRelu")),
    _cpu("MatMul", _BIAS_ADD, _SIDE, _then("Relu Relu6 Elu"), merged=False),
    _cpu("DepthwiseConv2dNative", _BIAS_ADD, _SIDE, merged=False),
    # Grappler gathers additions that follow each other before it looks for biases.
    _cpu(f"MatMul {_CONVOLUTIONS}", _SEMANTIC, Step(_ADDS, either=True), merged=False),
    *(
        _cpu("BatchMatMulV2", scale, Step(_ADDS, Other.MASK, either=True), whole=True)
        for scale in (
            Step(_ops("Mul"), Other.NUMBER, either=True),
            Step(_ops("RealDiv"), Other.NUMBER),  # a product, once constants are folded
        )
    ),
    _cpu("FusedBatchNormV3", _then("Relu")),
    _cpu("Sigmoid", Step(_ops("Mul"), Other.ITSELF, either=True)),
    *(
        Chain(
            device,
            _ops("FusedBatchNormV3"),
            (
                _then("Reshape"),
                Step(_ops("Mul"), Other.VECTOR, either=True),
                Step(_ADDS, Other.VECTOR, either=True),
            ),
            condition=First.ROWS,
            whole=True,
        )
        for device in ("CPU", "GPU")  # where TensorFlow has oneDNN
    ),
    Chain(
        "GPU",
        _ops("Conv2D"),
        (_BIAS_ADD, _then("Relu")),
        dtypes=frozenset({"float32"}),
        condition=First.WINDOW,
        whole=True,
    ),
)
# The gradients of a bias and of a filter, and the input of each at which they read one
# tensor. oneDNN's graph pass makes one kernel of the two, which adds up in float32
# (GetConv2DBackpropFilterOrBiasAddGrad in mkl_layout_pass.cc, tensorflow/core/
# common_runtime; seen in TensorFlow 2.21 in float32 and bfloat16).
BIAS_GRADIENT, FILTER_GRADIENT = ("BiasAddGrad", 0), ("Conv2DBackpropFilter", 2)
