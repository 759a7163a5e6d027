"""The errors of the package, each in four parts: found, where, allowed, what to do.

No logic lives here: a caller builds the four parts, and a handler may read them back.
"""


class AmpError(Exception):
    """An error in four parts.

    Args:
      found: what was found.
      where: file, graph, function, node, attribute or field it was found in.
      allowed: what would have been accepted.
      remedy: what the user can do now.
    """

    def __init__(self, found: str, *, where: str, allowed: str, remedy: str) -> None:
        super().__init__(found, where, allowed, remedy)
        self.found = found
        self.where = where
        self.allowed = allowed
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"{self.found}\n  where:   {self.where}\n"
            f"  allowed: {self.allowed}\n  do now:  {self.remedy}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.found, self.where, self.allowed, self.remedy)


def _rebuild(
    kind: type[AmpError], found: str, where: str, allowed: str, remedy: str
) -> AmpError:
    return kind(found, where=where, allowed=allowed, remedy=remedy)


class PolicyError(AmpError, ValueError):
    """A policy field, `AMP_*` variable or pattern that cannot be understood."""


class UsageError(AmpError, ValueError):
    """A command line or call that asks for what there is not, or contradicts itself."""


class GraphError(AmpError, ValueError):
    """A graph that is not well formed, given by the user."""


class VerifyError(AmpError, RuntimeError):
    """A rewritten graph that breaks a law; the original must run instead."""


class TensorFlowError(AmpError, ImportError):
    """A TensorFlow whose version or private names the plugin cannot work with."""


class CheckpointError(AmpError, ValueError):
    """A checkpoint whose loss-scale state is damaged; without `strict` a warning."""


class LossScaleError(AmpError, ValueError):
    """A call that sets, reads or uses a loss scale in a way that cannot work."""


class ProfileError(AmpError, ValueError):
    """A stored device profile that cannot be read, or is of another version."""


class RewriteError(AmpError, RuntimeError):
    """A phase of the rewrite failed unexpectedly; the original must run instead."""
