"""Threads that read the host part of a pipeline ahead; README.md draws their life."""
