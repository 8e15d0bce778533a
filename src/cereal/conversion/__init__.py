"""From any source to a folder of arrays that are mapped into memory."""

from .convert import convert as convert
