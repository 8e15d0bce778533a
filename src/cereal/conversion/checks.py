"""What can be converted, to which folder, and under which name."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ..base.capture import any_traced
from ..base.errors import PipelineError
from ..cache.digest import digest
from ..cache.name import Named, name_of
from ..pipeline.host_stage import below_host_stage
from ..pipeline.positional import IndexedSource
from ..pipeline.source import Source
from ..sources.files.array_files import TREE
from ..workers.options import Options

log = logging.getLogger("cereal")


def check_source(source: Source[Any], owner: str) -> Any:
    """The source as it is read for a conversion, or an error if it has no fixed elements."""
    if not isinstance(source, IndexedSource):
        if source.traits.lanes:
            raise PipelineError(
                f"{owner}: the pipeline makes batches, and a folder holds elements; leave the "
                f"BatchTransform out, and write it behind the converted source: "
                f"`DataLoader([convert(...), BatchTransform(...)])`."
            )
        raise PipelineError(
            f"{owner}: {source._label} is a stream without elements by index; convert a source "
            f"with a length, or an IterableSource."
        )
    traits = source.traits
    if traits.random_stages:
        raise PipelineError(
            f"{owner}: the pipeline has a random stage, and every epoch would see what was drawn "
            f"once; leave it out, and write it behind the converted source: "
            f"`DataLoader([convert(...), RandomMapTransform(fn), ...])`."
        )
    if traits.varies or not traits.fixed:
        raise PipelineError(
            f"{owner}: the elements of {source._label} change from epoch to epoch; convert the "
            f"sources that it reads instead."
        )
    if traits.mask_shape:
        raise PipelineError(
            f"{owner}: elements of {source._label} have a mask inside, of shape "
            f"{list(traits.mask_shape)}, which files do not keep; pass `pad=False` to it, or add "
            f"the mask to the elements."
        )
    if traits.callbacks:
        raise PipelineError(
            f"{owner}: the pipeline has a HostCallbackTransform, which runs for every batch; write "
            f"it behind the converted source."
        )
    if any_traced(source):
        raise PipelineError(f"{owner} cannot run inside of a traced function; call it outside.")
    if traits.by_python:
        return below_host_stage(source, owner)
    for path, spec in jax.tree_util.tree_flatten_with_path(source.element_spec())[0]:
        if jnp.issubdtype(spec.dtype, jax.dtypes.extended):
            raise PipelineError(
                f"{owner}: `element{jax.tree_util.keystr(path)}` has random keys, which files do "
                f"not hold; pass `jax.random.key_data(keys)` instead."
            )
    return source


def source_name(source: Any, options: Options, version: Any, owner: str) -> str | None:
    """A digest of what is converted; None if there is none, which is logged."""
    try:
        named = Named(None, version, owner, f"{owner}(source, folder, version=1)")
        name = name_of(source, named)
        return name if options.on_error == "raise" else f"{name}-{digest(options.on_error)}"
    except PipelineError as error:
        log.warning(
            "convert: the source cannot be compared with others, so a conversion that is killed "
            "begins again (%s)",
            str(error),
        )
        return None


def check_folder(target: Path, name: str | None, overwrite: bool, owner: str) -> None:
    """Refuses a place that is taken by something else."""
    if not os.path.lexists(target):
        return
    whole = f"{owner}: {str(target)!r}"
    if not target.is_dir():
        raise PipelineError(f"{whole} is a file; name a folder that does not exist yet.")
    ours = (target / TREE).exists()
    if not overwrite:
        what = "holds other arrays" if ours else "exists"
        if ours and name is None:
            what = "exists, and the source has no digest to compare it with"
        raise PipelineError(
            f"{whole} {what}; pass `overwrite=True` to replace it, or name another folder. "
            f"`MemmapSource({str(target)!r})` reads it as it is."
        )
    if not ours and any(target.iterdir()):
        raise PipelineError(
            f"{whole} has no {TREE}, so it was not written by cereal, and is not overwritten; name "
            f"another folder, or remove it yourself."
        )
