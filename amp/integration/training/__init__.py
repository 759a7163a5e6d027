"""Where gradients are taken, optimizers update, and loss-scale state is saved.

The arithmetic of loss scaling is `amp.loss_scaling`'s; no graph is rewritten here.
Before it: `distributed`. After it: `install`, which puts all hooks in place.
"""
