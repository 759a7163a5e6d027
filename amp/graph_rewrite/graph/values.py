"""Attributes of nodes: those that were read, and the values of those that change.

Part of the IR, which names them (`ir.Type`). No protobuf class may enter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

Shape: TypeAlias = tuple[int, ...] | None  # -1: unknown dimension, None: unknown rank


@dataclasses.dataclass(frozen=True, slots=True)
class Type:
    """A new value for a type attribute."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Types:
    """A new value for a list(type) attribute."""

    numbers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Functions:
    """New names for the functions that a func or list(func) attribute calls."""

    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """The function that a func attribute names, for a node that the rewriter adds."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """A new value for a list(shape) attribute."""

    shapes: tuple[Shape, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Strings:
    """A new value for a list(string) attribute."""

    values: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OneShape:
    """A new value for a shape attribute."""

    shape: Shape


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """A constant: `values` (an ndarray) to be stored as type `number`.

    They are float32, or int32 or bool where that is the type.
    """

    values: Any
    number: int


Value: TypeAlias = (
    Type
    | Types
    | Function
    | Functions
    | Shapes
    | OneShape
    | Strings
    | Tensor
    | bool
    | int
    | float
    | str
)


class Attributes(Protocol):
    """The attributes that a node was read with; written back unchanged.

    Methods return an empty value ((), "", None, False) for an absent attribute.
    `NodeAttributes` in `attributes` implements this on a NodeDef.

    Attributes:
      signature: kept here by `op_schema`, as it depends on nothing but these.
    """

    signature: Any

    def __contains__(self, name: str) -> bool: ...

    def types(self, name: str) -> tuple[int, ...]:
        """The DataType numbers of a type or list(type) attribute."""

    def integer(self, name: str, default: int) -> int: ...

    def integers(self, name: str) -> tuple[int, ...]:
        """The numbers of a list(int) attribute."""

    def text(self, name: str) -> str: ...

    def strings(self, name: str) -> tuple[str, ...]:
        """The values of a list(string) attribute."""

    def flag(self, name: str) -> bool: ...

    def functions(self, name: str) -> tuple[str, ...]:
        """The functions that a func or list(func) attribute names."""

    def shape(self, name: str) -> Shape: ...

    def shapes(self, name: str) -> tuple[Shape, ...]:
        """The shapes of a list(shape) attribute."""

    def tensor(self, name: str) -> Any:
        """The values of a tensor attribute as an ndarray, None where absent."""

    def texts(self) -> Mapping[str, str]:
        """Attributes as short texts, without private ones and without defaults."""

    def bare(self) -> Attributes:
        """A copy with those attributes that say what a node does (`ir.is_of_work`)."""

    def key(self) -> bytes:
        """Bytes that are equal for equal attributes, and only for those."""
