"""What all sources that are made of other sources share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ...order.rows import rows_at
from ...order.threefry import PART, key_for
from ...pipeline.host_source import first_element
from ...pipeline.positional import IndexedSource
from ...pipeline.traits import Traits

T_co = TypeVar("T_co", covariant=True)


class OverMembers(IndexedSource[T_co]):
    """An indexed source that reads other sources, its members; its traits follow from theirs."""

    @property
    @abstractmethod
    def _members(self) -> Sequence[IndexedSource[Any]]:
        """The sources that it reads."""

    def _describe(self) -> Traits:
        return self._describe_as(**self._merged())

    def _merged(self) -> dict[str, Any]:
        """The traits that follow from those of the members."""
        return Traits.merge([member.traits for member in self._members])

    @property
    def _roots(self) -> frozenset[int]:
        return frozenset().union(*(member._roots for member in self._members))

    def _sample(self) -> Any:
        return first_element(self)

    def take(self, indices: Any) -> T_co:
        """The elements at these indices; for a shuffled mixture, those of epoch 0 and key 0."""
        return self._read(self._route(rows_at(indices)))[0]

    def _member_key(self, key: Any, number: int) -> Any:
        """The random key of a member; each has its own, so their random stages are independent."""
        if self.traits.random_stages == 0 or isinstance(key, jax.ShapeDtypeStruct):
            return key
        xp = np if isinstance(key, np.ndarray) else jnp
        return xp.stack(key_for((key[0], key[1]), number, PART))
