"""Rows of the op table: elementwise arithmetic and activations, softmax included.

Facts only; nothing is decided here.
"""

from __future__ import annotations

from amp.graph_rewrite.ops.accumulation import BOTH, FLOAT16, Terms
from amp.graph_rewrite.ops.row import Kind, follow, keep

# An op is marked fusible if it has one output, each element of which depends on one
# element of each operand (which may be broadcast), if TensorFlow 2.21 compiles it with
# XLA, and if XLA's code gives the same NaN, infinity or finite value as TensorFlow's
# kernel for NaN, infinite, zero and large operands.
#
# Not marked although XLA compiles them, as measured on the CPU (TensorFlow 2.21):
# - Maximum, Minimum, ClipByValue: max(1, NaN) is 1 in XLA's code and NaN in the kernel.
# - SqrtGrad, RsqrtGrad, ReciprocalGrad: 0 / 0 is NaN; the kernels give 0 for dy = 0.
# - EluGrad, SeluGrad: take the other branch for a NaN.
# - Rsqrt: 4 times as slow as the kernel.
#
# Fused ReluGrad and Relu6Grad give 0 where the activation is 0, whatever the gradient;
# the CPU kernel multiplies by 0, which makes an infinite gradient NaN there.

ELEMENTWISE = (
    follow(
        "Add AddV2",
        "sums of two, products",
        "tf:infer",
        kind=Kind.SUM,
        fusible=True,
    ),
    follow(
        "Sub",
        "sums of two, products",
        "tf:infer",
        kind=Kind.SUM,
        subtracts=True,
        fusible=True,
    ),
    follow("Mul", "sums of two, products", "tf:infer", kind=Kind.PRODUCT, fusible=True),
    follow(
        "BiasAdd",
        "sums of two, products",
        "tf:infer",
        kind=Kind.BIAS,
        fusible=True,
    ),
    follow("BiasAddV1", "sums of two, products", "tf:infer"),
    follow(
        "AddN",
        "adds its inputs; few in a gradient",
        "tf:infer",
        kind=Kind.SUM,
        adds_gradients=True,
        terms=Terms.INPUTS,
        accumulates_low=BOTH,
        gpu_accumulates_low=BOTH,
        xla_accumulates_low=BOTH,
        fusible=True,
    ),
    follow(
        "AccumulateNV2",
        "adds its inputs, as AddN",
        "definition",
        terms=Terms.INPUTS,
        accumulates_low=BOTH,
        gpu_accumulates_low=BOTH,
        xla_accumulates_low=BOTH,
    ),
    follow(
        "MulNoNan",
        "a product; 0 wins over inf and NaN",
        "definition",
        kind=Kind.PRODUCT,
        fusible=True,
    ),
    follow(
        "Square",
        "one product; inf from 256 in half",
        "tf:infer",
        kind=Kind.SQUARE,
        fusible=True,
    ),
    follow(
        "SquaredDifference",
        "one product; inf from 256 in half",
        "tf:infer",
        work="composite",
        kind=Kind.SQUARE,
        subtracts=True,
        fusible=True,
    ),
    follow(
        "RealDiv", "a quotient; one rounding", "tf:infer", singular=(1,), fusible=True
    ),
    follow(
        "Reciprocal",
        "a quotient; one rounding",
        "tf:infer",
        work="composite",
        singular=(0,),
        fusible=True,
    ),
    follow(
        "Inv", "a quotient; one rounding", "tf:infer", work="composite", singular=(0,)
    ),
    follow("Div", "RealDiv on floats", "definition", singular=(1,)),
    follow(
        "DivNoNan",
        "a quotient; jumps to 0 where y turns 0",
        "definition",
        singular=(1,),
        fusible=True,
    ),
    follow(
        "Sqrt",
        "halves the exponent; steep only next to 0",
        "tf:infer",
        singular=(0,),
        fusible=True,
    ),
    follow(
        "Rsqrt",
        "halves the exponent; steep only next to 0",
        "tf:infer",
        work="composite",
        singular=(0,),
    ),
    follow(
        "SqrtGrad",
        "dy / 2y; a quotient",
        "definition",
        work="composite",
        singular=(0,),
    ),
    follow(
        "Log",
        "compresses the range",
        "tf:infer",
        work="transcendental",
        singular=(0,),
        steep=True,
        fusible=True,
    ),
    follow(
        "Log1p",
        "compresses the range",
        "tf:infer",
        work="transcendental",
        steep=True,
        fusible=True,
    ),
    keep(
        "RsqrtGrad ReciprocalGrad InvGrad",
        "y cubed or squared comes first: inf in half at y=300, result -1350 or -9",
        "measured",
        work="composite",
    ),
    keep(
        "FloorDiv",
        "TensorFlow infers it, but a rounded operand is off by a whole unit or more",
        "measured",
        singular=(1,),
        steep=True,
        kind=Kind.ROUND,
    ),
    keep(
        "TruncateDiv",
        "a rounded operand is off by a whole unit or more",
        "definition",
        steep=True,
        kind=Kind.ROUND,
    ),
    keep(
        "FloorMod Mod TruncateMod",
        "a rounded operand is off by a whole unit or more",
        "definition",
        steep=True,
        kind=Kind.REMAINDER,
    ),
    keep(
        "Exp",
        "inf from 12 in half; rounding of the argument is relative error of the result",
        "tf:deny",
        work="transcendental",
        steep=True,
        vanishes=True,
        fusible=True,
    ),
    keep(
        "Expm1",
        "inf from 12 in half; rounding of the argument is relative error of the result",
        "tf:deny",
        work="transcendental",
        steep=True,
        fusible=True,
    ),
    keep(
        "Sin Cos Tan Sinh Cosh",
        "rounding of a large argument is an error of the result of any size",
        "definition",
        work="transcendental",
        steep=True,
    ),
    keep(
        "Acos Asin Acosh Atanh",
        "their slope is infinite at the ends of their range",
        "definition",
        work="transcendental",
        steep=True,
    ),
    keep(
        "Erfinv Ndtri Digamma Polygamma Zeta Expint",
        "they have poles, or an infinite slope at the ends of their range",
        "definition",
        work="transcendental",
        steep=True,
    ),
    keep(
        "BesselI0 BesselI1 BesselJ0 BesselJ1 BesselK0 BesselK1 BesselY0 BesselY1",
        "they grow as exponentials do, or turn as sines do",
        "definition",
        work="transcendental",
        steep=True,
    ),
    keep("Pow", "range and error grow with the exponent", "tf:deny", singular=(0,)),
    keep(
        "Xdivy Xlogy",
        "made for losses: logs and quotients of tiny probabilities",
        "definition",
        work="transcendental",
        singular=(1,),
    ),
    keep(
        "Xlog1py",
        "made for losses: logs and quotients of tiny probabilities",
        "definition",
        work="transcendental",
    ),
    follow("Abs", "sign bit; rounds nothing", "tf:clear", fusible=True),
    follow("Neg", "sign bit; rounds nothing", "tf:clear", subtracts=True, fusible=True),
    follow(
        "Maximum Minimum ClipByValue",
        "selects by comparing",
        "tf:clear",
        selects=True,
    ),
    follow(
        "Ceil Floor Round",
        "of what rounding has left no fraction, as from 128 on in bfloat16",
        "tf:clear",
        steep=True,
        fusible=True,
        kind=Kind.ROUND,
    ),
    keep(
        "Rint",
        "of what rounding has left no fraction, as from 128 on in bfloat16",
        "definition",
        steep=True,
        kind=Kind.ROUND,
    ),
    follow(
        "Sign",
        "exact on a 16-bit operand",
        "tf:clear",
        bounded=True,
        fusible=True,
        kind=Kind.SIGN,
    ),
    follow(
        "Equal Greater GreaterEqual Less LessEqual NotEqual",
        "exact on 16-bit operands; a float32 operand may turn into a tie",
        "tf:clear",
        bounded=True,
        compares=(0, 1),
        fusible=True,
    ),
)

ACTIVATIONS = (
    follow(
        "Relu",
        "selects by comparing",
        "tf:clear",
        fusible=True,
    ),
    follow(
        "Relu6",
        "selects by comparing",
        "tf:clear",
        work="composite",
        bounded=True,
        fusible=True,
    ),
    follow(
        "Relu6Grad ReluGrad",
        "selects by comparing",
        "tf:clear",
        chooses_by=(1,),
        fusible=True,
    ),
    follow("LeakyRelu", "selects, one product", "tf:infer", fusible=True),
    follow(
        "LeakyReluGrad",
        "selects, one product",
        "tf:infer",
        chooses_by=(1,),
        fusible=True,
    ),
    follow(
        "Elu",
        "exp of negatives only",
        "tf:infer",
        work="transcendental",
        levels_off=True,
        fusible=True,
    ),
    follow(
        "Selu",
        "exp of negatives only",
        "tf:infer",
        work="transcendental",
        levels_off=True,
        fusible=True,
    ),
    follow("EluGrad SeluGrad", "selects, one product", "tf:infer", work="composite"),
    follow(
        "Sigmoid Erfc",
        "bounded",
        "tf:infer",
        work="transcendental",
        bounded=True,
        fusible=True,
    ),
    follow(
        "Tanh Erf",
        "bounded",
        "tf:infer",
        work="transcendental",
        bounded=True,
        levels_off=True,
        fusible=True,
    ),
    follow(
        "SigmoidGrad TanhGrad",
        "products of bounded factors",
        "tf:infer",
        work="composite",
        fusible=True,
    ),
    follow(
        "Softplus",
        "linear at most",
        "tf:infer",
        work="transcendental",
        vanishes=True,
        fusible=True,
    ),
    follow(
        "SoftplusGrad",
        "dy times a sigmoid",
        "tf:infer",
        work="transcendental",
        fusible=True,
    ),
    follow(
        "Softsign",
        "denominator at least 1",
        "tf:infer",
        work="composite",
        bounded=True,
        levels_off=True,
        fusible=True,
    ),
    follow("SoftsignGrad", "denominator at least 1", "tf:infer", fusible=True),
    follow(
        "Softmax",
        "the maximum is taken off first; adds up along the last axis",
        "tf:infer",
        work="softmax",
        bounded=True,
        accumulates_low=FLOAT16,
    ),
    follow(
        "LogSoftmax",
        "the maximum is taken off first; adds up along the last axis",
        "tf:infer",
        work="softmax",
        accumulates_low=FLOAT16,
    ),
    keep(
        "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
        "log of tiny probabilities, and the head of every gradient",
        "tf:deny",
        work="loss",
    ),
)
