"""What a node and a cast cost on a device, as measured or as modelled.

Nothing is chosen, and no device is asked.
Before it: `candidates`. After it: `assign` chooses by these prices.
"""
