"""Compares what a graph computes with what its twin computes, tensor by tensor.

Nothing is run here, and no plan is made: copies of graphs, figures of arrays, and text.
Before it: every room that makes twins. After it: `amp.integration.comparing`, which
runs the copies.
"""
