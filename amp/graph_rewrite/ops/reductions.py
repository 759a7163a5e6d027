"""Rows of the op table: ops that normalise, pool, resize, reduce or scatter.

Facts only; nothing is decided here.
"""

from __future__ import annotations

from amp.graph_rewrite.ops.row import BFLOAT16, BOTH, FLOAT16, follow, keep

_STATISTICS = ("scale", "offset", "mean", "variance", "batch_mean", "batch_variance")
_STATISTICS_GRAD = ("scale", "scale_backprop", "offset_backprop")
_SAVED = tuple(f"reserve_space_{number}" for number in range(1, 6))

NORMALISATION = (
    follow(
        "FusedBatchNormV2",
        "data low, statistics float32 by OpDef",
        "tf:infer",
        float32_ports=(*_STATISTICS, *_SAVED[:2]),
        work="normalise",
    ),
    follow(
        "FusedBatchNormV3 _FusedBatchNormEx",
        "data low, statistics float32",
        "tf:infer",
        float32_ports=(*_STATISTICS, *_SAVED[:3]),
        work="normalise",
        opaque=("reserve_space_3",),
    ),
    follow(
        "FusedBatchNormGradV2",
        "data low, statistics and their gradients float32",
        "tf:infer",
        float32_ports=(*_STATISTICS_GRAD, *_SAVED[:4]),
        work="normalise",
    ),
    follow(
        "FusedBatchNormGradV3",
        "data low, statistics and their gradients float32",
        "tf:infer",
        float32_ports=(*_STATISTICS_GRAD, *_SAVED),
        work="normalise",
        opaque=("reserve_space_3",),
    ),
    keep(
        "FusedBatchNorm FusedBatchNormGrad",
        "its T may only be float32; the later versions split data and statistics",
        "opdef",
        work="normalise",
    ),
    follow(
        "LRN LRNGrad",
        "divides by a sum of squares next to it",
        "definition",
        work="normalise",
        accumulates_low=FLOAT16,
    ),
)

POOLING = (
    follow(
        "AvgPool",
        "mean of a window",
        "tf:infer",
        work="pool",
        sums=True,
        accumulates_low=BOTH,
    ),
    follow(
        "AvgPool3D",
        "mean of a window",
        "tf:infer",
        work="pool",
        sums=True,
        accumulates_low=BFLOAT16,
    ),
    follow(
        "AvgPool3DGrad",
        "mean of a window",
        "tf:infer",
        work="pool",
        accumulates_low=BFLOAT16,
    ),
    follow(
        "AvgPoolGrad", "mean of a window", "tf:infer", work="pool", accumulates_low=BOTH
    ),
    follow(
        "MaxPool MaxPool3D MaxPoolV2",
        "selects; the gradient must see the same operand, or it finds no maximum",
        "tf:clear",
        work="pool",
        selects=True,
    ),
    follow(
        "MaxPoolGrad MaxPoolGradV2",
        "adds the gradients of windows that overlap",
        "tf:clear",
        work="pool",
        gpu_compares=(0, 1),
        accumulates_low=BOTH,
    ),
    follow(
        "MaxPool3DGrad",
        "adds the gradients of windows that overlap; two types, which turn together",
        "tf:clear",
        attrs=("T", "TInput"),
        work="pool",
        gpu_compares=(0, 1),
        accumulates_low=BFLOAT16,
    ),
    follow(
        "MaxPool3DGradGrad MaxPoolGradGrad MaxPoolGradGradV2",
        "selects by comparing",
        "tf:clear",
        work="pool",
        gpu_compares=(0, 1),
    ),
    follow(
        "MaxPoolWithArgmax MaxPoolGradGradWithArgmax",
        "MaxPool that hands its choice to the gradient",
        "definition",
        work="pool",
    ),
    follow(
        "MaxPoolGradWithArgmax",
        "MaxPool that hands its choice to the gradient",
        "definition",
        work="pool",
        accumulates_low=BOTH,
    ),
    follow(
        "ResizeNearestNeighborGrad",
        "adds the gradients of copies",
        "tf:clear",
        work="reduce",
        sums=True,
        accumulates_low=BOTH,
        gpu_accumulates_low=BOTH,
    ),
    follow(
        "ResizeBilinear",
        "reads 16 bits, computes and returns float32 by OpDef",
        "tf:clear",
        float32_ports=("resized_images",),
    ),
    follow(
        "ResizeBilinearGrad",
        "takes float32 by OpDef, adds up in float32, returns 16 bits",
        "measured",
        float32_ports=("grads",),
        sums=True,
    ),
)

REDUCTIONS = (
    follow(
        "Mean",
        "follows, as TensorFlow infers it with oneDNN; it denies it in half because "
        "of kernels that add up in half, which accumulates_low names",
        "tf:infer",
        work="reduce",
        sums=True,
        accumulates_low=FLOAT16,
    ),
    follow(
        "Sum",
        "follows, as TensorFlow infers it with oneDNN; it denies it in half because "
        "of kernels that add up in half, which accumulates_low names",
        "tf:infer",
        work="reduce",
        sums=True,
        accumulates_low=FLOAT16,
        gpu_accumulates_low=BOTH,
    ),
    follow(
        "BiasAddGrad",
        "sum to one value a channel, as Sum",
        "tf:infer",
        work="reduce",
        sums=True,
        accumulates_low=BFLOAT16,
    ),
    keep(
        "Max Min",
        "its gradient compares operand and result for equality; TensorFlow clears it, "
        "but one rounded without the other would match nowhere",
        "tf:clear",
        selects=True,
    ),
    follow(
        "ArgMax ArgMin",
        "selects; a float32 operand may turn into a tie",
        "tf:clear",
        work="reduce",
        bounded=True,
    ),
    follow(
        "TopK TopKV2",
        "selects; a float32 operand may turn into a tie",
        "tf:clear",
        work="reduce",
        selects=True,
    ),
    follow(
        "Cumsum",
        "running sum",
        "definition",
        work="reduce",
        sums=True,
        running=True,
        accumulates_low=BOTH,
        gpu_accumulates_low=BOTH,
    ),
    follow(
        "SegmentMean SegmentSum UnsortedSegmentSum",
        "sum a segment",
        "definition",
        work="reduce",
        sums=True,
        accumulates_low=BOTH,
        gpu_accumulates_low=BOTH,
    ),
    follow(
        "SparseSegmentMean SparseSegmentSqrtN SparseSegmentSum",
        "sum a segment",
        "definition",
        work="reduce",
        sums=True,
    ),
    follow(
        "SegmentMax UnsortedSegmentMax UnsortedSegmentMin",
        "selects by comparing",
        "definition",
        work="reduce",
        selects=True,
    ),
    follow(
        "ScatterNd",
        "adds where indices repeat",
        "tf:clear",
        work="gather",
        sums=True,
        accumulates_low=BOTH,
        gpu_accumulates_low=BOTH,
    ),
    follow(
        "TensorScatterAdd TensorScatterSub",
        "adds where indices meet",
        "definition",
        work="gather",
        sums=True,
        accumulates_low=BOTH,
        gpu_accumulates_low=BOTH,
    ),
    follow(
        "MirrorPadGrad",
        "folds the mirrored edge back by adding it",
        "tf:clear",
        work="copy",
    ),
    keep(
        "L2Loss",
        "sum of squares: one value of 362 is inf in half",
        "tf:deny",
        work="reduce",
        sums=True,
    ),
    keep(
        "Prod",
        "TensorFlow infers it, but it rounds once a factor and leaves the range fast",
        "measured",
        work="reduce",
        accumulates_low=BOTH,
    ),
    keep(
        "Cumprod",
        "rounds once a factor and leaves the range fast",
        "measured",
        work="reduce",
        accumulates_low=BOTH,
    ),
    keep(
        "CumulativeLogsumexp",
        "10,000 ones end at 7.2 or 5.2 and not at 10.2",
        "measured",
        work="reduce",
        sums=True,
        running=True,
        accumulates_low=BOTH,
    ),
)
