"""Caches of elements: their names, their files, and the check that they are still right."""
