"""What a step is asked for besides its results: copies compare, and variants tell.

No twin may be made or chosen here, nothing of the step itself may change.
Before it: `racing`. After it: `functions`, at whose calls it is done.
"""
