"""An iterator in a checkpoint of Orbax v1, which calls its methods `save` and `load`.

Orbax runs the first part of each before it returns to the user, and the rest in the background. So
the state is taken at once, and training goes on while it is written. Cereal does not import Orbax.
"""

from __future__ import annotations

import json
from typing import Any

import jax

from ...base.errors import StateError, in_one_line

FILE = "loader_state.json"


async def write_into(directory: Any, saved: dict[str, Any]) -> None:
    """Writes a state into a folder that Orbax is making; there is one state for all hosts."""
    folder = await directory.await_creation()
    if jax.process_index() == 0:
        (folder / FILE).write_text(json.dumps(saved))


def read_from(directory: Any) -> Any:
    """The state in the folder of a checkpoint."""
    path = directory / FILE
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StateError(
            f"no state of a loader can be read from {path} ({in_one_line(error)}); restore from "
            f"another step, whose checkpoint was saved with this iterator in it."
        ) from error


async def nothing() -> None:
    """What is left to do in the background when all is done."""
