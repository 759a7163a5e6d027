"""What the package keeps for the whole process, in one object with one `reset`.

Each room reads and writes its own fields of `PROCESS`. No hook and no logic lives here.
What a thread or an asyncio task keeps to itself is in `active`, not here.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Process:
    """The state of the process.

    Attributes:
      on: what `enable` switched on (an `active.Active`), None where it is off.
      waiting: settles a policy that is to be on from the first call; None once done.
      settled: what each policy came to on this machine, by the policy.
      installed: whether the hooks of TensorFlow are in place, all of them.
      keras_installed: the same of Keras.
      tf_keras_installed: the same of tf_keras, the Keras before.
      wrapped: the hooks that are in place, by their row.
      marked_graphs: graphs that a scope was entered in while they were built, with the
        twins of that scope.
      marked: the functions that those graphs became, by name.
      traced: the graph that a function was traced as, by the function's name.
      twins: the twins of every policy settled so far.
      sessions: the twins of graphs that sessions run.
      session_locks: for each of those graphs what is held while its twin grows.
      carried: optimizers whose workers agreed to send gradients in 16 bits.
      told: what the user was warned of already.
    """

    on: Any = None
    waiting: Callable[[], Any] | None = None
    settled: dict[Any, Any] = dataclasses.field(default_factory=dict)
    installed: bool = False
    keras_installed: bool = False
    tf_keras_installed: bool = False
    wrapped: dict[Any, Any] = dataclasses.field(default_factory=dict)
    marked_graphs: weakref.WeakKeyDictionary[Any, Any] = dataclasses.field(
        default_factory=weakref.WeakKeyDictionary
    )
    marked: dict[bytes, Any] = dataclasses.field(default_factory=dict)
    traced: dict[str, weakref.ReferenceType[Any]] = dataclasses.field(
        default_factory=dict
    )
    twins: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)
    sessions: weakref.WeakKeyDictionary[Any, Any] = dataclasses.field(
        default_factory=weakref.WeakKeyDictionary
    )
    session_locks: weakref.WeakKeyDictionary[Any, Any] = dataclasses.field(
        default_factory=weakref.WeakKeyDictionary
    )
    carried: weakref.WeakSet[Any] = dataclasses.field(default_factory=weakref.WeakSet)
    told: set[str] = dataclasses.field(default_factory=set)

    def reset(self) -> None:
        """Forgets everything but which hooks are in place; those have nothing to do.

        Called between tests, and by a second copy of the package, whose hooks take the
        place of this one's.
        """
        fresh = Process(
            installed=self.installed,
            keras_installed=self.keras_installed,
            tf_keras_installed=self.tf_keras_installed,
            wrapped=self.wrapped,
        )
        self.__dict__.update(fresh.__dict__)


PROCESS = Process()
