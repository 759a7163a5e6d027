"""The cost model: seconds of each node and cast on a device, measured or modelled.

Nothing is chosen here, and no device is queried.
Before it: `candidates`. After it: `assign` chooses by these prices.
"""
