"""Readers of file formats; they write no files and run no code from a file."""
