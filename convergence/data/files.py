"""Finding and reading files of a data directory, with errors that name the file.

Formats of single data sets are not known here.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from convergence.errors import DataError

T = TypeVar("T")
REMEDY = "put the file there, or name another directory with --data-dir"


def found(directory: Path, pattern: str) -> list[Path]:
    """The files of a name or pattern in a directory, or else in its directories."""
    return sorted(directory.glob(pattern)) or sorted(directory.glob(f"*/{pattern}"))


def choose(directory: Path, sources: Mapping[str, Callable[[Path], T]], what: str) -> T:
    """Loads the first source whose file is there.

    Args:
      directory: the data directory.
      sources: pattern of the file that tells a format, and its loader.
      what: the data wanted, for the error.

    Raises:
      DataError: no such directory, or none of the files is in it.
    """
    if not directory.is_dir():
        raise DataError(
            "no such directory",
            where=str(directory),
            allowed="a directory with data",
            remedy="name one with --data-dir, or leave it out for the embedded data",
        )
    for pattern, load in sources.items():
        paths = found(directory, pattern)
        if paths:
            return load(paths[0])
    raise DataError(
        f"there is no file for {what}",
        where=str(directory),
        allowed=f"one of {', '.join(sources)}, there or in a directory of it",
        remedy=REMEDY,
    )


def beside(path: Path, name: str) -> Path:
    """The file `name` of the directory that `path` is in.

    Raises:
      DataError: it is not there.
    """
    other = path.parent / name
    if not other.exists():
        raise DataError(
            "no such file",
            where=str(other),
            allowed=f"a file that belongs to {path.name}",
            remedy=REMEDY,
        )
    return other


def malformed(path: Path, found: str, expected: str) -> DataError:
    """The error of a file that is not what it should be."""
    return DataError(
        found,
        where=str(path),
        allowed=expected,
        remedy="fetch or make the file again",
    )


def arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays of an .npz file.

    Raises:
      DataError: it cannot be read, or lacks one of `names`.
    """
    expected = f"an .npz file with {', '.join(names)}"
    try:
        with np.load(path, allow_pickle=False) as held:
            missing = [name for name in names if name not in held]
            if missing:
                raise malformed(path, f"it has no {', '.join(missing)}", expected)
            return {name: held[name] for name in names}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as e:
        raise malformed(path, f"it cannot be read: {e}", expected) from e
    except ValueError as e:
        if isinstance(e, DataError):
            raise
        raise malformed(path, f"it cannot be read: {e}", expected) from e


def text(path: Path) -> str:
    """What a text file in UTF-8 says; one that ends in .gz is unpacked.

    Raises:
      DataError: it cannot be read.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
        raise malformed(path, f"it cannot be read: {e}", "text in UTF-8") from e


def lines(path: Path) -> list[str]:
    """The lines of a text file, without their ends."""
    return text(path).splitlines()
