"""Loops over batches, with an exact state after each."""
