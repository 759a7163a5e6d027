"""`python -m convergence` with two small families.

Processes that it spawns have them too, as they run this file under another name than
`__main__`. No test lives here.
"""

from __future__ import annotations

import sys

import tiny_family
from convergence_runs import small

from convergence import observing
from convergence.__main__ import main
from convergence.families import FAMILIES

sys.modules["convergence.tasks.tiny"] = sys.modules["tiny_family"]
observing.DRAWS = 2  # how exact a gradient has to be is not the question here
FAMILIES["tiny"] = tiny_family.TINY
FAMILIES["wide_deep"] = small("wide_deep", 40)

if __name__ == "__main__":
    sys.exit(main())
