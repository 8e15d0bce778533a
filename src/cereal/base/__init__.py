"""Errors, checks, pytrees and specs: what all other folders use. Knows nothing of pipelines.

Nothing is imported here: a process that only reads elements has no JAX (`reading`).
"""
