"""The convergence suite: float32 against mixed precision, model family by family.

`python -m convergence` runs it; README.md states the protocol. Nothing that the package
`amp` needs may live here.
"""
