"""Chooses the 16-bit nodes among the candidates by a minimum cut, and makes `Plan`s.

No node is changed, and no rule about ops may enter.
Before it: `cost`. After it: `apply` builds the graph that a plan describes.
"""
