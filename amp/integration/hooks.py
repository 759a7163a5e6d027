"""Every private name of TensorFlow and Keras that the package uses, one row for each.

`install` has the rows checked and hooks put in place, through `wrapping`. Where a
version of TensorFlow has another name for something, add that name to the row (`also`).
A hook needs no more; code that only calls or reads the name uses `attribute`.

No hook is made here, and nothing is changed in TensorFlow.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

import tensorflow as tf

from amp.errors import TensorFlowError

TENSORFLOW, KERAS = "TensorFlow 2.18 to 2.21", "Keras 3.5 to 3.15"
TF_KERAS = "tf_keras 2.18 to 2.21"
# A library of its own, as older versions of Keras 3 do without it.
KERAS_MULTI = "Keras to 3.15, where it has MultiOptimizer"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One private name.

    Attributes:
      owner: the module, or "module:Class".
      name: the name in it.
      parameters: what it must take, in their order; None where it is not a function, or
        one whose parameters Python cannot tell.
      use: what the package uses it for.
      wrapped: whether a hook replaces it; else it is only called or read.
      autograph: whether users call it from code that AutoGraph converts, so that the
        hook has to be exempt from that.
      exported: whether modules of TensorFlow's API hold the function itself, so that a
        hook has to be put in place in them too.
      also: names that other supported versions have for it.
    """

    owner: str
    name: str
    parameters: tuple[str, ...] | None
    use: str
    wrapped: bool = False
    autograph: bool = False
    exported: bool = False
    also: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Class or module, and the name: by it the `HOOKS` tables refer to the row."""
        return f"{self.owner.replace(':', '.').rpartition('.')[2]}.{self.name}"

    @property
    def versions(self) -> str:
        """The versions that are known to have it so."""
        if self.owner.startswith("tf_keras"):
            return TF_KERAS
        if self.owner == _KERAS_MULTI:
            return KERAS_MULTI
        return KERAS if self.owner.startswith("keras") else TENSORFLOW


def _call(owner: str, name: str, parameters: str, use: str, **more: Any) -> Row:
    return Row(owner, name, tuple(parameters.split()), use, **more)


def _read(owner: str, name: str, use: str, **more: Any) -> Row:
    return Row(owner, name, None, use, **more)


def _wrap(owner: str, name: str, parameters: str, use: str, **more: Any) -> Row:
    return _call(owner, name, parameters, use, wrapped=True, **more)


def _public(owner: str, name: str, parameters: str, use: str, **more: Any) -> Row:
    return _wrap(owner, name, parameters, use, autograph=True, **more)


_EAGER = "tensorflow.python.eager"
_FRAMEWORK = "tensorflow.python.framework"
_POLY = f"{_EAGER}.polymorphic_function"
_OPS = "tensorflow.python.ops"
_CONTEXT = f"{_EAGER}.context:Context"
_CONCRETE = f"{_POLY}.concrete_function:ConcreteFunction"
_TAPE = f"{_EAGER}.backprop:GradientTape"
_FORWARD = f"{_EAGER}.forwardprop:ForwardAccumulator"
_GRAPH = f"{_FRAMEWORK}.ops:Graph"
_API = "tensorflow.python.client.pywrap_tf_session"
_SESSION = "tensorflow.python.client.session:BaseSession"
_TRAINING = "tensorflow.python.training"
_SAVER = f"{_TRAINING}.saver:Saver"
_VIEW = "tensorflow.python.saved_model.save:_AugmentedGraphView"
_THREAD = "tensorflow.python.distribute.mirrored_run:_MirroredReplicaThread"
_REPLICA = "tensorflow.python.distribute.distribute_lib:ReplicaContext"
_CLOSURE = "tensorflow.python.distribute.coordinator.cluster_coordinator:Closure"
_OPTIMIZER = f"{_TRAINING}.optimizer:Optimizer"
_AVERAGES = f"{_TRAINING}.moving_averages:ExponentialMovingAverage"
_REF = "tensorflow.python.ops.ref_variable:RefVariable"
_SAVEABLE = f"{_TRAINING}.saving.saveable_object"
_TRACKABLE = "tensorflow.python.trackable.base:Trackable"

_KERAS_BASE = "keras.src.optimizers.base_optimizer"
_KERAS_OPTIMIZER = f"{_KERAS_BASE}:BaseOptimizer"
_KERAS_REDUCES = "keras.src.backend.tensorflow.optimizer:TFOptimizer"
_KERAS_SCALER = "keras.src.optimizers.loss_scale_optimizer:LossScaleOptimizer"
_KERAS_MULTI = "keras.src.optimizers.multi_optimizer:MultiOptimizer"
_KERAS_SAVING = "keras.src.saving.saving_lib"
_TF_KERAS = "tf_keras.src.optimizers"
_TF_KERAS_OPTIMIZER = f"{_TF_KERAS}.optimizer:_BaseOptimizer"
_TF_KERAS_LEGACY = f"{_TF_KERAS}.legacy.optimizer_v2:OptimizerV2"
_TF_KERAS_SCALER = "tf_keras.src.mixed_precision.loss_scale_optimizer"

_OPTIONS = "TF_ImportGraphDefOptions"
_SESSIONS_MADE = (
    "TF_NewSessionOptions",
    "TF_NewSessionRef",
    "TF_DeleteSessionOptions",
    "TF_CloseSession",
    "TF_DeleteSession",
)
_GRAPHS_IMPORTED = (
    f"{_OPTIONS}SetPrefix",
    f"{_OPTIONS}SetUniquifyNames",
    f"{_OPTIONS}AddInputMapping",
    f"{_OPTIONS}RemapControlDependency",
    f"{_OPTIONS}SetValidateColocationConstraints",
    "TF_GraphImportGraphDefWithResults",
    "TF_NewBufferFromString",
    "TF_DeleteBuffer",
)
_DEVICES_LISTED = (
    "TF_DeviceListCount",
    "TF_DeviceListName",
    "TF_DeviceListMemoryBytes",
    "TF_DeleteDeviceList",
)

ROWS: tuple[Row, ...] = (
    # Functions: calls go to twins.
    _wrap(_CONTEXT, "call_function", "self name tensor_inputs num_outputs",
          "every eager call of a function; a twin is called in its place"),
    _wrap(_CONTEXT, "remove_function", "self name",
          "a function goes, and its twins with it"),
    _wrap(f"{_POLY}.atomic_function", "from_func_graph", "name graph attrs",
          "a function was traced: its graph tells shapes, and scopes entered in it"),
    _wrap(f"{_POLY}.function_context", "make_function_context", "scope_type",
          "functions traced with loss scaling are others than those without"),
    _call(f"{_EAGER}.context", "context", "", "the eager runtime, which has functions"),
    _call(f"{_EAGER}.context", "async_wait", "", "a measured call is over"),
    _call(_CONTEXT, "has_function", "self name", "which functions are registered"),
    _call(_CONTEXT, "get_function_def", "self name", "definitions are read"),
    _call(_CONTEXT, "add_function_def", "self fdef", "twins are registered"),
    _call(_CONTEXT, "get_server_def", "self", "no race in a cluster"),
    _read(_CONTEXT, "_collective_ops_server_def", "no race in a cluster"),
    _read(_CONTEXT, "device_name",
          "on which device a call runs, and whether in another process"),
    _call(_CONTEXT, "host_address_space", "self", "which process this is"),
    _call(_CONTEXT, "ensure_initialized", "self", "how much memory a device has"),
    _read(_CONTEXT, "_handle", "how much memory a device has"),
    _read("tensorflow.python.pywrap_tfe", "TFE_ContextListDevices",
          "how much memory a device has"),
    *(_read(_API, name, "how much memory a device has") for name in _DEVICES_LISTED),
    _read(_CONTEXT, "function_call_options", "measured as written, not optimized"),
    _call(f"{_EAGER}.execute", "execute", "op_name num_outputs inputs attrs ctx",
          "measured calls go past the hook"),
    _call(f"{_EAGER}.execute", "execute_with_cancellation", "op_name num_outputs "
          "inputs attrs ctx cancellation_manager", "whether a function can start"),
    _call(f"{_EAGER}.cancellation:CancellationManager", "start_cancel", "self",
          "whether a function can start"),
    _call(f"{_FRAMEWORK}.config", "is_op_determinism_enabled", "",
          "no race where operations are to be deterministic"),
    _call(_CONCRETE, "from_func_graph", "graph function_type attrs",
          "a twin to hold and to call"),
    _read(_CONCRETE, "_arg_keywords", "a twin is called as its original is"),
    _read(_CONCRETE, "_num_positional_args", "a twin is called as its original is"),
    _call(f"{_FRAMEWORK}.function_def_to_graph", "function_def_to_graph",
          "fdef structured_input_signature structured_outputs input_shapes "
          "include_library_functions", "a twin's graph, of its definition"),
    _call(f"{_FRAMEWORK}.op_def_registry", "get", "name", "what an op takes and gives"),
    _call(f"{_FRAMEWORK}.kernels", "get_registered_kernels_for_op", "name",
          "which types an op has kernels for"),
    _call(f"{_FRAMEWORK}.tensor_util", "MakeNdarray", "tensor", "values of constants"),
    _read("tensorflow.python.debug.lib.check_numerics_callback", "_state",
          "no loss scale while every infinite value is an error"),
    _call("tensorflow.python.util.tf_stack", "extract_stack", "stacklevel",
          "the user's line, where AutoGraph has converted the function"),
    _read(f"{_FRAMEWORK}.errors_impl:OpError", "_message",
          "errors name the user's function, not its twin"),
    _read(f"{_FRAMEWORK}.ops:EagerTensor", "_handle_data",
          "the type of the variable behind a handle, which is restored"),
    _read(f"{_FRAMEWORK}.func_graph:FuncGraph", "_watched_variables",
          "which variables a function trains"),
    # Gradients.
    _public(_TAPE, "gradient", "self target sources output_gradients",
            "the loss is scaled and gradients unscaled"),
    _public(_TAPE, "jacobian", "self target sources",
            "left alone: state cannot be stepped in a vectorised loop"),
    _public(_TAPE, "batch_jacobian", "self target source",
            "left alone: state cannot be stepped in a vectorised loop"),
    _public("tensorflow.python.ops.gradients_util", "_GradientsHelper",
            "ys xs grad_ys colocate_gradients_with_ops src_graph",
            "tf.gradients, in graphs and sessions"),
    _wrap("tensorflow.python.ops.custom_gradient", "_eager_mode_decorator",
          "f args kwargs", "what Python differentiates sees no loss scale"),
    _wrap("tensorflow.python.ops.custom_gradient", "_graph_mode_decorator",
          "f args kwargs", "what Python bends in a graph sees no loss scale"),
    _wrap("tensorflow.python.framework.ops", "get_gradient_function", "op",
          "nor does what a program puts in the place of an operation's gradient"),
    _wrap(f"{_FRAMEWORK}.registry:Registry", "lookup", "self name",
          "a model's own check for infinities does not end a job at an overflow"),
    _read(f"{_FRAMEWORK}.ops", "gradient_registry",
          "a model's own check for infinities does not end a job at an overflow"),
    _wrap(f"{_OPS}.script_ops", "_internal_py_func",
          "func inp Tout stateful use_eager_py_func is_grad_func name",
          "nor does what is inside of a `tf.py_function`"),
    _call(f"{_FRAMEWORK}.ops:Operation", "_update_input", "self index tensor",
          "what Python bends in a graph reads a gradient without the scale"),
    _call(f"{_EAGER}.record", "should_record_backprop", "tensors",
          "what Python bends is built anew where a tape has noted what it read"),
    _read(f"{_OPS}.cond_v2", "_CondGradFuncGraph", "the scale is brought into it"),
    _read(f"{_OPS}.while_v2", "_WhileBodyGradFuncGraph",
          "the scale is brought into it"),
    _call(f"{_FRAMEWORK}.func_graph:FuncGraph", "capture", "self tensor",
          "the scale is brought into a branch"),
    _read(f"{_POLY}.concrete_function", "_BACKWARD_PREFIX",
          "the gradient of a function, into which no scale is brought"),
    _call(_GRAPH, "_get_function", "self name",
          "what functions that a gradient calls do with it"),
    _call(_GRAPH, "_get_control_flow_context", "self",
          "a computation of XLA gives out no flag of an overflow"),
    _read(f"{_OPS}.control_flow_ops", "XLAControlFlowContext",
          "a computation of XLA gives out no flag of an overflow"),
    _call(f"{_OPS}.control_flow_ops:ControlFlowContext", "IsXLAContext", "self",
          "a computation of XLA gives out no flag of an overflow"),
    _read(f"{_OPS}.control_flow_ops:ControlFlowContext", "outer_context",
          "a computation of XLA gives out no flag of an overflow"),
    _public("tensorflow.python.ops.parallel_for.control_flow_ops", "pfor", "loop_fn",
            "left alone: state cannot be stepped in a vectorised loop"),
    _wrap(_FORWARD, "_push_accumulator", "self",
          "tangents of scaled gradients would overflow unseen"),
    _wrap(_FORWARD, "_pop_accumulator", "self",
          "tangents of scaled gradients would overflow unseen"),
    _call(_GRAPH, "_attr_scope", "self attr_map", "nodes are marked as they are built"),
    _read("tensorflow.python.distribute.values:DistributedVariable",
          "_distributed_container", "a replica's variable stands for the whole of it"),
    _call(_REF, "_ref", "self", "variables of session graphs, behind their tensors"),
    _read(_REF, "_snapshot", "variables of session graphs, behind their reads"),
    _read("tensorflow.python.ops.resource_variable_ops", "ResourceVariable",
          "the program's creators of variables do not see a scaler's"),
    _wrap("tensorflow.python.ops.numerics", "add_check_numerics_ops", "",
          "what a scaled gradient may make infinite is not checked", exported=True),
    _call(f"{_FRAMEWORK}.ops:Operation", "_get_control_flow_context", "self",
          "which nodes an overflow skips"),
    # Optimizers.
    _public(_OPTIMIZER, "apply_gradients", "self grads_and_vars global_step name",
            "an update with an overflow is left out"),
    _call(_OPTIMIZER, "_create_slots", "self var_list",
          "slots are made outside the branch that updates"),
    _public(f"{_TRAINING}.sync_replicas_optimizer:SyncReplicasOptimizer",
            "apply_gradients", "self grads_and_vars",
            "never left out: it holds queues that others wait for"),
    _wrap(f"{_TRAINING}.experimental.loss_scale_optimizer:"
          "MixedPrecisionLossScaleOptimizer", "_scale_loss", "self loss",
          "our loss scaling rests where TensorFlow's own is at work"),
    _public(_AVERAGES, "apply", "self var_list",
            "averages stay where the update was left out"),
    _public(_REPLICA, "all_reduce", "self reduce_op value",
            "gradients that replicas sum are zeros in all if one overflowed"),
    _call(_AVERAGES, "average", "self var", "which averages there are already"),
    # Saving.
    _call(_TRACKABLE, "_trackable_children", "self save_type",
          "overridden: the loss scale goes into an object's checkpoint"),
    _call(_TRACKABLE, "_lookup_dependency", "self name",
          "overridden: the loss scale comes out of an object's checkpoint"),
    _call(_TRACKABLE, "_serialize_to_tensors", "self",
          "overridden: what is saved of the loss scale"),
    _call(_TRACKABLE, "_restore_from_tensors", "self restored_tensors",
          "overridden: what is restored of the loss scale"),
    _call(_TRACKABLE, "_copy_trackable_to_cpu", "self object_map",
          "overridden: a save in the background writes the scale of its beginning"),
    _wrap(_SAVER, "_build", "self checkpoint_path build_save build_restore",
          "the loss scale goes into a session's checkpoint"),
    _wrap(_SAVER, "restore", "self sess save_path",
          "a checkpoint without the loss scale is restored all the same"),
    _read(_SAVER, "_var_list", "what a saver saves"),
    _read(_SAVER, "_reshape", "a saver like the user's, of fewer variables"),
    _read(_SAVER, "_sharded", "a saver like the user's, of fewer variables"),
    _wrap(_VIEW, "_breadth_first_traversal", "self",
          "a SavedModel of functions that take gradients holds their loss scale"),
    _call(_VIEW, "list_children", "self obj", "the objects that are saved"),
    _read(_VIEW, "_children_cache", "the loss scale joins the objects that are saved"),
    _call("tensorflow.python.ops.variables", "_all_saveable_objects", "scope",
          "what a saver of all variables saves"),
    _read(_SAVEABLE, "SaveableObject", "the loss scale as a session's saver sees it"),
    _call(f"{_SAVEABLE}:SaveSpec", "__init__", "self tensor slice_spec name dtype "
          "device", "the loss scale as a session's saver sees it"),
    _call(_GRAPH, "_unsafe_unfinalize", "self", "restoring in a finalized graph"),
    _call("tensorflow.python.saved_model.fingerprinting_utils", "write_fingerprint",
          "export_dir", "a rewritten SavedModel gets its own fingerprint"),
    _call(f"{_FRAMEWORK}.meta_graph", "stripped_op_list_for_graph", "graph_def",
          "the ops that a rewritten SavedModel says it needs"),
    _read("tensorflow.python.data.ops.iterator_ops:OwnedIterator", "_iterator_resource",
          "an element that was looked at and not taken comes next"),
    # Sessions.
    _wrap(_SESSION, "_do_run", "self handle target_list fetch_list feed_dict options "
          "run_metadata", "a run goes to the twin of the graph"),
    _wrap(_SESSION, "run", "self fetches feed_dict options run_metadata",
          "profiles name the user's nodes"),
    _wrap(_SESSION, "_do_call", "self fn", "errors name the user's nodes"),
    _wrap(_SESSION, "partial_run_setup", "self fetches feeds",
          "a partial run goes to the twin"),
    _wrap(_SESSION, "make_callable", "self fetches feed_list accept_options",
          "callables go to the twin"),
    _wrap(_SESSION, "close", "self", "the updates that it skipped are counted"),
    _wrap(_SESSION, "_make_callable_from_options", "self callable_options",
          "callables go to the twin"),
    _call(_SESSION, "_call_tf_sessionrun", "self options feed_dict fetch_list "
          "target_list run_metadata", "what a callable runs"),
    _call(_SESSION, "_extend_graph", "self", "the runtime learns of new nodes"),
    _read("tensorflow.python.client.session", "config_pb2",
          "whether TensorFlow can start a run"),
    _read(_SESSION, "_graph", "the user's graph"),
    _read(_SESSION, "_session", "the runtime's session, of the twin instead"),
    _read(_SESSION, "_target", "the twin's session runs where the user's would"),
    _read(_SESSION, "_config", "the twin's session is configured as the user's"),
    *(_read(_API, name, "the runtime's session of the twin")
      for name in _SESSIONS_MADE),
    *(_read(_API, name, "nodes join the twin") for name in _GRAPHS_IMPORTED),
    _read(f"{_FRAMEWORK}.c_api_util", "ScopedTFImportGraphDefOptions",
          "nodes join the twin"),
    _read(f"{_FRAMEWORK}.c_api_util", "ScopedTFImportGraphDefResults",
          "nodes join the twin"),
    _read(_GRAPH, "_c_graph", "nodes join the twin"),
    _read(_GRAPH, "_add_new_tf_operations", "nodes join the twin"),
    _read(_GRAPH, "_get_tensor_by_tf_output", "the user's tensor, of the runtime's"),
    _read(_GRAPH, "_get_operation_by_tf_operation",
          "the user's operation, of the runtime's"),
    _read(f"{_FRAMEWORK}.ops:SymbolicTensor", "_as_tf_output",
          "the runtime's name of a tensor"),
    _read(f"{_FRAMEWORK}.ops:Operation", "_c_op", "the runtime's name of an operation"),
    # Strategies.
    _wrap(_THREAD, "__init__", "self dist coord replica_id devices variable_creator_fn "
          "fn", "scopes hold in the threads of replicas"),
    _wrap(_THREAD, "run", "self", "scopes hold in the threads of replicas"),
    _wrap(_CLOSURE, "__init__", "self function",
          "scopes hold in what a coordinator schedules"),
    _wrap(_CLOSURE, "execute_on", "self worker",
          "scopes hold in what a coordinator schedules"),
    _call(_CONTEXT, "set_config_key_value", "self key value", "workers compare rules"),
    _call(_CONTEXT, "get_config_key_value", "self key", "workers compare rules"),
    _call(_CONTEXT, "delete_config_key_value", "self key", "workers compare rules"),
    _read(_CONTEXT, "coordination_service", "whether workers can compare rules"),
    # Keras.
    _public(_KERAS_OPTIMIZER, "apply", "self grads trainable_variables",
            "an update with an overflow is left out"),
    _call(_KERAS_OPTIMIZER, "build", "self variables",
          "slots are made outside the branch that updates"),
    _read(_KERAS_OPTIMIZER, "_trainable_variables", "what an optimizer updates"),
    _wrap(_KERAS_OPTIMIZER, "finalize_variable_values", "self var_list",
          "averages that no update has filled are not made the weights"),
    _read(_KERAS_BASE, "backend", "the scope that an optimizer builds in"),
    _public(_KERAS_REDUCES, "_all_reduce_sum_gradients", "self grads_and_vars",
            "gradients between hosts in 16 bits"),
    _public(_KERAS_SCALER, "scale_loss", "self loss",
            "our loss scaling rests where Keras' own is at work"),
    _wrap(_KERAS_SAVING, "_save_state", "saveable weights_store assets_store "
          "inner_path", "the loss scale goes into weight files"),
    _wrap(_KERAS_SAVING, "_load_state", "saveable weights_store assets_store "
          "inner_path", "the loss scale comes out of weight files"),
    _public(_KERAS_MULTI, "apply", "self grads trainable_variables",
            "an update with an overflow is left out, by all of its optimizers at once"),
    _read(_KERAS_MULTI, "optimizers", "which optimizers may keep tensors of an update"),
    # The Keras of TensorFlow 2.15 and before, as a package of its own.
    _public(_TF_KERAS_OPTIMIZER, "apply_gradients", "self grads_and_vars name",
            "an update with an overflow is left out"),
    _call(_TF_KERAS_OPTIMIZER, "build", "self var_list",
          "slots are made outside the branch that updates"),
    _public(_TF_KERAS_LEGACY, "apply_gradients", "self grads_and_vars name",
            "an update with an overflow is left out"),
    _call(_TF_KERAS_LEGACY, "_create_all_weights", "self var_list",
          "slots are made outside the branch that updates"),
    _read(_TF_KERAS_LEGACY, "_name", "the scope that an optimizer's slots are made in"),
    _public(f"{_TF_KERAS_SCALER}:LossScaleOptimizer", "get_scaled_loss", "self loss",
            "our loss scaling rests where tf_keras' own is at work"),
    _public(f"{_TF_KERAS_SCALER}:LossScaleOptimizerV3", "get_scaled_loss", "self loss",
            "our loss scaling rests where tf_keras' own is at work"),
)  # fmt: skip


def row_of(key: str) -> Row:
    """The row with a key (`Row.key`)."""
    (row,) = (row for row in ROWS if row.key == key)
    return row


def current_name(row: Row) -> str:
    """The name of a row in the TensorFlow that is installed: `name` or one of `also`.

    Raises:
      ImportError, AttributeError: the module or class of the row is not there.
    """
    if not row.also:
        return row.name
    names = (row.name, *row.also)
    return next((name for name in names if _has(owner_of(row), name)), row.name)


def attribute(holder: Any, key: str) -> Any:
    """What a module or an object has under the name of a row.

    For names that versions of TensorFlow have differently (`Row.also`), and that are
    called or read, but not hooked.
    """
    return getattr(holder, current_name(row_of(key)))


def _has(owner: Any, name: str) -> bool:
    return hasattr(owner, name) or name in _assigned(owner)


def of_tensorflow() -> list[Row]:
    """The rows of TensorFlow's names."""
    return [row for row in ROWS if row.versions == TENSORFLOW]


def of_keras(library: str = KERAS) -> list[Row]:
    """The rows of the names of Keras, or of another library that a job may import."""
    return [row for row in ROWS if row.versions == library]


def keras_modules(library: str = KERAS) -> list[str]:
    """The modules that Keras' names are in; all are there once Keras is imported.

    Some of them only if it runs on TensorFlow, so these are asked for every part of it.
    """
    rows = of_keras(library) + (of_keras() if library == KERAS_MULTI else [])
    return sorted({row.owner.partition(":")[0] for row in rows})


def keras_is_there(loaded: str = "", library: str = KERAS) -> bool:
    """Whether Keras is imported, as far as the hooks need, and runs on TensorFlow.

    Args:
      loaded: a module whose code has just run; Python counts it as loading still.
      library: `KERAS`, `KERAS_MULTI` or `TF_KERAS`.
    """
    found = {name: sys.modules.get(name) for name in keras_modules(library)}
    return all(
        module is not None
        and (name == loaded or not getattr(module.__spec__, "_initializing", False))
        for name, module in found.items()
    )


def require(rows: Iterable[Row]) -> None:
    """Checks names before anything is changed.

    Raises:
      TensorFlowError: listing every name that is missing or takes other parameters.
    """
    found = [text for row in rows for text in misfits(row)]
    if found:
        keras = getattr(sys.modules.get("keras"), "__version__", "not imported")
        raise TensorFlowError(
            f"TensorFlow {tf.__version__} (Keras {keras}) has other private names "
            f"than the hooks know, {len(found)} in all; nothing was changed",
            where="\n           ".join(found),
            allowed=f"{TENSORFLOW}, {KERAS}",
            remedy="install a supported version, or a newer version of this package",
        )


def misfits(row: Row) -> Iterator[str]:
    """What is wrong with a name, in words; nothing if it fits."""
    try:
        owner = owner_of(row)
    except (ImportError, AttributeError):
        yield f"{row.owner} is not there (for {row.name}: {row.use})"
        return
    name = current_name(row)
    if row.parameters is None:
        if not _has(owner, name):
            yield f"{row.key} is not there ({row.use})"
        return
    found = getattr(owner, name, None)
    if not callable(found):
        yield f"{row.key} is not there ({row.use})"
        return
    known = parameters_of(found)
    missing = [] if known is None else [p for p in row.parameters if p not in known]
    if missing:
        yield f"{row.key} does not take {', '.join(missing)} ({row.use})"


def owner_of(row: Row) -> Any:
    """The module or class of a row.

    Raises:
      ImportError, AttributeError: it is not there.
    """
    module, _, name = row.owner.partition(":")
    owner = importlib.import_module(module)
    return getattr(owner, name) if name else owner


def parameters_of(function: Callable[..., Any]) -> list[str] | None:
    """The parameters of a function; None where it takes any, or Python cannot tell.

    A wrapper of another library may say only that it takes any, and pass all on.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def _assigned(owner: Any) -> set[str]:
    """The names that the code of a module or class gives attributes."""
    waiting: list[CodeType] = []
    for kind in inspect.getmro(owner) if inspect.isclass(owner) else [owner]:
        for value in vars(kind).values():
            inner = inspect.unwrap(getattr(value, "fget", None) or value)
            if inspect.isfunction(inner):
                waiting.append(inner.__code__)
    names: set[str] = set()
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [c for c in code.co_consts if isinstance(c, CodeType)]
    return names
