"""Recorded episodes for tests, and their transitions and windows by plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.rl.loops import loop_n_step


def episode(steps: int, number: int = 0, *, terminated: bool = True) -> dict[str, Any]:
    """An episode in which every number says where it is from: 100 * the episode + the step."""
    rng = np.random.default_rng(number)
    names = 100 * number + np.arange(steps + 1)
    last = np.arange(steps) == steps - 1
    return {
        "observations": {"x": np.stack([names, -names], axis=1).astype("f4"), "id": names},
        "actions": (names[:-1].astype(np.uint8), rng.normal(size=(steps, 2, 2)).astype("f4")),
        "rewards": rng.normal(size=steps).astype("f4"),
        "terminations": last & terminated,
        "truncations": last & (not terminated),
        "infos": {"ok": names[:-1] % 2 == 0, "of_reset_too": names},
    }


def recorded(lengths: Any) -> list[dict[str, Any]]:
    """Episodes of these lengths; every second one is truncated."""
    return [episode(n, at, terminated=at % 2 == 0) for at, n in enumerate(lengths)]


def transition(episode: Any, t: int, n_step: int | None = None, gamma: float = 0.99) -> Any:
    """A transition as a dict, by hand."""
    made = {
        "state": {name: x[t] for name, x in episode["observations"].items()},
        "action": tuple(x[t] for x in episode["actions"]),
        "reward": episode["rewards"][t],
        "next_state": {name: x[t + 1] for name, x in episode["observations"].items()},
        "done": episode["terminations"][t] | episode["truncations"][t],
        "info": {
            "terminated": episode["terminations"][t],
            "truncated": episode["truncations"][t],
            "ok": episode["infos"]["ok"][t],
            "of_reset_too": episode["infos"]["of_reset_too"][t + 1],
        },
    }
    if n_step is not None:
        done = episode["terminations"] | episode["truncations"]
        total, last, discount = loop_n_step(
            episode["rewards"], done, n_step, gamma, episode["terminations"]
        )
        after = {name: x[int(last[t]) + 1] for name, x in episode["observations"].items()}
        made["n_step_return"], made["bootstrap_discount"] = total[t], discount[t]
        made["bootstrap_state"] = after
    return made


def transitions(episodes: Any, n_step: int | None = None, gamma: float = 0.99) -> list[Any]:
    return [
        transition(episode, t, n_step, gamma)
        for episode in episodes
        for t in range(len(episode["rewards"]))
    ]


def windows(episodes: Any, size: int, period: int, pad: bool) -> list[list[tuple[int, int]]]:
    """The real steps of every window, as pairs (episode, step)."""
    made = []
    for number, each in enumerate(episodes):
        steps = len(each["rewards"])
        for start in range(0, steps, period):
            inside = [(number, t) for t in range(start, min(start + size, steps))]
            if pad or len(inside) == size:
                made.append(inside)
    return made
