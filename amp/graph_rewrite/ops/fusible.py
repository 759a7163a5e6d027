"""The elementwise ops that XLA may compile as one loop, and what it needs of them.

Facts only, each row tried by a test that compiles it; no graph and no choice may enter.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# One output, one element of it from one element of each operand (which may be
# broadcast), compiled by TensorFlow's bridge to XLA in 2.21, and the same NaN, infinity
# or finite value as TensorFlow's kernel on every NaN, infinity, zero and large operand.
#
# Left out although XLA compiles them, as measured on the CPU (TensorFlow 2.21):
# - Maximum, Minimum, ClipByValue: max(1, NaN) is 1 in XLA's code and NaN in the kernel.
# - SqrtGrad, RsqrtGrad, ReciprocalGrad: 0 / 0 is NaN; the kernels give 0 for dy = 0.
# - EluGrad, SeluGrad: read the sign of a NaN the other way.
# - Rsqrt: 4 times as slow as the kernel.
#
# ReluGrad and Relu6Grad give 0 for a unit that is off, whatever the gradient; the CPU
# kernel multiplies, so that there an infinite gradient of such a unit is NaN.
_POINTWISE = """
    Add AddV2 AddN BiasAdd Mul MulNoNan Sub RealDiv DivNoNan SquaredDifference
    Abs Neg Sign Ceil Floor Round Square Sqrt Reciprocal
    Exp Expm1 Log Log1p Tanh Sigmoid Erf Erfc Softplus Softsign
    Relu Relu6 LeakyRelu Elu Selu
    TanhGrad SigmoidGrad SoftplusGrad SoftsignGrad ReluGrad Relu6Grad LeakyReluGrad
    Equal NotEqual Greater GreaterEqual Less LessEqual Select SelectV2
    Cast Identity StopGradient PreventGradient Snapshot Squeeze
"""
# The other rows: operands that say a shape and so have to be constants.
_SHAPED = {"Reshape": (1,), "ExpandDims": (1,), "BroadcastTo": (1,)}
_ROWS: dict[str, tuple[int, ...]] = dict.fromkeys(_POINTWISE.split(), ())

FUSIBLE: Mapping[str, tuple[int, ...]] = MappingProxyType(_ROWS | _SHAPED)
"""By op, the operands that have to be constants of the graph."""

# A graph with one of these has frames, or values that may be dead.
CONTROL_FLOW = frozenset(
    {
        *("Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge", "LoopCond"),
        *("Enter", "RefEnter", "Exit", "RefExit", "NextIteration", "RefNextIteration"),
    }
)
