"""TensorFlow and its datasets, imported without what they print and warn of."""

from __future__ import annotations

import os
import warnings
from importlib import import_module

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # else it talks
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    tf = import_module("tensorflow")
    tfds = import_module("tensorflow_datasets")
