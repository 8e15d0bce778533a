"""The seeds' code blocks run, and do what the seeds say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cereal.datasets.fetching import data_dir

Names = dict[str, Any]
Printed = Callable[[], list[float]]  # the losses that were printed since it was last asked
Check = Callable[[Names, Names, Printed], None]  # (names before, names after, printed)

BATCH = 128
KEY = jax.random.PRNGKey(0)
STEPS = {1_500: 12, 60_000: 469}  # of an epoch; its last batch is filled from the next one


def length(names: Names) -> int:
    return len(names["data"]["label"])


def steps_of(names: Names) -> int:
    return STEPS[length(names)]


def surplus(names: Names) -> int:
    return steps_of(names) * BATCH - length(names)


# What blocks leave behind


def position(state: Any) -> tuple[int, int]:
    return int(state.epoch), int(state.offset)


def mean_loss(names: Names, state: Any) -> float:
    logits = state.apply_fn(state.params, names["data"]["image"])
    return float(jnp.mean(names["cross_entropy"](logits, names["data"]["label"])))


def assert_trained(names: Names, before: Any, after: Any, steps: int) -> None:
    assert int(after.step) - int(before.step) == steps
    for old, new in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True):
        assert np.isfinite(new).all()
        assert not np.array_equal(old, new)
    assert mean_loss(names, after) < mean_loss(names, before)


def assert_trained_on(loader: Any, names: Names, before: Any, after: Any, steps: int) -> None:
    """The parameters are those of a loop by hand over the batches of these steps."""
    assert_trained(names, before, after, steps)
    expected, update = before, jax.jit(names["model_update"])
    for step in range(steps):
        expected = update(expected, *loader.batch_at(KEY, step))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        after.params,
        expected.params,
    )


def assert_batch(batch: Any, data: Any, indices: Any) -> None:
    assert batch.keys() == {"image", "label"}
    for name, values in batch.items():
        np.testing.assert_array_equal(values, data[name][indices])


def rows(images: Any) -> list[bytes]:
    return sorted(image.tobytes() for image in np.asarray(images))


# 000


def one_jitted_step_trains_on_the_first_batch(before: Names, after: Names, _: Printed) -> None:
    assert all(isinstance(array, jax.Array) for array in after["train_arrays"].values())
    assert after["loader"].steps_per_epoch == steps_of(before)
    assert position(after["loader_state"]) == (0, BATCH)
    old, new = before["train_state"], after["train_state"]
    assert_trained_on(after["loader"], before, old, new, steps=1)


def both_ways_to_build_give_the_same_batches(before: Names, after: Names, _: Printed) -> None:
    data, batch = before["data"], after["batch"]
    assert_batch(batch, data, np.arange(BATCH))
    assert after["mask"].shape == (BATCH,)
    assert after["mask"].all()
    assert position(after["state"]) == position(after["loader_state"]) == (0, BATCH)

    state, loader_state = after["pipeline"].init_state(KEY), after["loader"].init_state(KEY)
    for step in range(steps_of(before) - 1):
        one, one_mask, state = after["pipeline"].next(state)
        two, loader_state, two_mask = after["loader"].next_batch(loader_state)
        expected = np.arange(step * BATCH, (step + 1) * BATCH)
        assert_batch(one, data, expected)
        assert_batch(two, data, expected)
        np.testing.assert_array_equal(one_mask, two_mask)
        assert position(state) == position(loader_state)


def the_compiled_step_trains_and_advances(before: Names, after: Names, _: Printed) -> None:
    assert position(after["loader_state"]) == (0, BATCH)
    assert_trained(before, before["train_state"], after["train_state"], steps=1)

    train_state, loader_state = after["train_state"], after["loader_state"]
    for key in jax.random.split(jax.random.PRNGKey(1), steps_of(before) - 1):
        train_state, loader_state = after["compiled_step"](train_state, loader_state, key)
    assert position(loader_state) == (1, 0)
    assert after["compiled_step"]._cache_size() == 1
    assert_trained(before, after["train_state"], train_state, steps=steps_of(before) - 1)


def scanned_optimizer_sees_an_epoch(before: Names, after: Names, _: Printed) -> None:
    assert position(after["loader_state"]) == (1, 0)
    old, new = before["opt_state"], after["opt_state"]
    assert_trained_on(before["loader"], before, old, new, steps=steps_of(before))


def attached_losses_are_printed(before: Names, after: Names, printed: Printed) -> None:
    def loss(images: Any, labels: Any) -> Any:
        return jnp.mean(before["cross_entropy"](before["model"](images), labels))

    losses = expected_losses(after["loader"], before, loss)
    assert_prints(after["loader"], before, losses, printed)
    seen = [float(batch["loss"]) for batch, _ in after["loader"].iterate(state_of(after))]
    assert seen == printed()


# 001


def iterating_gives_every_element_once(before: Names, after: Names, _: Printed) -> None:
    loader, data = after["loader"], before["data"]
    assert position(after["state"]) == (0, 0)
    last, last_mask = loader.batch_at(KEY, steps_of(before) - 1)
    assert_batch(after["batch"], last, np.arange(BATCH))
    np.testing.assert_array_equal(after["mask"], last_mask)

    batches = list(loader.iterate(after["state"]))
    assert len(batches) == loader.steps_per_epoch == steps_of(before)
    assert all(mask.all() for _, mask in batches)
    images = np.concatenate([batch["image"] for batch, _ in batches])
    assert rows(images[: length(before)]) == rows(data["image"])
    assert not np.array_equal(images[: length(before)], data["image"])


def the_disk_gives_every_element_once(before: Names, after: Names, printed: Printed) -> None:
    iterating_gives_every_element_once(before, after, printed)
    assert len(list(data_dir().glob("mnist/arrays/train-*/image.npy"))) == 1
    for step, (batch, _) in enumerate(after["loader"].iterate(state_of(after))):
        assert_batch(batch, before["data"], after["loader"].indices_at(KEY, step))


def scanned_model_sees_an_epoch(before: Names, after: Names, _: Printed) -> None:
    assert position(after["loader_state"]) == (1, 0)
    old, new = before["model_state"], after["model_state"]
    assert_trained_on(before["loader"], before, old, new, steps=steps_of(before))


def a_jitted_epoch_trains(before: Names, after: Names, _: Printed) -> None:
    loader, first, second = after["loader"], after["model_state"], after["loader_state"]
    assert loader.steps_per_epoch == steps_of(before)
    assert position(second) == (1, surplus(before))
    assert_trained_on(loader, before, before["model_init"](), first, steps=steps_of(before))

    model_state, loader_state = after["train_epoch"](first, second)
    assert position(loader_state) == (2, 2 * surplus(before))
    assert after["train_epoch"]._cache_size() == 1
    assert_trained(before, first, model_state, steps=steps_of(before))


def losses_of_the_callback_are_printed(before: Names, after: Names, printed: Printed) -> None:
    def loss(images: Any, labels: Any) -> Any:
        return np.mean((images.mean(axis=(1, 2, 3)) - labels) ** 2)

    losses = expected_losses(after["loader"], before, loss)
    assert_prints(after["loader"], before, losses, printed)
    for step, (batch, _) in enumerate(after["loader"].iterate(state_of(after))):
        assert_batch(batch, before["data"], after["loader"].indices_at(KEY, step))


# Host callbacks


def state_of(names: Names) -> Any:
    return names["loader"].init_state(KEY)


def expected_losses(loader: Any, names: Names, loss: Callable[[Any, Any], Any]) -> list[float]:
    """Computed without the pipeline, from the order alone."""
    data = names["data"]
    chosen = [loader.indices_at(KEY, step) for step in range(steps_of(names))]
    return [float(loss(data["image"][index], data["label"][index])) for index in chosen]


def assert_prints(loader: Any, names: Names, losses: list[float], printed: Printed) -> None:
    """Once per batch, in order, however the loader is run."""
    expected = pytest.approx(losses, rel=1e-4)
    state = loader.init_state(KEY)
    steps = steps_of(names)
    assert loader.steps_per_epoch == steps == len(losses)
    assert printed() == []

    by_iterating = []
    for batches, _ in enumerate(loader.iterate(state), start=1):
        by_iterating += printed()
        assert len(by_iterating) == batches
    assert by_iterating == expected

    next_batch = jax.jit(loader.next_batch)
    stepped = state
    for _ in range(steps):
        _, stepped, _ = next_batch(stepped)
    jax.effects_barrier()
    assert printed() == expected
    assert position(stepped) == (1, surplus(names))

    def count(total: Any, batch: Any, mask: Any) -> tuple[Any, None]:
        del batch
        return total + mask.sum(), None

    def epoch(loader: Any, state: Any) -> Any:
        return loader.scan_epoch(state, jnp.int32(0), count)

    for run in (epoch, jax.jit(epoch)):
        scanned, total, _ = run(loader, state)
        jax.effects_barrier()
        assert printed() == expected
        assert int(total) == steps * BATCH
        assert position(scanned) == position(stepped)


# Rollouts


def transitions_of_one_epoch_are_given(before: Names, after: Names, printed: Printed) -> None:
    del before
    assert printed() == []
    batch, mask, loader = after["batch"], after["mask"], after["loader"]
    assert set(batch) == {"state", "action", "reward", "next_state", "done", "info"}
    assert batch["state"].shape == batch["next_state"].shape == (16, 4)
    assert mask.all()
    goes_on = ~np.asarray(batch["done"])[:-1]
    assert np.array_equal(batch["next_state"][:-1][goes_on], batch["state"][1:][goes_on])
    assert set(np.asarray(batch["action"]).tolist()) == {0, 1}  # sampled by the policy of zeros
    # The last lines of the block change a state that the loop does not look at any more.
    assert np.array_equal(loader.get_policy_state(after["state"])["params"], np.ones((4, 2)))
    policy = {"params": jnp.zeros((4, 2)), "recurrent_state": jnp.zeros(3)}
    again = loader.set_policy_state(loader.init_state(KEY), policy)
    first, _, _ = loader.next_batch(again)
    assert np.array_equal(first["action"], batch["action"])
    by_source = after["set_source_policy_state"](after["source"].init_state(KEY), policy)
    assert np.array_equal(after["source"].next(by_source)[0]["state"], batch["state"][0])


# The blocks

# As in the seeds but for three blocks of 000, which would not train: elements are dicts, a loss is
# computed inside the function whose gradient is taken, and `scan_epoch` is the one of 001.
CHECKS: dict[str, Check] = {
    "000 Quick start with MNIST": one_jitted_step_trains_on_the_first_batch,
    "000 Building custom pipelines": both_ways_to_build_give_the_same_batches,
    "000 JIT example": the_compiled_step_trains_and_advances,
    "000 scan_epoch example": scanned_optimizer_sees_an_epoch,
    "000 Host callbacks inside pipelines": attached_losses_are_printed,
    "001 Quick start with MNIST": iterating_gives_every_element_once,
    "001 Scan and Avoid Boilerplate": scanned_model_sees_an_epoch,
    "001 JIT Capabilities": a_jitted_epoch_trains,
    "001 Streaming from Disk": the_disk_gives_every_element_once,
    "001 For the Dirty and Impure": losses_of_the_callback_are_printed,
    "001 Reinforcement Learning": transitions_of_one_epoch_are_given,
}
_BLOCK = re.compile(r"^# (?P<heading>[^\n]+)\n\n```python\n(?P<code>.*?)^```$", re.M | re.S)


def read_blocks() -> dict[str, CodeType]:
    """Heading to code, compiled so that errors point to the line of the file."""
    found: dict[str, CodeType] = {}
    for path in sorted(Path(__file__).parent.glob("seed_*.md")):
        text = path.read_text()
        for match in _BLOCK.finditer(text):
            code = "\n" * text.count("\n", 0, match.start("code")) + match["code"]
            heading = f"{path.stem.removeprefix('seed_')} {match['heading']}"
            found[heading] = compile(code, str(path), "exec", dont_inherit=True)
    return found


BLOCKS = read_blocks()


def test_every_block_has_a_check() -> None:
    assert list(BLOCKS) == list(CHECKS)


@pytest.mark.filterwarnings("ignore::cereal.EpochWarning")  # the checks run its epochs again
@pytest.mark.parametrize("heading", BLOCKS)
def test_block_does_what_its_seed_says(
    heading: str, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed() -> list[float]:
        lines = capsys.readouterr().out.splitlines()
        assert all(line.startswith("loss: ") for line in lines)
        return [float(line.removeprefix("loss: ")) for line in lines]

    after = dict(names)
    exec(BLOCKS[heading], after)
    CHECKS[heading](names, after, printed)
