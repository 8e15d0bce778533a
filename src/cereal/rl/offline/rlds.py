"""Episodes as RLDS has them: each has `steps`, and the last step has only an observation.

step           0     1     2     3
observation    o0    o1    o2    o3
action         a0    a1    a2    --        of the last step, action and reward mean nothing
reward         r0    r1    r2    --
is_last        .     .     .     x
is_terminal    .     .     .     x         terminated; without it, the episode was truncated
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from os import PathLike
from typing import Any

import jax
import numpy as np

from ...base.errors import CerealError, PipelineError, in_one_line
from ...base.extras import needs
from ...base.paths import as_path
from ...reading.bridges.tensorflow import hide_gpus
from ...reading.bridges.tfds import is_data_source
from ...sources.array_trees import array_leaves
from .episode import NAMES, Rules, as_flags, chosen_infos, refuse_masked
from .rlds_records import Keys, check_files, check_source, episodes_of_files, episodes_of_source

_NEEDED = ("observation", "action", "reward", "is_last", "is_terminal")
_AT_ONCE = 256  # steps: tf.data makes room for so many, whatever an episode has


def rlds_episodes(data: Any, split: Any, rules: Rules) -> Iterator[tuple[str, Any]]:
    """The episodes under Minari's names, each with its name for errors."""
    owner, place = rules.owner, ""
    if isinstance(data, str | PathLike):
        data, place = _stored(as_path(data, "data", owner), split, rules)
    elif split is not None:
        raise PipelineError(f"{owner}: `split=` is for a folder; this data is what it is.")
    if isinstance(data, Mapping) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise PipelineError(
            f"{owner}: `data` must be a folder of TFDS, or something that gives episodes one after "
            f"another, got {type(data).__name__}; of one episode, write `[episode]`."
        )
    _check_dataset(data, owner)
    if is_data_source(data):
        check_source(data, place.removeprefix(" of "), owner)
    if is_data_source(data) or _is_tf(data) or place:
        yield from _read_by_libraries(data, place, rules)
    else:
        yield from _each(data, place, rules)


def _each(data: Any, place: str, rules: Rules) -> Iterator[tuple[str, Any]]:
    for number, episode in enumerate(data):
        where = f"episode {number}{place}"
        yield where, _as_minari(episode, f"{rules.owner}: {where}", rules)


def _read_by_libraries(data: Any, place: str, rules: Rules) -> Iterator[tuple[str, Any]]:
    """The same, where TFDS and others decode: their errors do not say which episode it was."""
    done = 0
    try:
        data = episodes_of_source(data, _keys(rules), rules.owner) or data
        for done, found in enumerate(_each(data, place, rules), 1):  # noqa: B007
            yield found
    except CerealError:
        raise
    except Exception as error:  # of many kinds: Arrow, protocol buffers, images, TensorFlow
        raise PipelineError(
            f"{rules.owner}: episode {done}{place} cannot be read: {in_one_line(error):.300}; its "
            f"record is damaged, or not what the features say, so get the files again."
        ) from error


def _keys(rules: Rules) -> Keys:
    named = set() if isinstance(rules.infos, bool) else set(rules.infos)
    return Keys({*_NEEDED, *named}, {"is_first"}, rules.infos is True)


def _stored(folder: Any, split: Any, rules: Rules) -> tuple[Any, str]:
    """The episodes of a folder that TFDS has written, in the order of its files."""
    owner = rules.owner
    if not folder.is_dir():
        raise PipelineError(f"{owner}: there is no folder '{folder}'; mend the path.")
    if not (folder / "features.json").is_file():
        raise PipelineError(
            f"{owner}: '{folder}' is no dataset of TFDS: it has no 'features.json'; pass the "
            f"folder of a version, such as '{folder}/1.0.0'."
        )
    tfds = needs("tensorflow_datasets", "tfds", owner)
    try:
        builder = tfds.builder_from_directory(str(folder))
    except Exception as error:  # of many kinds: its files are JSON and protocol buffers
        raise PipelineError(
            f"{owner}: '{folder}' is no dataset of TFDS: 'dataset_info.json' or 'features.json' "
            f"cannot be read: {in_one_line(error)}."
        ) from error
    splits = sorted(builder.info.splits)
    if split is None and len(splits) != 1:
        raise PipelineError(
            f"{owner}: '{folder}' has the splits {splits}; pass `split=` to say which."
        )
    split = splits[0] if split is None else split
    if not isinstance(split, str) and not hasattr(split, "to_absolute"):
        raise PipelineError(
            f"{owner}: `split` must name one of {splits}, a part or a sum of them, such as "
            f"'{splits[0]}[:90%]', got {type(split).__name__} ({split!r:.60})."
        )
    place = f" of '{folder}', split {split!r}"
    try:
        if not builder.info.splits[split].num_examples:
            raise PipelineError(f"{owner}:{place[3:]} has no episodes; it needs at least one.")
        check_files(builder.info.splits[split].file_instructions, owner)
        if builder.info.file_format.value in ("array_record", "parquet"):
            return builder.as_data_source(split=split), place
        if builder.info.file_format.value == "tfrecord":
            found = episodes_of_files(builder, split, _keys(rules), owner)
            if found is not None:
                return found, place
        _check_sizes(builder.info.features, f"{owner}: '{folder}'")
        hide_gpus(needs("tensorflow", "tfds", owner))
        in_order = tfds.ReadConfig(interleave_cycle_length=1)
        return builder.as_dataset(split=split, read_config=in_order), place
    except CerealError:
        raise
    except (ValueError, TypeError, NotImplementedError, OSError) as error:
        fix = "get its files again" if isinstance(error, OSError) else f"it has the splits {splits}"
        raise PipelineError(
            f"{owner}: '{folder}', split {split!r:.80}, cannot be read: {in_one_line(error)}; "
            f"{fix}."
        ) from error


def _check_sizes(features: Any, owner: str) -> None:
    """Refuses features without numbers: TensorFlow divides by zero, which ends the process."""
    infos = jax.tree_util.tree_leaves_with_path(features.get_tensor_info())
    for path, info in infos:
        if 0 in getattr(info, "shape", ()):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise PipelineError(
                f"{owner}: the feature {name!r} has the shape {info.shape}, of no numbers, which "
                f"TensorFlow cannot read; store the dataset again without it."
            )


def _check_dataset(data: Any, owner: str) -> None:
    """Hides GPUs from TensorFlow, and refuses a dataset without an end."""
    if not _is_tf(data):
        return
    hide_gpus(sys.modules["tensorflow"])
    if int(data.cardinality()) == -1:
        raise PipelineError(
            f"{owner}: `data` has no end, and all episodes are read; leave `.repeat()` out."
        )


def _is_tf(value: Any) -> bool:
    return "DatasetV2" in {cls.__name__ for cls in type(value).__mro__}


def _as_minari(episode: Any, owner: str, rules: Rules) -> dict[str, Any]:
    if not isinstance(episode, Mapping) or "steps" not in episode:
        keys = sorted(map(str, episode)) if isinstance(episode, Mapping) else None
        found = f"the keys {keys}" if keys is not None else type(episode).__name__
        fix = "write `EpisodeSource(...)`" if keys and set(NAMES) <= set(keys) else ""
        fix = fix or "if these are steps, give episodes, each a dict {'steps': steps}"
        raise PipelineError(f"{owner} must be a dict with the key 'steps', got {found}; {fix}.")
    return _cut(_stacked(episode["steps"], owner), owner, rules)


def _stacked(steps: Any, owner: str) -> dict[str, Any]:
    """The steps as one tree of arrays `[L, ...]`."""
    if isinstance(steps, Mapping):
        return dict(steps)
    if _is_tf(steps):
        return _in_numpy(steps, owner)
    if not hasattr(steps, "__iter__") and not hasattr(steps, "__getitem__"):
        raise PipelineError(f"{owner}: its steps are {type(steps).__name__}, and not steps.")
    found = [_copied(step, owner) for step in steps]
    if not found:
        raise PipelineError(f"{owner} has no steps; leave it out.")
    try:  # a list is one row: TFDS gives such for a `Sequence`
        return jax.tree.map(lambda *each: _in_rows(each), *found, is_leaf=_is_list)
    except ValueError as error:
        raise PipelineError(
            f"{owner}: its steps cannot be stacked: {in_one_line(error)}; all need the same keys "
            f"and shapes."
        ) from error


def _in_numpy(steps: Any, owner: str) -> dict[str, Any]:
    """The steps of a `tf.data.Dataset`."""
    errors = sys.modules["tensorflow"].errors
    inner = [type(spec).__name__ for spec in jax.tree.leaves(steps.element_spec)]
    if "DatasetSpec" in inner:
        raise PipelineError(
            f"{owner}: its steps hold datasets, which are no arrays; take them out of the steps, "
            f"or out of `infos=`."
        )
    try:
        batches = [jax.tree.map(lambda x: x.numpy(), batch) for batch in steps.batch(_AT_ONCE)]
        if batches:
            return jax.tree.map(lambda *each: np.concatenate(each), *batches)
    except (errors.OpError, ValueError) as error:
        raise PipelineError(
            f"{owner}: its steps cannot be stacked: {in_one_line(error)}; all need the same keys "
            f"and shapes."
        ) from error
    raise PipelineError(f"{owner} has no steps; leave it out.")


def _copied(step: Any, owner: str) -> dict[str, Any]:
    """The step for itself: an iterator may write the next one into the same arrays."""
    if not isinstance(step, Mapping):
        raise PipelineError(f"{owner}: its steps are {type(step).__name__}s, and not dicts.")
    try:
        return jax.tree.map(_alone, dict(step), is_leaf=_is_list)
    except (ValueError, TypeError) as error:
        raise PipelineError(
            f"{owner}: one of its steps cannot be read: {in_one_line(error)}; a step is a dict of "
            f"arrays, whose keys are all strings."
        ) from error


def _alone(value: Any) -> Any:
    if isinstance(value, list):
        return deepcopy(value)
    masked = isinstance(value, np.ma.MaskedArray)  # its mask is looked at later
    return np.array(value, subok=masked)


def _in_rows(values: Any) -> np.ndarray:
    masked = any(isinstance(each, np.ma.MaskedArray) for each in values)
    return (np.ma.stack if masked else np.stack)(values)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _cut(steps: dict[str, Any], owner: str, rules: Rules) -> dict[str, Any]:
    """The episode of T transitions that are in T + 1 steps."""
    missing = [name for name in _NEEDED if name not in steps]
    if missing:
        raise PipelineError(
            f"{owner}: its steps have no key {missing[0]!r}; they have {sorted(steps)}. Give them "
            f"the names {list(_NEEDED)}."
        )
    others = [name for name in steps if name not in (*_NEEDED, "is_first")]
    infos = chosen_infos(others, rules.infos, owner)
    flags = [name for name in ("is_first",) if name in steps]
    used = {name: steps[name] for name in (*_NEEDED, *flags, *infos)}
    count = _count(used["is_last"], owner)
    for name, tree in used.items():
        if isinstance(tree, list):
            raise PipelineError(
                f"{owner}: `{name}` is a list; write `np.stack({name})`, with a row for each step."
            )
        for place, leaf in array_leaves(tree, owner, name):
            if not leaf.ndim or len(leaf) != count:
                raise PipelineError(
                    f"{owner}: {place} has {len(leaf) if leaf.ndim else 'no'} rows, but `is_last` "
                    f"has {count}; there is one for each step."
                )
    terminal = _checked_ends(steps, count, owner, rules)
    ends = np.arange(count - 1) == count - 2
    return {
        "observations": used["observation"],
        **{f"{name}s": _without_last(used[name]) for name in ("action", "reward")},
        "terminations": ends & terminal,
        "truncations": ends & (not terminal),
        "infos": {name: _without_last(used[name]) for name in infos},
    }


def _count(last: Any, owner: str) -> int:
    if not np.ndim(last):
        raise PipelineError(
            f"{owner}: `is_last` has no axis of steps; give all steps, stacked or in a list."
        )
    if np.size(last) != len(last):  # (it may be of shape [L, 1])
        raise PipelineError(
            f"{owner}: `is_last` has the shape {np.shape(last)}, an axis too many: its steps are "
            f"in batches; leave `.batch(...)` out, or give the batch itself, {{'steps': batch}}."
        )
    return len(last)


def _checked_ends(steps: dict[str, Any], count: int, owner: str, rules: Rules) -> bool:
    """Whether the episode terminated; refuses ends and beginnings in its middle."""
    if count < 2:
        raise PipelineError(
            f"{owner} has {count} step, whose action and reward mean nothing, so there is no "
            f"transition; leave it out."
        )
    last, terminal = (_flags(steps[name], name, owner) for name in ("is_last", "is_terminal"))
    first = _flags(steps.get("is_first", np.arange(count) == 0), "is_first", owner)
    for name, flags in (
        ("is_first", first[1:]),
        ("is_last", last[:-1]),
        ("is_terminal", terminal[:-1]),
    ):
        if flags.any():
            at = int(np.flatnonzero(flags)[0]) + (name == "is_first")
            raise PipelineError(
                f"{owner}: `{name}` is True at step {at} of {count}, inside of the episode; cut it "
                f"into several episodes there."
            )
    if terminal[-1] and not last[-1]:
        raise PipelineError(
            f"{owner}: at its last step, {count - 1}, `is_last` is False and `is_terminal` True; "
            f"mend one of them."
        )
    if not last[-1] and rules.unfinished == "error":
        raise PipelineError(
            f"{owner} has no end: `is_last` is False at its last step, {count - 1}, so the "
            f"observation after its action is missing. If the recording stopped there, pass "
            f'`unfinished="truncate"`, which takes the step before as a truncation.'
        )
    return bool(terminal[-1])


def _flags(values: Any, name: str, owner: str) -> np.ndarray:
    refuse_masked(values, f"`{name}`", owner)
    array = np.asarray(values)
    if array.size == len(array):  # also of shape [L, 1]
        array = array.reshape(-1)
    return as_flags(array, name, len(array), owner)


def _without_last(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[:-1], tree)
