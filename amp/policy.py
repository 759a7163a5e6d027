"""`Policy`: every choice a user can make, as one frozen value that prints and parses.

No graph logic, no device query, no TensorFlow: what "auto" becomes is decided where the
device is known.
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from amp import spelling
from amp.errors import PolicyError
from amp.loss_scaling import scale_text
from amp.loss_scaling.scale import LossScale

DTYPES = ("auto", "float16", "bfloat16")
ASSIGNMENTS = ("cost", "all")
# What a switch may be set to, as it prints, whatever the case of its letters.
WORDS = {"1": True, "true": True, "on": True, "yes": True} | dict.fromkeys(
    ("0", "false", "off", "no", ""), False
)


def _choice(allowed: tuple[str, ...]) -> Callable[[object, str], str]:
    def parse(value: object, where: str) -> str:
        for option in allowed:
            if value == option:  # a tf.DType or np.dtype equals its name
                return option
        among = f"one of {', '.join(map(repr, allowed))}"
        raise _bad(value, where, among, spelling.hint(str(value), allowed, _CORRECT))

    return parse


def _flag(value: object, where: str) -> bool:
    word = str(value).strip().lower()  # NumPy's True and its 1 print as Python's do
    if word in WORDS:
        return WORDS[word]
    allowed = "True or 1, False or 0; as text 1, true, on, yes or 0, false, off, no"
    raise _bad(value, where, allowed)


def _auto_or_flag(value: object, where: str) -> bool | str:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return _flag(value, where)
    except PolicyError:
        raise _bad(value, where, '"auto", True or 1, False or 0') from None


def _names(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, Iterable):
        names = list(value)
        if all(isinstance(name, str) for name in names):
            return tuple(sorted({name.strip() for name in names} - {""}))
    raise _bad(value, where, "names separated by commas, or a sequence of them")


def _number(below: float, allowed: str) -> Callable[[object, str], float]:
    def parse(value: object, where: str) -> float:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = -1.0
        if isinstance(value, bool) or not 0.0 <= number < below:
            raise _bad(value, where, allowed)
        return number

    return parse


_gain = _number(1.0, "a fraction of the float32 time, from 0 up to, not including, 1")
_seconds = _number(float("inf"), "a number of seconds, 0 for none")


def _directory(value: object, where: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    raise _bad(value, where, "the path of a directory")


def _loss_scale(value: object, where: str) -> LossScale | str:
    return scale_text.parse(value, where=where)


def _declared(
    default: object, parse: Callable[[object, str], object], flag: str
) -> Any:
    """Declares a field of `Policy`: `FIELDS` is made from what is said here.

    Args:
      default: its value where nothing is given.
      parse: takes a value and where it was given, and returns the value to keep.
      flag: what `--help` says of its flag.
    """
    return dataclasses.field(default=default, metadata={"parse": parse, "flag": flag})


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """How a job is to run in mixed precision. `Policy.parse(str(policy)) == policy`.

    Args:
      dtype: "auto" (what the device computes fastest), "float16" or "bfloat16".
      emulate: keep float32 kernels and round every 16-bit tensor, so that any machine
        shows how a model converges.
      loss_scale: "auto" (dynamic for float16, none for bfloat16), "dynamic", "none", a
        number, or a LossScale.
      allow: op types that may run in 16 bits though the white-list does not name them.
      deny: op types that stay float32.
      keep: patterns (`fnmatch`) of node names that stay float32.
      assignment: "cost" (the fastest by the cost model) or "all" (every candidate).
      min_gain: least predicted gain, as a fraction of the float32 time, for which a
        function is rewritten at all; not asked of emulation or assignment="all".
      trial: whether the first calls of a function are turns of a race between the
        original and several plans, after which the fastest runs; "auto": not with
        deterministic operations, several workers, emulation or assignment="all". Which
        of these calls run in 16 bits depends on their times, so False for runs that are
        to be repeated bit for bit.
      check: whether a training step's gradients, computed from its first batch, are
        compared with those in float32 before it runs in 16 bits, and again later;
        where they are off by more than its products make them, the nodes at fault stay
        float32. So do those that take half of the digits of what a function gives that
        takes no gradient. "auto": within a few steps' time, and not for
        assignment="all"; True: whatever time the search for these nodes takes, up to
        40 plans.
      tune_budget: seconds that this process may spend, in all, on measuring operations
        of its functions between their calls, in at most 1 % of their time, or 10 % once
        a race has shown predictions to be wrong; 0 plans from what is stored. With
        trial=False nothing is measured.
      wire: whether gradients that Keras optimizers sum over the workers of a
        MultiWorkerMirroredStrategy travel as bfloat16, where that gains.
      strict: raise what would otherwise be a warning and a float32 fallback.
      report: directory that every rewrite writes its report to, or None.

    Raises:
      PolicyError: a value that is not allowed.
    """

    dtype: str = _declared("auto", _choice(DTYPES), "auto, float16 or bfloat16")
    emulate: bool = _declared(
        False, _flag, "1: round in float32 kernels, on any machine"
    )
    loss_scale: Any = _declared("auto", _loss_scale, "auto, dynamic, none or a number")
    allow: tuple[str, ...] = _declared((), _names, "op types, separated by commas")
    deny: tuple[str, ...] = _declared((), _names, "op types, separated by commas")
    keep: tuple[str, ...] = _declared(
        (), _names, "patterns of node names, separated by commas"
    )
    assignment: str = _declared("cost", _choice(ASSIGNMENTS), "cost or all")
    min_gain: float = _declared(0.02, _gain, "a fraction of the float32 time")
    trial: bool | str = _declared(
        "auto",
        _auto_or_flag,
        "auto, 1 or 0: first calls alternate until the fastest is known",
    )
    check: bool | str = _declared(
        "auto",
        _auto_or_flag,
        "auto, 1 or 0: gradients, and results, are compared",
    )
    tune_budget: float = _declared(
        10.0, _seconds, "seconds to spend on measuring the job's operations; 0 for none"
    )
    wire: bool = _declared(
        False,
        _flag,
        "1: gradients travel between hosts as bfloat16, where that gains",
    )
    strict: bool = _declared(False, _flag, "1: an error instead of a warning")
    report: str | None = _declared(None, _directory, "a directory")

    def __post_init__(self) -> None:
        for name, field in FIELDS.items():
            value = field.parse(getattr(self, name), f"Policy({name}=...)")
            object.__setattr__(self, name, value)
        both = set(self.allow) & set(self.deny)
        if both:
            raise _bad(
                ", ".join(sorted(both)),
                "Policy(allow=..., deny=...)",
                "an op type in at most one of the two",
            )

    @classmethod
    def make(cls, policy: Policy | None = None, **fields: Any) -> Policy:
        """Returns `policy` with `fields` replaced.

        Without one, they replace what the `AMP_*` variables say, so that a job obeys
        its shell wherever its own lines leave something open.

        Raises:
          PolicyError: an unknown field, a bad value of one or of a variable, no Policy.
        """
        if policy is not None and not isinstance(policy, cls):
            named = f'write dtype="{policy}"' if str(policy) in DTYPES else _CORRECT
            raise _bad(policy, "policy", "an amp.Policy or None", named)
        _require_known(fields)
        if policy is None:
            policy = cls.from_env()
        return dataclasses.replace(policy, **fields) if fields else policy

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Policy:
        """Returns the policy that the `AMP_*` variables describe.

        One that is empty is as one that is not set.

        Args:
          environ: the environment; `os.environ` by default.

        Raises:
          PolicyError: a malformed value, naming its variable.
        """
        environ = os.environ if environ is None else environ
        fields = {}
        for name, field in FIELDS.items():
            if environ.get(field.variable, "").strip():
                fields[name] = field.parse(environ[field.variable], field.variable)
        return cls(**fields)

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Returns the policy that `str` printed.

        Raises:
          PolicyError: text that is no policy.
        """
        try:
            call = ast.parse(text.strip(), mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError(text)
            if ast.unparse(call.func) != "Policy":
                raise ValueError(text)
            fields: Any = {str(k.arg): _value(k.value) for k in call.keywords}
        except (SyntaxError, ValueError) as e:
            raise _bad(text, "Policy.parse", "Policy(field=value, ...)") from e
        _require_known(fields)
        return cls(**fields)

    def __str__(self) -> str:
        shown = [n for n, field in FIELDS.items() if getattr(self, n) != field.default]
        return f"Policy({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"

    def keeps(self, node_name: str) -> bool:
        """Whether a `keep` pattern matches a node name."""
        return any(fnmatch.fnmatchcase(node_name, pattern) for pattern in self.keep)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """What a field of `Policy` is called and takes, wherever one can be given.

    Attributes:
      name: the keyword.
      default: its value where nothing is given.
      parse: takes a value and where it was given, and returns the value to keep.
      help: what its flag takes, for `--help`.
    """

    name: str
    default: Any
    parse: Callable[[object, str], Any]
    help: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"AMP_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """The flag of the command `amp`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def places(self) -> str:
        """Wherever it can be given, for an error long after it was."""
        return f"Policy({self.name}=...), {self.variable}, {self.flag}"


FIELDS = {
    field.name: Field(
        field.name, field.default, field.metadata["parse"], field.metadata["flag"]
    )
    for field in dataclasses.fields(Policy)
}


def _require_known(fields: Iterable[str]) -> None:
    for name in fields:
        if name not in FIELDS:
            meant = spelling.hint(name, FIELDS, _CORRECT)
            raise _bad(name, "fields of amp.Policy", ", ".join(FIELDS), meant)


def _value(node: ast.expr) -> object:
    return ast.unparse(node) if isinstance(node, ast.Call) else ast.literal_eval(node)


_CORRECT = "correct the value or leave it out to get the default"


def _bad(value: object, where: str, allowed: str, do: str = _CORRECT) -> PolicyError:
    found = f"{value!r} is not accepted"
    return PolicyError(found, where=where, allowed=allowed, remedy=do)
