"""Makes the graph that a `Plan` describes, and links what was made into the module.

Nothing is decided here.
Before it: `assign`. After it: `fusion` works on the graphs that were made.
"""
