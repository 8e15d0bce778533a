"""`convert`: the elements of any source, written once to a folder of mapped arrays."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ..base.errors import PipelineError, in_one_line
from ..base.paths import as_path
from ..cache.name import check_version
from ..loaders.compose import joined
from ..order.ordering import as_order
from ..pipeline.source import Source
from ..pipeline.stage import Transform
from ..reading.structure import flatten
from ..sources.files.array_files import TREE, open_arrays
from ..sources.files.memmap import MemmapSource
from ..workers.options import check_options
from .checks import check_folder, check_source, source_name
from .chunks import Reading
from .column_files import check_tree
from .conversion import Conversion
from .same import differing, leaves_of_folder
from .staging import Staging

log = logging.getLogger("cereal")
_OWNER = "convert"


def convert(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    worker_type: Literal["thread", "process"] | None = None,
    on_error: Literal["raise", "skip"] | Callable[[Exception], Any] = "raise",
    version: int | str | None = None,
    overwrite: bool = False,
    progress: bool | str = True,
    ordering: Any = "sequential",
) -> MemmapSource:
    """Writes all elements of a source to a folder, and returns the folder as a `MemmapSource`.

        slow: photos, Parquet, a dataset  --once-->  folder/image.npy, label.npy, tree.json
                                          --every epoch-->  MemmapSource("folder"): mapped, quick

    Element i of the folder is element i of the source, whatever the source's ordering. Elements
    that a filter leaves out are left out. Numbers have the dtypes that a loader would give: 32 bits
    unless `jax_enable_x64` is on. Arrays whose first axis differs between elements (tokens, boxes),
    text and bytes are stored as values and offsets, and read back as they were.

    The folder gets its name only when it is complete. If the process is killed, call `convert`
    again, with the same source: it goes on where it was. (A source that can only be iterated is
    read again from its beginning, and only the writing goes on, unless it has a state of its own.)
    If the folder is there already, and of the same source, it is returned at once. Whether it is
    the same source, a digest decides, as for `CacheTransform`.

    >>> import cereal, numpy as np, tempfile
    >>> texts = [{"id": i, "tokens": np.arange(i)} for i in range(4)]
    >>> folder = tempfile.mkdtemp() + "/texts"
    >>> source = cereal.convert([texts], folder, progress=False)
    >>> batches = cereal.BatchTransform(2, collate=cereal.pad_collate(max_length=3))
    >>> [batch["tokens"].tolist() for batch, mask in cereal.DataLoader([source, batches])]
    [[[0, 0, 0], [0, 0, 0]], [[0, 1, 0], [0, 1, 2]]]

    Args:
        source: A source, a dataset, a frame, arrays; or a list: one of these, then stages that are
            not random and make no batches.
        folder: The folder to write.
        workers: How many threads or processes read, as in `DataLoader`; 0 reads in your own thread.
        worker_type: "thread" or "process"; by default, what is measured to be faster.
        on_error: What to do if an element cannot be read, as in `DataLoader`; "skip" leaves it out.
        version: A number or a word that is part of the digest; change it to convert again.
        overwrite: Whether a folder that exists, and is not of the same source, is replaced.
        progress: False shows no progress bar; a string is its title.
        ordering: The ordering of the source that is returned; by default "sequential".
    """
    options = check_options(workers, None, on_error, None, worker_type, _OWNER)
    check_version(version, _OWNER)
    target = as_path(folder, "folder", _OWNER)
    if isinstance(ordering, str):
        as_order(ordering, 1, _OWNER)  # an error now, not after the work
    upstream = check_source(joined(_as_list(source)), _OWNER)
    name = source_name(upstream, options, version, _OWNER)
    reading = Reading(upstream, options, _OWNER)
    check_tree(reading.layout, _OWNER)
    if not _is_there(target, name, reading, overwrite):
        check_folder(target, name, overwrite, _OWNER)
        with Staging(target) as staging:
            if _is_there(target, name, reading, overwrite):  # another process was quicker
                staging.remove()
            else:
                Conversion(reading, staging, name, progress).run(overwrite=overwrite)
    return MemmapSource(target, ordering)


def _as_list(source: Any) -> Any:
    """What the user gave, as a list of stages."""
    if isinstance(source, list):
        return source
    stages = isinstance(source, tuple) and any(isinstance(x, Source | Transform) for x in source)
    return list(source) if stages else [source]


def _is_there(target: Path, name: str | None, reading: Reading, overwrite: bool) -> bool:
    """Whether the folder is complete, and of this source."""
    try:
        said = json.loads((target / TREE).read_text())
        if name is None or said["source"] != name:
            return False
        position = int(said["elements"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    leaves = flatten(open_arrays(target, _OWNER))[0]
    try:
        wrong = differing(reading, leaves_of_folder(leaves), len(leaves[0]), position)
    except Exception as error:
        log.warning(
            "convert: %s is used as it is, since the source cannot be read to compare it: %s",
            str(target),
            in_one_line(error),
        )
        return True
    if wrong is not None and not overwrite:
        raise PipelineError(
            f"convert: {wrong} in {str(target)!r} is not what the source gives now; it has "
            f"changed in a way that its digest does not see. Pass `overwrite=True` to convert it "
            f"again, and another `version=` when such a thing changes."
        )
    return wrong is None
