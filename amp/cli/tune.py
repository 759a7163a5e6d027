"""`amp tune`: measures this device, or the operations of a SavedModel.

What is measured, and how, is not known here.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from amp.cli import op_libraries, terminal
from amp.cli.command import Command, Modules
from amp.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and for how long."""
    parser.description = (
        "Measures the device that TensorFlow computes on, in all types, and stores the "
        "result. Later runs on it plan from that. Let the machine be idle meanwhile."
    )
    add = parser.add_argument
    executors = ("kernels", "xla", "both")
    text = "TensorFlow's kernels, functions that XLA compiles, or both (default)"
    add("--executor", choices=executors, help=text)
    text = "time to spend in all, but for the case under way (default: %(default)g)"
    add("--seconds", type=float, default=45.0, help=text)
    add("--show", action="store_true", help="only print what is stored")
    text = "measure the operations of its functions instead; nothing of it is executed"
    add("--saved-model", metavar="DIR", type=Path, help=text)
    op_libraries.add(parser)


def run(args: argparse.Namespace, modules: Modules) -> int:
    """Prints what was measured, or with --show what is stored.

    Raises:
      UsageError: flags that do not go together.
      GraphError: no such model.
    """
    _require_together(args)
    if args.saved_model is not None:
        return _tune_saved_model(args, modules)
    both = args.executor in (None, "both")
    executors = ("kernels", "xla") if both else (args.executor,)
    if args.show:
        found = modules.tune_device.stored(executors)
        missing = "nothing of this device is stored; amp tune measures it"
    else:
        with _kept_if_interrupted(), modules.progress.progress_bar() as progress:
            found = list(modules.tune_device.tune(executors, args.seconds, progress))
        missing = "no time was left to measure any case; --seconds gives more"
    for file, profile in found:
        print(f"{profile.text(terminal.width())}\n\nstored in {file}\n")
    for executor in executors:
        if executor not in [profile.executor for _, profile in found]:
            print(f"{executor}: {missing}\n")
    print(modules.hardware.device().describe())
    return 0


def _require_together(args: argparse.Namespace) -> None:
    """No flag is ignored: some are of a device, one is of a model.

    Raises:
      UsageError: one was given where it has no meaning.
    """
    of_model = args.saved_model is not None
    others = ("show", "executor") if of_model else ("library",)
    given = [f"--{name}" for name in others if getattr(args, name)]
    if given:
        raise UsageError(
            f"{given[0]} was given {'with' if of_model else 'without'} --saved-model",
            where="amp tune",
            allowed="--show and --executor for a device, --library for a SavedModel",
            remedy=f"leave {given[0]} out",
        )


def _tune_saved_model(args: argparse.Namespace, modules: Modules) -> int:
    modules.named_files.file_of_graph(args.saved_model)
    modules.op_libraries.load(args.library)
    graph = modules.targets.read(args.saved_model)
    with _kept_if_interrupted(), modules.progress.progress_bar() as progress:
        tuned = modules.tune_function.tune_graph(graph, args.seconds, progress)
    print(tuned.text(terminal.width()))
    return 0


@contextlib.contextmanager
def _kept_if_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("what was measured so far is kept; plans are made from it")
        raise


COMMAND = Command(
    help="measure this device, to plan from it",
    add_arguments=add_arguments,
    run=run,
    examples={
        "amp tune": "measures this device for 45 seconds",
        "amp tune --show": "what is stored",
        "amp tune --saved-model exported": "measures the operations of a model",
    },
    modules={
        **op_libraries.MODULES,
        "hardware": "amp.integration.measuring.hardware",
        "named_files": "amp.integration.files.named_files",
        "progress": "amp.cli.progress_bar",
        "targets": "amp.integration.files.targets",
        "tune_device": "amp.integration.measuring.tune_device",
        "tune_function": "amp.integration.files.tune_function",
    },
)
