"""Draws some elements of data as one picture."""

from .preview import preview as preview
