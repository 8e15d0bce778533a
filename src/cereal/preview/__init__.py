"""Looking at data: some elements, drawn on one sheet."""

from .preview import preview as preview
