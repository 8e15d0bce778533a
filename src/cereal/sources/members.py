"""What a source made of sources has from all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from ..core.errors import PipelineError
from ..core.host import first_element
from ..core.positional import IndexedSource

T_co = TypeVar("T_co", covariant=True)


class OverMembers(IndexedSource[T_co]):
    """An indexed source that reads members; what holds of one or of all of them holds of it."""

    @property
    @abstractmethod
    def members(self) -> Sequence[IndexedSource[Any]]:
        """The sources that it reads."""

    @property
    def random_stages(self) -> int:
        return max(member.random_stages for member in self.members)

    @property
    def masks(self) -> bool:
        return any(member.masks for member in self.members)

    @property
    def keyed(self) -> bool:
        return any(member.keyed for member in self.members)

    @property
    def fixed(self) -> bool:
        return all(member.fixed for member in self.members)

    @property
    def varies(self) -> bool:
        return any(member.varies for member in self.members)

    @property
    def once(self) -> bool:
        return all(member.once for member in self.members)

    @property
    def overlap(self) -> int:
        return max(member.overlap for member in self.members)

    @property
    def roots(self) -> frozenset[int]:
        return frozenset().union(*(member.roots for member in self.members))

    @property
    def host(self) -> bool:
        return any(member.host for member in self.members)

    @property
    def produces(self) -> bool:
        return all(member.produces for member in self.members)

    @property
    def quick(self) -> bool:
        return all(member.quick for member in self.members)

    @property
    def ahead(self) -> int:
        return max(member.ahead for member in self.members)

    @property
    def masks_on_host(self) -> bool:
        return any(member.masks_on_host for member in self.members)

    def sample(self) -> Any:
        return first_element(self)

    @property
    def light(self) -> bool:
        return all(member.light for member in self.members)

    @property
    def placement(self) -> Any:
        places = {member.placement for member in self.members} - {None}
        if len(places) > 1:
            names = " and ".join(sorted(map(str, places))[:2])
            raise PipelineError(
                f"{self.label}: its parts are put in different places, {names}, and a batch goes "
                f"to one; write one DevicePutTransform, after the BatchTransform."
            )
        return next(iter(places), None)
