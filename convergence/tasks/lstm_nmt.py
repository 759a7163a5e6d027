"""Translation by an LSTM encoder and decoder with attention.

Sizes of the vocabulary come from the pairs.
"""

from __future__ import annotations

from convergence import task
from convergence.data.pairs import Pairs
from convergence.families import Size
from convergence.tasks import pairs
from convergence.tasks.pairs import load as load
from convergence.tasks.pairs import trivial as trivial
from models import lstm_nmt


def make(data: Pairs, size: Size) -> task.Task:
    count, steps = data.vocabulary, data.source.shape[1]
    sizes = {"vocabulary": count, "target_vocabulary": count, "steps": steps}
    model = lstm_nmt.build(**sizes, **size.model)
    return pairs.make(data, size, lstm_nmt, model)
