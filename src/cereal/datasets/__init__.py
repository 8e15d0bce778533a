"""Ready-made data."""

from .digits import DigitsDataset as DigitsDataset
