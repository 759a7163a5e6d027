"""Trivial models: what a family's float32 must beat before anything is compared.

One kind a file, arithmetic on arrays. No TensorFlow, no gradient steps and no metric: a
task's own `trivial` fits one to its data, and judges it by the task's own metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from convergence.settings import FLOAT32


def beats(result: Mapping[str, Any]) -> bool:
    """Whether float32, in the mean over its seeds, is better than the trivial model.

    A family of which it is not has learned nothing worth comparing.

    Args:
      result: what a file of results holds; `trivial` is `{"name": …, "value": …}`.

    Returns:
      False also where there is no float32 run or no trivial model yet.
    """
    values = [run["metric"] for run in result["runs"] if run["setting"] == FLOAT32]
    if not values or "trivial" not in result:
        return False
    lead = float(np.mean(values)) - result["trivial"]["value"]
    return lead > 0 if result["rule"]["higher"] else lead < 0
