"""Checks that the ops and node patterns that a policy names exist.

Looks names up; nothing is decided here and no graph may enter.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from amp import spelling
from amp.errors import PolicyError
from amp.graph_rewrite.graph import op_schema
from amp.graph_rewrite.ops.allowable import refusal
from amp.graph_rewrite.ops.op_table import TABLE
from amp.policy import FIELDS, Policy


def check_op_names(policy: Policy) -> None:
    """Checks that there are the ops of `allow` and `deny`, and may be what they say.

    Raises:
      PolicyError: TensorFlow registers no op of that name, for which the error suggests
        the closest one; or `allow` names an op that can never be 16-bit.
    """
    for field in ("allow", "deny"):
        for op in getattr(policy, field):
            if op_schema.schema(op) is None:
                raise PolicyError(
                    f"there is no op {op!r}",
                    where=FIELDS[field].places,
                    allowed="names of ops that this TensorFlow registers",
                    remedy=spelling.hint(op, TABLE, "check its spelling")
                    + "; if it is of a library, load that first",
                )
    for op in policy.allow:
        why = refusal(op)
        if why:
            raise PolicyError(
                f"{op} cannot be 16-bit: {why}",
                where=FIELDS["allow"].places,
                allowed="ops that TensorFlow defines for 16-bit tensors",
                remedy=f"leave {op} out: what comes and goes in float32 is cast for it",
            )


def check_patterns(policy: Policy, names: Iterable[str]) -> None:
    """Checks that every pattern in the policy's `keep` matches a node name.

    Raises:
      PolicyError: a pattern matches none of `names`.
    """
    names = list(names)
    for pattern in policy.keep:
        if not fnmatch.filter(names, pattern):
            raise PolicyError(
                f"the pattern {pattern!r} matches no node",
                where=FIELDS["keep"].places,
                allowed="patterns (fnmatch) that match the name of at least one node",
                remedy="print the report's decisions for the names there are",
            )
