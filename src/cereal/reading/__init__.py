"""Reading elements and making batches of them: all that runs for a batch in Python.

Nothing here imports JAX, so a process that reads for a loader starts quickly and stays small.
"""
