"""Rows of the op table: ops that move elements without arithmetic, and tensor lists.

Facts only; nothing is decided here.
"""

from __future__ import annotations

import functools

from amp.graph_rewrite.ops.row import Kind, Role, Unmoved, keep, move, rows

listed = functools.partial(
    rows, Role.MOVE, source="tf:clear", attrs=("element_dtype",), same_list=True
)

in_frame = functools.partial(rows, Role.MOVE, source="tf:clear", work="free")
_ONE_TYPE = "hands on a loop variable, all ops of which have one type"

array = functools.partial(
    rows, Role.MOVE, source="definition", work="free", same_list=True
)
untyped = functools.partial(
    keep,
    why="names no element type: that of the array or stack is its own",
    source="definition",
    attrs=(),
    work="free",
    hands_on_list=True,
)
_FLOWS = ("flow_in", "flow_out")

MOVES = (
    move(
        "Identity",
        "the same bytes",
        "tf:clear",
        work="free",
        kind=Kind.IDENTITY,
        hands_on_list=True,
        fusible=True,
    ),
    move(
        "PreventGradient Squeeze",
        "the same bytes",
        "tf:clear",
        work="free",
        fusible=True,
    ),
    move(
        "StopGradient",
        "the same bytes",
        "tf:clear",
        work="free",
        kind=Kind.STOP_GRADIENT,
        hands_on_list=True,
        fusible=True,
    ),
    move("EnsureShape", "the same bytes", "tf:clear", work="free"),
    move(
        "ExpandDims Reshape",
        "the same bytes",
        "tf:clear",
        work="free",
        fusible=True,
        constant_operands=(1,),
        kind=Kind.RESHAPE,
    ),
    move(
        "IdentityN",
        "the same bytes; its list may mix types, of which the float32 ones may turn",
        "tf:clear",
        work="free",
        kind=Kind.BUNDLE,
        hands_on_list=True,
    ),
    in_frame("Enter", _ONE_TYPE, kind=Kind.ENTER),
    in_frame("Exit", _ONE_TYPE, kind=Kind.EXIT),
    in_frame("Merge", _ONE_TYPE, kind=Kind.MERGE),
    in_frame("NextIteration", _ONE_TYPE, kind=Kind.NEXT_ITERATION),
    in_frame("Switch", _ONE_TYPE, kind=Kind.SWITCH),
    move("Snapshot", "a copy", "tf:clear", work="copy", fusible=True),
    move("DeepCopy", "a copy", "definition", work="copy"),
    move(
        "BatchToSpace BatchToSpaceND DepthToSpace Reverse ReverseSequence ReverseV2 "
        "SpaceToBatch SpaceToBatchND SpaceToDepth",
        "reorders, crops or pads with 0",
        "tf:clear",
        work="copy",
    ),
    move(
        "Transpose",
        "reorders",
        "tf:clear",
        work="copy",
        unmoved=Unmoved.SAME_ORDER,
        constant_operands=(1,),
    ),
    move("Roll", "reorders", "definition", work="copy"),
    move(
        "ConcatV2",
        "joins; all inputs share the type",
        "tf:clear",
        work="copy",
        kind=Kind.JOINED,
    ),
    move(
        "Concat Pack DynamicStitch",
        "joins; all inputs share the type",
        "tf:clear",
        work="copy",
    ),
    move("ParallelDynamicStitch ParallelConcat", "joins", "definition", work="copy"),
    move(
        "Slice",
        "cuts",
        "tf:clear",
        work="copy",
        unmoved=Unmoved.SAME_COUNT,
    ),
    move(
        "Split SplitV Unpack DynamicPartition StridedSlice",
        "cuts",
        "tf:clear",
        work="copy",
    ),
    move("StridedSliceGrad", "places into zeros", "tf:clear", work="copy"),
    move(
        "Pad PadV2 MirrorPad",
        "places into a constant or mirror",
        "tf:clear",
        work="copy",
    ),
    move(
        "BroadcastTo",
        "repeats",
        "tf:clear",
        work="copy",
        unmoved=Unmoved.SAME_COUNT,
        fusible=True,
        constant_operands=(1,),
    ),
    move(
        "Tile",
        "repeats",
        "tf:clear",
        work="copy",
        unmoved=Unmoved.SAME_COUNT,
    ),
    move("ResizeNearestNeighbor", "repeats", "tf:clear", work="copy"),
    move("Fill", "repeats one value", "tf:clear", work="copy"),
    move("OneHot", "places two values", "tf:clear", work="copy"),
    move("OnesLike", "a constant, exact", "tf:clear", work="copy", bounded=True),
    move(
        "ZerosLike",
        "a constant, exact",
        "tf:clear",
        work="copy",
        kind=Kind.ZEROS,
        bounded=True,
        hands_on_list=True,
    ),
    move(
        "Select SelectV2",
        "selects by a bool operand",
        "tf:clear",
        chooses_by=(0,),
        fusible=True,
    ),
    move(
        "Gather GatherNd GatherV2",
        "copies the rows it is told to",
        "tf:clear",
        attrs=("Tparams",),
        work="gather",
    ),
    move("TensorScatterUpdate", "overwrites rows", "definition", work="gather"),
    move(
        "MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 "
        "MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV3",
        "copies or blanks diagonals",
        "definition",
        work="copy",
    ),
    move("ExtractImagePatches ExtractVolumePatches", "cuts", "definition", work="copy"),
)

LISTS = (
    listed(
        "TensorListConcatLists TensorListGetItem TensorListPopBack TensorListPushBack "
        "TensorListSetItem",
        why="hands on tensors of the list",
        work="free",
    ),
    listed(
        "TensorListConcat TensorListConcatV2 TensorListFromTensor TensorListGather "
        "TensorListPushBackBatch TensorListScatter TensorListScatterIntoExistingList "
        "TensorListScatterV2 TensorListSplit TensorListStack",
        why="copies between tensors and the list",
        work="copy",
    ),
    move(
        "EmptyTensorList TensorListReserve",
        "makes the list, and so its element type",
        "definition",
        attrs=("element_dtype",),
        work="free",
        same_list=True,
    ),
    move(
        "TensorListElementShape TensorListLength TensorListResize",
        "works on a list of any element type",
        "definition",
        attrs=(),
        work="free",
        same_list=True,
    ),
)

# The TensorArrays and stacks of TensorFlow 1's loops.
ARRAYS = (
    array(
        "TensorArrayV3",
        why="makes the array, and so its element type",
        attrs=("dtype",),
        float32_ports=("flow",),
    ),
    array(
        "TensorArrayReadV3",
        why="hands on an element",
        attrs=("dtype",),
        float32_ports=("flow_in",),
    ),
    array("TensorArrayWriteV3", why="hands on an element", float32_ports=_FLOWS),
    array(
        "TensorArrayConcatV3 TensorArrayGatherV3",
        why="copies out of the array",
        attrs=("dtype",),
        float32_ports=("flow_in",),
        work="copy",
    ),
    array(
        "TensorArrayScatterV3 TensorArraySplitV3",
        why="copies into the array",
        float32_ports=_FLOWS,
        work="copy",
    ),
    untyped("TensorArrayGradV3 TensorArrayGradWithShape", float32_ports=_FLOWS),
    untyped("TensorArraySizeV3", float32_ports=("flow_in",)),
    untyped("TensorArrayCloseV3 StackCloseV2"),
    array(
        "StackV2", why="makes the stack, and so its element type", attrs=("elem_type",)
    ),
    array("StackPushV2", why="hands on an element"),
    array("StackPopV2", why="hands on an element", attrs=("elem_type",)),
)
