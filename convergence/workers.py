"""Families side by side, each in a process of its own; what they tell comes back.

Knows processes, not families: what is run is `runner`'s matter.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import threadpoolctl

from convergence import failures, families
from convergence.errors import ResultError
from convergence.failures import FamilyError
from convergence.staleness import Replan

SPAWN = multiprocessing.get_context("spawn")
# Told the family, the setting, the seed, the steps there are, and the steps taken.
Tell = Callable[[str, str, int, int, int], None]


def run(
    names: Sequence[str], options: dict[str, Any], tell: Tell, what: str = "run"
) -> Iterator[dict[str, Any]]:
    """Runs families, as many at a time as there are cores.

    A quick run has one thread: its operations are too small to be shared out, and
    processes with more threads than cores wait for one another. The number of threads
    may change a sum's last bit, and so depends on nothing else. Families begin in the
    order in which they are named.

    Args:
      names: of families.
      options: arguments of `runner.Options`.
      tell: told of every step, in a thread of its own.
      what: the function of `runner`.

    Yields:
      What it returns of each family when it is done.

    Raises:
      FamilyError: runs of some raised what they should not; of all others there are
        results.
      AmpError: any other of the suite's own errors; families that have not begun are
        given up.
      ResultError: a process was ended from outside.
      Exception: what `tell` raised first, once all families are done.
    """
    failed: list[FamilyError] = []
    told = SPAWN.SimpleQueue()
    broken: list[Exception] = []
    heard = (told, tell, broken)
    listener = threading.Thread(target=_listen, args=heard, daemon=True)
    listener.start()
    remedy = "go on with --resume, with fewer families at a time"
    try:
        with (
            _pool(len(names), told, single=bool(options.get("quick"))) as pool,
            _naming_ended(names, remedy),
        ):
            runs = [pool.submit(_run, what, name, options) for name in names]
            for done in futures.as_completed(runs):
                try:
                    result = done.result()
                except FamilyError as e:
                    failed.append(e)
                else:
                    yield result
    finally:
        told.put(None)
        listener.join()
    if broken:
        raise broken[0]
    if failed:
        raise failures.together(failed)


@contextlib.contextmanager
def replanning(directories: Sequence[Path]) -> Iterator[Replan]:
    """What plans results anew, in processes that begin when the first is asked for.

    Several threads may ask; as many are planned at a time as there are cores.

    Args:
      directories: of real data.

    Raises:
      ResultError: a process was ended from outside.
    """
    with _pool(os.cpu_count() or 1, None, single=True) as pool:

        def replan(result: Mapping[str, Any]) -> Mapping[str, str] | None:
            with _naming_ended([result["family"]], "free memory and try again"):
                return pool.submit(_replan, result, directories).result()

        yield replan


def drilling(
    wanted: Sequence[Mapping[str, Any]], directories: Sequence[Path]
) -> Iterator[tuple[Mapping[str, Any], dict[str, Any] | None]]:
    """Drills results that lack it, as many at a time as there are cores.

    Args:
      wanted: what their files hold.
      directories: of real data.

    Yields:
      Each of them, with what `drilling.later` returns of it, when it is done.

    Raises:
      ResultError: a process was ended from outside.
    """
    names = [each["family"] for each in wanted]
    with (
        _pool(len(wanted), None, single=True) as pool,
        _naming_ended(names, "free memory and try again"),
    ):
        runs = {pool.submit(_drill, each, directories): each for each in wanted}
        for done in futures.as_completed(runs):
            yield runs[done], done.result()


@contextlib.contextmanager
def _pool(
    count: int, told: Any, *, single: bool
) -> Iterator[futures.ProcessPoolExecutor]:
    """At most so many processes, and no more than cores; `_begin` says of the rest.

    At the end of the scope what has not begun is given up.
    """
    count = min(count, os.cpu_count() or 1)
    pool = futures.ProcessPoolExecutor(count, SPAWN, _begin, (told, single))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _naming_ended(names: Sequence[str], remedy: str) -> Iterator[None]:
    """Says of a process that was ended from outside whose it was, and what to do."""
    try:
        yield
    except futures.process.BrokenProcessPool as e:
        raise ResultError(
            "a process was ended before its family was done",
            where="one of " + ", ".join(names),
            allowed="memory for as many families as there are cores",
            remedy=remedy,
        ) from e


def _listen(told: Any, tell: Tell, broken: list[Exception]) -> None:
    """Passes on what is told; after an error, which it keeps, only takes it.

    Otherwise families would wait for ever, once the pipe is full.
    """
    while (words := told.get()) is not None:
        if not broken:
            try:
                tell(*words)
            except Exception as e:
                broken.append(e)


_TOLD: Any = None  # of a process: where it tells of its steps


def _begin(told: Any, single: bool) -> None:
    """Prepares a process: deterministic, quiet, and gone when its parent is.

    Args:
      told: where it tells of its steps.
      single: whether it has one thread for TensorFlow's operations.
    """
    global _TOLD
    _TOLD = told
    threading.Thread(target=_end_with_parent, daemon=True).start()
    deterministic(single)


def deterministic(single: bool) -> None:
    """Makes the results of this process those of every other, bit for bit.

    Args:
      single: whether TensorFlow's operations have one thread.
    """
    import tensorflow as tf

    # NumPy's products too: of errors of gradients, whose norms are short sums.
    threadpoolctl.threadpool_limits(1, user_api="blas")
    # A function is traced once a setting, and that is no mistake to be warned of.
    tf.get_logger().setLevel("ERROR")
    tf.keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    # The first drops orders that the graph asks for: of the GAN's step it leaves two
    # reads of variables that may come before or after their update. The second fails
    # in the midst of that graph, in another place in every process (TensorFlow 2.21).
    off = {"dependency_optimization": False, "remapping": False}
    tf.config.optimizer.set_experimental_options(off)
    if single:
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.threading.set_intra_op_parallelism_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # otherwise a run taken up again would have two writers


def _run(what: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    from convergence import runner

    def tell(*words: Any) -> None:
        _TOLD.put((name, *words))

    work = {"run": runner.run, "calibrate": runner.calibrate}
    work |= {"control": runner.control, "reach": runner.reach}
    with failures.naming(name):
        return work[what](families.FAMILIES[name], runner.Options(**options), tell)


def _replan(
    result: Mapping[str, Any], directories: Sequence[Path]
) -> Mapping[str, str] | None:
    from convergence import replanning

    return replanning.replan(result, directories)


def _drill(
    result: Mapping[str, Any], directories: Sequence[Path]
) -> dict[str, Any] | None:
    from convergence import drilling

    return drilling.later(result, directories)
