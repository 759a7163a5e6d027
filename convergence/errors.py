"""The errors of the suite, in the four parts of `amp.errors`.

No logic lives here.
"""

from amp.errors import AmpError


class DataError(AmpError, ValueError):
    """A data file that is missing or is not what its format says."""


class ResultError(AmpError, ValueError):
    """Results that cannot be read, or cannot be gone on with."""
