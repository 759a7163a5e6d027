"""Functions of SavedModels and GraphDefs in files, with inputs, for `amp compare`.

Unlike other commands this one loads what it is given into TensorFlow and runs it. No
figure is computed here.
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from amp.errors import GraphError
from amp.graph_rewrite.ops.op_table import Kind, facts
from amp.integration.files import graphs, named_files, targets

_FIRST, _OTHER = 8, 32  # sizes of unknown dimensions: the first (a batch), the others


@dataclasses.dataclass(frozen=True, eq=False)
class SavedFunction:
    """A function of a file.

    Attributes:
      function: a ConcreteFunction.
      specs: what it takes, by name, in order.
      owner: what has to live as long as it is called.
      by_name: whether it is called with keywords.
    """

    function: Any
    specs: Mapping[str, tf.TensorSpec]
    owner: Any
    by_name: bool


def load(path: Path, signature: str | None, tags: str | None) -> SavedFunction:
    """Loads a signature of a SavedModel, or a GraphDef.

    Of a GraphDef all placeholders are fed, and all that no node reads is fetched.

    Raises:
      GraphError: no such file, graph or signature; a graph with variables but no
        values.
    """
    if named_files.is_saved_model(path):
        return _signature(path, signature, tags)
    if signature is not None or tags is not None:
        flag = "--signature" if signature is not None else "--tags"
        raise named_files.only(flag, "a SavedModel", path)
    return _graph(path)


def _signature(path: Path, signature: str | None, tags: str | None) -> SavedFunction:
    file = named_files.file_of_model(path)
    chosen = None if tags is None else [tag for tag in tags.split(",") if tag]
    meta = targets.meta_graph(targets.read_model(path), chosen, path)
    targets.require_ops(meta.graph_def, path)
    loaded = _loaded(file.parent, list(meta.meta_info_def.tags))
    known = loaded.signatures
    default = "serving_default" if "serving_default" in known else next(iter(known), "")
    name = default if signature is None else signature
    if name not in known:
        raise GraphError(
            f"there is no signature {name!r}" if name else "it has no signatures",
            where=f"--signature, {path}",
            allowed=", ".join(known) or "none: this model has no signatures",
            remedy="name one of these; a model without any: amp.compare, in Python",
        )
    specs = known[name].structured_input_signature[1]
    return SavedFunction(known[name], dict(specs), loaded, by_name=True)


def _loaded(directory: Path, tags: Sequence[str]) -> Any:
    try:
        return tf.saved_model.load(str(directory), tags=tags)
    except (tf.errors.OpError, OSError, KeyError, ValueError, AttributeError) as e:
        raise GraphError(
            f"TensorFlow cannot load this model: {type(e).__name__}: {e}",
            where=str(directory),
            allowed="a SavedModel that is whole, with its variables",
            remedy="export it again with tf.saved_model.save or model.export",
        ) from e


def _graph(path: Path) -> SavedFunction:
    proto = targets.read(path)
    targets.require_ops(proto, path)
    graphs.require_importable(proto)

    def imported() -> None:
        tf.graph_util.import_graph_def(proto, name="")

    wrapped = tf.compat.v1.wrap_function(imported, [])
    kinds = {op: facts(op.type).kind for op in wrapped.graph.get_operations()}
    handles = [op.name for op in kinds if _is_handle(op, kinds[op])]
    if handles:
        raise GraphError(
            f"variable or table {handles[0]!r} has no value",
            where=str(path),
            allowed="a GraphDef with its weights as constants, or a SavedModel",
            remedy="save the model with tf.saved_model.save and compare that",
        )
    feeds = [op.outputs[0] for op, k in kinds.items() if k is Kind.PLACEHOLDER]
    fetches = [
        tensor
        for op, kind in kinds.items()
        if kind is not Kind.PLACEHOLDER and not any(t.consumers() for t in op.outputs)
        for tensor in op.outputs
    ]
    specs = {t.op.name: tf.TensorSpec(t.shape, t.dtype, t.op.name) for t in feeds}
    pruned = wrapped.prune(feeds, fetches)
    return SavedFunction(pruned, specs, wrapped, by_name=False)


def _is_handle(op: Any, kind: Kind) -> bool:
    """Whether an operation stands for a variable, a table or another resource."""
    resource = any(tensor.dtype == tf.resource for tensor in op.outputs)
    return kind is Kind.VARIABLE or (resource and not op.inputs)


def inputs_from(path: Path, saved: SavedFunction) -> dict[str, Any]:
    """The inputs in an .npz file, by name; of a single input any name will do.

    Raises:
      GraphError: no such file, or inputs are missing in it.
    """
    named_files.require(path)
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as e:
        raise _bad_inputs(f"this is no .npz file: {e}", path, saved) from e
    except zipfile.BadZipFile as e:
        raise _bad_inputs(f"this cannot be read: {e}", path, saved) from e
    if len(arrays) == len(saved.specs) == 1:
        arrays = dict(zip(saved.specs, arrays.values(), strict=True))
    missing = [name for name in saved.specs if name not in arrays]
    if missing:
        raise _bad_inputs(f"there is no input {missing[0]!r}", path, saved)
    for name, spec in saved.specs.items():
        given = arrays[name]
        if not spec.shape.is_compatible_with(given.shape):
            found = f"{name!r} has the shape {list(given.shape)}"
            raise _bad_inputs(found, path, saved)
        if np.iscomplexobj(given) and not spec.dtype.is_complex:
            raise _bad_inputs(f"{name!r} is {given.dtype}", path, saved)
    try:
        return {n: tf.constant(arrays[n], s.dtype) for n, s in saved.specs.items()}
    except (ValueError, TypeError) as e:
        raise _bad_inputs(f"an input has another type: {e}", path, saved) from e


def _bad_inputs(found: str, path: Path, saved: SavedFunction) -> GraphError:
    wanted = ", ".join(f"{n} {s.dtype.name} {s.shape}" for n, s in saved.specs.items())
    return GraphError(
        found,
        where=f"--inputs, {path}",
        allowed=f"an .npz file with {wanted}",
        remedy="write it with numpy.savez(file, name=array, ...)",
    )


def made_up(saved: SavedFunction) -> tuple[dict[str, Any], str]:
    """Inputs at random, the same in every run, and a sentence that says so."""
    random = np.random.default_rng(0)
    values = {name: _random(spec, random) for name, spec in saved.specs.items()}
    shown = ", ".join(f"{name} {_shape(value)}" for name, value in values.items())
    text = (
        f"the inputs were made up: normal numbers, integers 0 and 1; {shown}. Real "
        "ones may reach other values: --inputs FILE.npz"
    )
    return values, text


def _shape(value: Any) -> str:
    return f"[{', '.join(map(str, value.shape))}]"


def _random(spec: Any, random: np.random.Generator) -> Any:
    known: Sequence[int | None] = [] if spec.shape.rank is None else spec.shape
    shape = [
        size if size is not None else (_OTHER if place else _FIRST)
        for place, size in enumerate(known)
    ]
    if spec.dtype.is_floating:
        return tf.constant(random.normal(size=shape), spec.dtype)
    if spec.dtype.is_integer or spec.dtype.is_bool:
        return tf.cast(tf.constant(random.integers(0, 2, shape)), spec.dtype)
    if spec.dtype == tf.string:
        return tf.fill(shape, "")
    raise GraphError(
        f"input {spec.name!r} is {spec.dtype.name}",
        where="made-up inputs",
        allowed="floating numbers, integers, booleans and strings",
        remedy="pass real inputs with --inputs FILE.npz",
    )
