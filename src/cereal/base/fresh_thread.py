"""What a new thread sees."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_fresh_thread(look: Callable[[], Any]) -> Any:
    """What `look()` returns in a new thread, which has no traces, contexts or settings."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]
