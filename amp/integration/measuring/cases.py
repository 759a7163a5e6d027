"""What calibration runs: a table of operations, each with the figure that it measures.

Read by `calibration`. Rows only; nothing is timed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

raw = tf.raw_ops


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """An operation at one size.

    Attributes:
      op: its type in the graph.
      bound: what its time is spent on, one of `profile.BOUNDS`.
      shapes: of the operands that have the type to be measured.
      build: makes the operation from them.
      repeat: how often the measured function runs it.
      chained: whether XLA is measured on a chain of them, each on the result of the
        one before: it is small, or XLA fuses it with its neighbours.
      note: distinguishes cases of the same op and shapes.
      work: what it measures, if not the op's `work` in the op table.
    """

    op: str
    bound: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Any]
    repeat: int = 1
    chained: bool = False
    note: str = ""
    work: str = ""

    def __str__(self) -> str:
        sizes = " ".join("x".join(map(str, shape)) for shape in self.shapes)
        return " ".join(filter(None, (self.op, sizes, self.note)))


def cases(scale: float) -> list[Case]:
    """The table, the most important cases first.

    Args:
      scale: multiplies the sizes that grow with the batch. At 1 an operation
        takes about a millisecond on two cores; a GPU needs more to be kept busy.
    """

    def many(size: int) -> int:
        return max(1, round(size * scale))

    return [
        *_tiny(),
        *_products(many),
        *_elementwise(many),
        *_convolutions(many),
        *_others(many),
    ]


def _matmul(**flags: bool) -> Callable[..., Any]:
    return lambda a, b: tf.matmul(a, b, **flags)


CALL = "PartitionedCall"  # of a function that XLA compiles, from a graph


def _tiny() -> list[Case]:
    image, window = (1, 4, 4, 8), (3, 3, 8, 8)
    twice = tf.function(lambda x: x + x, jit_compile=True, autograph=False)
    return [
        Case(CALL, "start", ((8,),), twice, 64, chained=True),
        Case("AddV2", "start", ((8,), (8,)), _op(raw.AddV2), 256, chained=True),
        Case("MatMul", "start", ((8, 16), (16, 16)), _matmul(), 128, chained=True),
        Case("Conv2D", "start", (image, window), _conv, 64, chained=True),
        Case("Conv2DBackpropInput", "start", (window, image), _grad_input(image), 64),
        Case("Conv2DBackpropFilter", "start", (image, image), _grad_filter(window), 64),
    ]


def _products(many: Callable[[int], int]) -> list[Case]:
    wide = (many(1024), many(1024))
    heads, rows = many(32), 128
    return [
        Case("MatMul", "arithmetic", ((many(512), 512), (512, 512)), _matmul(), 2),
        Case("MatMul", "arithmetic", (wide, wide), _matmul(), note="square"),
        Case(
            *("MatMul", "arithmetic", ((many(256), 1024), (1024, 1024))),
            _matmul(transpose_b=True),
            note="second transposed",
        ),
        Case(
            *("MatMul", "arithmetic", ((1024, many(256)), (1024, many(1024)))),
            _matmul(transpose_a=True),
            note="first transposed",
        ),
        Case(
            "MatMul",
            "bytes",
            ((16, many(2048)), (many(2048), many(1024))),
            _matmul(),
            4,
            note="flat",
        ),
        _flat_transposed(many(1024), many(2048)),
        _flat_transposed(many(650), many(1950)),  # no power of two
        Case(
            "MatMul", "bytes", ((many(16384), 128), (128, 8)), _matmul(), 8, note="tall"
        ),
        Case(
            *("BatchMatMulV2", "arithmetic", ((heads, rows, 64), (heads, rows, 64))),
            lambda a, b: raw.BatchMatMulV2(x=a, y=b, adj_y=True),
        ),
        Case(
            *("BatchMatMulV2", "arithmetic", ((heads, rows, rows), (heads, rows, 64))),
            lambda a, b: raw.BatchMatMulV2(x=a, y=b),
        ),
    ]


def _flat_transposed(width: int, rows: int) -> Case:
    return Case(
        *("MatMul", "bytes", ((16, width), (rows, width))),
        _matmul(transpose_b=True),
        4,
        note="flat, second transposed",
        work="matmul_transposed",
    )


def _conv(images: Any, window: Any) -> Any:
    return tf.nn.conv2d(images, window, 1, "SAME")


def _grad_input(shape: tuple[int, ...]) -> Callable[..., Any]:
    return lambda window, error: raw.Conv2DBackpropInput(
        input_sizes=list(shape),
        filter=window,
        out_backprop=error,
        strides=[1, 1, 1, 1],
        padding="SAME",
    )


def _grad_filter(shape: tuple[int, ...]) -> Callable[..., Any]:
    return lambda images, error: raw.Conv2DBackpropFilter(
        input=images,
        filter_sizes=list(shape),
        out_backprop=error,
        strides=[1, 1, 1, 1],
        padding="SAME",
    )


def _convolutions(many: Callable[[int], int]) -> list[Case]:
    found = []
    for window, size in (((1, 1, 512, 512), 14), ((3, 3, 64, 64), 28)):
        image = (many(8), size, size, window[2])
        note = f"{window[0]}x{window[1]}"
        found += [
            Case("Conv2D", "arithmetic", (image, window), _conv, 2),
            Case(
                *("Conv2DBackpropInput", "arithmetic", (window, image)),
                _grad_input(image),
            ),
            Case(
                *("Conv2DBackpropFilter", "arithmetic", (image, image)),
                _grad_filter(window),
                note=note,
            ),
        ]
    return found + _depthwise((many(8), 14, 14, 128), (3, 3, 128, 1))


def _depthwise(image: tuple[int, ...], window: tuple[int, ...]) -> list[Case]:
    same = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    apart = {**same, "strides": [1, 2, 2, 1]}
    name = "DepthwiseConv2dNative"
    smaller = (image[0], image[1] // 2, image[2] // 2, image[3])
    return [
        Case(
            *(name, "arithmetic", (image, window)),
            lambda x, w: raw.DepthwiseConv2dNative(input=x, filter=w, **same),
        ),
        Case(
            *(f"{name}BackpropInput", "arithmetic", (window, image)),
            lambda w, dy: raw.DepthwiseConv2dNativeBackpropInput(
                input_sizes=list(image), filter=w, out_backprop=dy, **same
            ),
            work="depthwise",
        ),
        Case(
            *(f"{name}BackpropFilter", "arithmetic", (image, image)),
            lambda x, dy: raw.DepthwiseConv2dNativeBackpropFilter(
                input=x, filter_sizes=list(window), out_backprop=dy, **same
            ),
        ),
        Case(
            *(f"{name}BackpropInput", "arithmetic", (window, smaller)),
            lambda w, dy: raw.DepthwiseConv2dNativeBackpropInput(
                input_sizes=list(image), filter=w, out_backprop=dy, **apart
            ),
            note="strided",
            work="depthwise_grad_strided",
        ),
    ]


def _op(op: Callable[..., Any], *names: str) -> Callable[..., Any]:
    names = names or ("x", "y")
    return lambda *values: op(**dict(zip(names, values, strict=True)))


def _elementwise(many: Callable[[int], int]) -> list[Case]:
    size = (many(2048), 1024)
    two = (size, size)
    rows: Sequence[tuple[str, tuple[Any, ...], Callable[..., Any]]] = (
        ("AddV2", two, _op(raw.AddV2)),
        ("Mul", two, _op(raw.Mul)),
        ("Relu", (size,), _op(raw.Relu, "features")),
        ("ReluGrad", two, _op(raw.ReluGrad, "gradients", "features")),
        ("BiasAdd", (size, size[1:]), _op(raw.BiasAdd, "value", "bias")),
        ("AddN", two, lambda a, b: raw.AddN(inputs=[a, b])),
        ("Relu6", (size,), _op(raw.Relu6, "features")),
        ("SigmoidGrad", two, _op(raw.SigmoidGrad, "y", "dy")),
        ("SquaredDifference", two, _op(raw.SquaredDifference)),
        ("Tanh", (size,), _op(raw.Tanh, "x")),
        ("Sigmoid", (size,), _op(raw.Sigmoid, "x")),
        ("Erf", (size,), _op(raw.Erf, "x")),
        ("Softplus", (size,), _op(raw.Softplus, "features")),
    )
    found = [Case(op, "bytes", s, build, 4, chained=True) for op, s, build in rows]
    small = (many(32), 1024)
    found.append(
        Case("AddV2", "bytes", (small, small), _op(raw.AddV2), 64, chained=True)
    )
    down = Case("Cast", "bytes", (size,), lambda x: x, 4, note="down")
    return [*found, down, dataclasses.replace(down, note="up")]


def _others(many: Callable[[int], int]) -> list[Case]:
    rows, image = (many(2048), 1024), (many(32), 28, 28, 64)
    half = (image[0], 14, 14, 64)
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    pairs = list(range(0, 2 * rows[0], 2))
    return [
        Case(
            "Sum", "bytes", (rows,), lambda x: tf.reduce_sum(x, 0), 4, note="of columns"
        ),
        Case("Mean", "bytes", (rows,), lambda x: tf.reduce_mean(x, 1), 4),
        Case("BiasAddGrad", "bytes", (rows,), _op(raw.BiasAddGrad, "out_backprop"), 4),
        Case("Softmax", "bytes", ((many(8192), 128),), _op(raw.Softmax, "logits"), 2),
        Case("FusedBatchNormV3", "bytes", (image,), _batch_norm),
        Case("FusedBatchNormGradV3", "bytes", (image, image), _batch_norm_grad),
        Case("MaxPool", "bytes", (image,), lambda x: raw.MaxPool(input=x, **window), 4),
        Case(
            *("MaxPoolGrad", "bytes", (image, half, half)),
            lambda x, y, dy: raw.MaxPoolGrad(
                orig_input=x, orig_output=y, grad=dy, **window
            ),
        ),
        Case("AvgPool", "bytes", (image,), lambda x: raw.AvgPool(value=x, **window), 4),
        Case("ConcatV2", "bytes", (rows, rows), lambda a, b: tf.concat([a, b], 1), 2),
        Case(
            *("Transpose", "bytes", ((many(128), 128, 64),)),
            lambda x: tf.transpose(x, [0, 2, 1]),
            2,
        ),
        Case(
            *("GatherV2", "bytes", ((2 * rows[0], 256),)),
            lambda x: tf.gather(x, pairs),
            4,
        ),
    ]


def _batch_norm(images: Any) -> Any:
    ones = tf.ones(images.shape[-1:])
    return raw.FusedBatchNormV3(
        x=images, scale=ones, offset=ones, mean=ones[:0], variance=ones[:0]
    )


def _batch_norm_grad(images: Any, error: Any) -> Any:
    ones = tf.ones(images.shape[-1:])
    return raw.FusedBatchNormGradV3(
        y_backprop=error,
        x=images,
        scale=ones,
        reserve_space_1=ones,
        reserve_space_2=ones,
        reserve_space_3=ones[:0],
    )
