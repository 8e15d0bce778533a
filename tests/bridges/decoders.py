"""Functions that worker processes import, so that they need not import the library under test."""

from __future__ import annotations

from typing import Any

import numpy as np

from cereal.reading.records.example import parse_example


def by_function(record: bytes) -> Any:
    """A `tf.train.Example` as an element."""
    found = parse_example(record)
    image = np.frombuffer(found["image"][0], np.uint8).reshape(5, 6)
    return {"image": image, "label": found["label"][0], "scores": found["scores"]}


def as_floats(record: bytes) -> np.ndarray:
    return np.frombuffer(record, np.float32)
