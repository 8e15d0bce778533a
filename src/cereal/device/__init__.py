"""WHERE data lies and how rows of it are read."""

from .storage import dataset_to_jax as dataset_to_jax
