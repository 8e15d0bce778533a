"""Readers of file formats; none of them writes, unpacks or runs anything."""
