"""Names of caches on disk: a digest of their pipeline, and a version that the user sets."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax

from ..base.errors import PipelineError
from .digest import digest

# Settings of JAX that change what functions, or programs, compute.
_FUNCTIONS = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
)
_PROGRAMS = (*_FUNCTIONS, "jax_default_matmul_precision")


@dataclasses.dataclass(frozen=True)
class Named:
    """The folder of a cache (None: in memory), its version, and its name in error messages."""

    folder: str | None
    version: int | str | None = None
    label: str = "CacheTransform"
    line: str = "CacheTransform(folder, version=1)"


def check_version(version: Any, owner: str) -> None:
    """Refuses a version that cannot be part of a file's name."""
    if version is None or (isinstance(version, int) and not isinstance(version, bool)):
        return
    if not isinstance(version, str) or not re.fullmatch(r"[A-Za-z0-9._+-]{1,60}", version):
        raise PipelineError(
            f"{owner}: `version` must be an integer, or a word of at most 60 letters, digits and "
            f'"._+-", which becomes part of a file\'s name, got {version!r:.80}.'
        )


def name_of(source: Any, named: Named, *more: Any) -> str:
    """The name under which the results of a source are kept, the same in every process."""
    # How a program rounds depends on the compiler and the device.
    programs = bool(more) or not source.traits.by_python
    computed = [jax.__version__, jax.default_backend()] if programs else []
    names = _PROGRAMS if programs else _FUNCTIONS
    settings = [str(getattr(jax.config, name, None)) for name in names]
    what = digest(
        source,
        *more,
        settings,
        computed,
        owner=named.label,
        remedy=f"write `{named.line}`, with another version whenever the code changes",
        lenient=named.version is not None,
    )
    return what if named.version is None else f"{what}-{named.version}"
