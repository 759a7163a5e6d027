"""The hooks for gradients, optimizers, and the saving of the loss scale.

The arithmetic of loss scaling is `amp.loss_scaling`'s; no graph is rewritten here.
Before it: `distributed`. After it: `install`, which puts all hooks in place.
"""
