"""Data that can only be iterated, read by position."""
