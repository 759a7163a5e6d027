"""Translation by a Transformer; both languages share one table of subwords.

Sizes of the vocabulary come from the pairs.
"""

from __future__ import annotations

from convergence import task
from convergence.data.pairs import Pairs
from convergence.families import Size
from convergence.tasks import pairs
from convergence.tasks.pairs import load as load
from convergence.tasks.pairs import trivial as trivial
from models import transformer_nmt


def make(data: Pairs, size: Size) -> task.Task:
    sizes = {"vocabulary": data.vocabulary, "steps": data.source.shape[1]}
    model = transformer_nmt.build(**sizes, **size.model)
    return pairs.make(data, size, transformer_nmt, model)
