"""Loaders that share their batches with other devices and processes."""
