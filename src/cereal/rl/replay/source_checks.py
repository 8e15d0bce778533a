"""What a `ReplayTransform` needs of the source that it stores, and of its own capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base.errors import PipelineError
from ...base.spec import format_spec
from ...pipeline.positional import Positional
from ...pipeline.source import Source
from .items import ItemAxes, refuse_drawn

if TYPE_CHECKING:
    from .replay import ReplayTransform


def check_source_of(replay: ReplayTransform, source: Source[Any]) -> None:
    """Refuses a source whose steps it cannot store, or not in a row."""
    if not replay.collect and not isinstance(source, Positional):
        raise PipelineError(
            f"{replay._label}: `collect=0` stores one epoch of data in `init_state`, and "
            f"{source._label} is a stream, which has no end; pass `collect=1` or more."
        )
    if replay.in_a_row and isinstance(source, Positional):
        raise PipelineError(
            f"{replay._label} needs steps in a row, but {source._label} is an indexed pipeline, "
            f"whose elements are stored in any order; for episodes that are stored already, "
            f"write `cereal.rl.EpisodeSource(episodes, n_step=...)` or `(..., window=...)`."
        )
    if replay.in_a_row:
        refuse_drawn(source, replay._label)
    if replay.in_a_row and source.traits.masks:
        raise PipelineError(
            f"{replay._label} needs steps in a row, and a stage before it masks some of them, "
            f"which would be missing; put that stage after it."
        )
    if replay.storage == "host" and (source.traits.envs is None or source.traits.masks):
        raise PipelineError(
            f'{replay._label}: `storage="host"` is for rollouts whose steps are all real; '
            f"{source._label} may mask some. Leave `storage` out."
        )


def check_epoch_fits(
    replay: ReplayTransform, source: Source[Any], capacity: int, axes: ItemAxes
) -> None:
    """Refuses data, stored as a whole, that does not fit or has elements of the next epoch."""
    if replay.collect:
        return
    # (Of what a stage masks, `init_state` knows how much is real.)
    if not source.traits.masks and capacity < axes.items_of_epoch and replay.write == "fifo":
        raise PipelineError(
            f"{replay._label}: the data has {axes.items_of_epoch} items, and only the last "
            f"{capacity} would be kept; leave `capacity` out, or raise it. (For any "
            f'{capacity} of them, pass `write="reservoir"`.)'
        )
    if source.traits.part is not None and source.traits.remainder == "wrap":
        raise PipelineError(
            f"{replay._label}: {source._label} is a part of each batch (`shard=`), and the last "
            f"batch goes on with the next epoch, so elements of other parts would be stored; pass "
            f"`pad_last_batch=True` or `drop_last=True` to the BatchTransform."
        )


def check_fits(replay: ReplayTransform, capacity: int, axes: ItemAxes) -> None:
    """Refuses a capacity that is too small for what a batch adds, takes or needs in a row."""
    behind = (replay.span - 1) * axes.columns
    least = behind + axes.added
    if capacity < least and replay.collect:
        what = f"sequence={replay.sequence}" if replay.sequence else f"n_step={replay.n_step}"
        more = f"; `{what}` needs {behind} items more" if behind else ""
        raise PipelineError(
            f"{replay._label}: each batch adds {axes.added} items ({axes.in_words}){more}, but "
            f"the capacity is {capacity}; raise it to at least {least}."
        )
    if capacity < behind + replay.period * axes.columns:
        raise PipelineError(
            f"{replay._label}: with `period={replay.period}` a sequence begins so rarely that the "
            f"buffer often has none; raise the capacity from {capacity} to at least "
            f"{behind + replay.period * axes.columns}, or lower `period`."
        )
    if replay.sample != "queue":
        return
    if axes.added > replay.batch_size:
        raise PipelineError(
            f"{replay._label}: each batch adds {axes.added} items ({axes.in_words}) and takes "
            f"{replay.batch_size}, so the queue would overflow, and items be lost; pass "
            f"`batch_size={axes.added}` or more, or collect less."
        )
    least = max(replay.prefill, replay.batch_size) + axes.added - 1
    if capacity < least:
        raise PipelineError(
            f"{replay._label}: until a batch is real, {least} items may wait, but the capacity "
            f"is {capacity}; raise it to at least {least}."
        )


def check_keys(replay: ReplayTransform, axes: ItemAxes) -> None:
    """Refuses elements that lack a key which it reads, or have one that it adds."""
    item = axes.spec.tree
    added = ["index", "weight", "probability"] if replay.sample == "prioritized" else []
    if replay.n_step:
        added += ["n_step_return", "bootstrap_state", "bootstrap_discount"]
    wanted = ["reward", "done", "next_state"] if replay.n_step else []
    wanted += [replay.episode_end] if replay.sequence and replay.episode_end is not None else []
    for name in wanted:
        if not isinstance(item, dict) or name not in item:
            found = sorted(item) if isinstance(item, dict) else format_spec(item)
            other = "" if replay.n_step else ", or pass `episode_end=None` if there are none"
            raise PipelineError(
                f"{replay._label}: elements have no key {name!r}, by which it knows where "
                f"episodes end or what to sum, they have {found}; give it that name with a "
                f"RenameTransform{other}."
            )
        if name != "next_state" and item[name].shape:
            raise PipelineError(
                f"{replay._label}: `{name}` must be one number for each item, but is "
                f"{format_spec(item[name])}{axes.hint}."
            )
    twice = [name for name in added if isinstance(item, dict) and name in item]
    if twice:
        raise PipelineError(
            f"{replay._label} adds {twice[0]!r}, but elements have that key already; rename it "
            f'before, with `RenameTransform({{"{twice[0]}": ...}})`.'
        )
