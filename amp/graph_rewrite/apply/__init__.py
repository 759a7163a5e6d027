"""Builds the graphs that `Plan`s describe, and links them into the module.

Nothing is decided here.
Before it: `assign`. After it: `fusion` works on the graphs that were made.
"""
