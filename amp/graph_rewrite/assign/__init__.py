"""The exact choice: tensors and casts as a graph, its minimum cut, the frozen `Plan`.

No node is changed, and no rule about ops may enter.
Before it: `cost`. After it: `apply` makes what the plan describes.
"""
