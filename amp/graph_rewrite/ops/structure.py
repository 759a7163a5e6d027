"""Rows of the op table: constants, casts, variables and control flow; special cases.

`STRUCTURE` rows have no role: they tell algorithms on graphs what the ops are, but are
not on the white-list, so that their types are never chosen. `EXCLUDED` rows have a role
that differs from TensorFlow's lists or is `KEEP`, each for its own reason.
"""

from __future__ import annotations

from amp.graph_rewrite.ops.row import Kind, follow, keep, structural

EXCLUDED = (
    follow(
        "Rank Shape ShapeN Size",
        "reads no value; may read the shape off the 16-bit tensor",
        "tf:clear",
        work="free",
        kind=Kind.SHAPE,
        bounded=True,
    ),
    keep(
        "IsFinite IsInf IsNan",
        "TensorFlow clears it, but it asks about the range, which a cast narrows",
        "definition",
        kind=Kind.CHECK,
        bounded=True,
    ),
    keep(
        "CheckNumerics",
        "TensorFlow clears it, but it must not report what our own cast overflows",
        "definition",
        kind=Kind.GUARD,
    ),
    keep(
        "Where",
        "TensorFlow clears it, but a tiny value that turns 0 changes a shape",
        "definition",
        work="reduce",
        bounded=True,
    ),
    keep(
        "ResourceGather ResourceGatherNd",
        "its type is the variable's; only the result may be cast",
        "opdef",
        attrs=("dtype",),
        work="gather",
        kind=Kind.READ_PART,
    ),
    keep(
        "StatelessWhile While",
        "TensorFlow clears it; here a loop turns with its body, never as one node",
        "definition",
        work="free",
    ),
    keep(
        "SaveV2",
        "a checkpoint keeps its types",
        "tf:deny",
        attrs=("dtypes",),
        work="copy",
    ),
)


# No role on purpose: the rewriter adds Cast, rounds Const, and may not choose the type
# of the others.
STRUCTURE = (
    structural(
        "Cast", "made where types meet", work="cast", kind=Kind.CAST, fusible=True
    ),
    structural(
        "Const",
        "rounded where it is read in 16 bits",
        work="free",
        kind=Kind.CONSTANT,
    ),
    structural(
        "Placeholder", "its caller gives the type", work="free", kind=Kind.PLACEHOLDER
    ),
    structural("NoOp", "has no tensors", work="free", kind=Kind.NOTHING),
    structural("BroadcastGradientArgs", "gives integers", kind=Kind.BROADCAST_AXES),
    structural(
        "Variable VariableV2", "a variable's memory", work="free", kind=Kind.VARIABLE
    ),
    structural(
        "ReadVariableOp",
        "its type is the variable's, whose memory it gives",
        work="free",
        kind=Kind.READ_VARIABLE,
    ),
    structural(
        "AssignVariableOp",
        "the variable takes over the value's memory",
        work="free",
        kind=Kind.WRITE,
    ),
    structural(
        "StatefulPartitionedCall If StatelessIf Case StatelessCase",
        "a call; its functions are planned and priced",
        work="free",
    ),
    structural(
        "Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2",
        "gives what its operand has",
        work="unique",
    ),
    structural("CheckNumericsV2", "raises where it is not finite", kind=Kind.GUARD),
    structural("Print", "prints", kind=Kind.PRINT),
    structural("InvertPermutation", "gives integers", kind=Kind.INVERSE),
    structural("VariableShape", "gives integers", kind=Kind.READ_PART),
    structural(
        "FractionalMaxPool SegmentMin TensorScatterMax TensorScatterMin",
        "stays float32; its gradient compares for equality",
        selects=True,
    ),
    structural("FractionalMaxPoolGrad", "finds the maximum again", compares=(0, 1)),
    structural("ScatterNdNonAliasingAdd", "only sounds like a writer"),
    structural("IteratorGetNext IteratorGetNextSync", "gives a batch", kind=Kind.NEXT),
    structural("IteratorGetNextAsOptional", "gives a batch", kind=Kind.MAYBE_NEXT),
    structural("OptionalGetValue", "gives a batch", kind=Kind.ELEMENT),
    structural("PartitionedCall", "a call; its function is planned", work="call"),
    structural("LoopCond", "ends a frame's loop", kind=Kind.LOOP_CONDITION),
    structural("RefSwitch _SwitchN", "control flow in frames", kind=Kind.SWITCH),
    structural("RefMerge", "control flow in frames", kind=Kind.MERGE),
    structural("RefEnter", "control flow in frames", kind=Kind.ENTER),
    structural("RefExit", "control flow in frames", kind=Kind.EXIT),
    structural("RefNextIteration", "control flow in frames", kind=Kind.NEXT_ITERATION),
)

# Writers that leave nothing of what the variable held.
REPLACING = frozenset({"Assign", "AssignVariableOp"})
# Unlisted, as what is not in the table: tf.py_function and tf.numpy_function make them.
PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
# Unlisted too, without results: they tell somebody or check, and give nothing to any
# other op, or change a part of a variable.
TELLING = frozenset(
    {
        *("Assert", "PrintV2", "RngSkip", "ResourceStridedSliceAssign"),
        *("WriteSummary", "WriteScalarSummary", "WriteHistogramSummary"),
        *("WriteImageSummary", "WriteAudioSummary", "WriteGraphSummary"),
        *("WriteRawProtoSummary", "FlushSummaryWriter"),
    }
)
# Unlisted too: they hand a tensor, or its bytes, to what reads it with the type that it
# was built with, such as a file, another process or a staging area.
AGREED = frozenset(
    {
        *("Save", "SaveSlices", "SaveV2", "Send", "_Send", "_HostSend", "XlaSend"),
        *("Stage", "MapStage", "OrderedMapStage", "Bitcast", "EncodeProto"),
        *("GetSessionHandle", "GetSessionHandleV2", "AddManySparseToTensorsMap"),
        *("AddSparseToTensorsMap", "SerializeManySparse", "SerializeSparse"),
        "SerializeTensor",
    }
)
# Lookups in a variable by its handle, each with the same in a tensor.
LOOKUPS = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}
ROWS = "ResourceGather"  # of rows; the other is of entries
