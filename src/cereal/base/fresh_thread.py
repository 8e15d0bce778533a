"""What a thread sees that has begun nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_fresh_thread(look: Callable[[], Any]) -> Any:
    """What `look()` returns in a thread of its own, without traces, contexts and settings."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]
