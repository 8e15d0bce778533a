"""Data that only iterates, read by position."""
