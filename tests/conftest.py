"""What all tests share: four CPU devices, a strict JAX, a small MNIST, and leak watchers.

Most of the time of the tests is compiling. What one of them has compiled, the others load: the
tests of both workers, their child processes, and the next run. Traces, and what `jit` holds in
memory, are counted as without this; only the work of XLA is saved.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# Before jax is imported: shardings need devices to spread over.
_FLAGS = {"--xla_force_host_platform_device_count": "4"}

# Optimising a program takes XLA longer than the few batches of a test take to run without it.
# Tests of what optimising could change, such as the last bit of a float, are marked `optimized`:
# `make slow` runs them once more, with programs as users have them.
if os.environ.get("CEREAL_TEST_OPTIMIZED") != "1":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    # XLA ends the process at a flag that it does not know, so each says in which JAX it is known.
    _JAXLIB = tuple(map(int, version("jaxlib").split(".")[:2]))
    if _JAXLIB < (0, 11):
        _FLAGS["--xla_cpu_use_fusion_emitters"] = "false"
    if _JAXLIB < (0, 13):
        _FLAGS["--xla_cpu_parallel_codegen_split_count"] = "1"
_GIVEN = os.environ.get("XLA_FLAGS", "")
_ADDED = [f"{name}={value}" for name, value in _FLAGS.items() if name not in _GIVEN]
os.environ["XLA_FLAGS"] = " ".join([_GIVEN, *_ADDED]).strip()

_COMPILED = Path(__file__).parent.parent / ".pytest_cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# The same for Python's own compiling where nothing may be written beside the sources, as in many
# containers: without this, every process of the tests compiles JAX and all tests again.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = sys.pycache_prefix or str(_COMPILED.with_name("python"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

_MOST_COMPILED = 30_000  # programs, of about 10 KB; a whole run makes some thousands

# A shell starts background jobs with Ctrl-C ignored, and children would inherit that.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from tests.datasets.files import with_own_hashes, write_mnist  # noqa: E402

import cereal  # noqa: E402
from cereal.base.unseen import raise_unseen  # noqa: E402
from cereal.host import lingering  # noqa: E402

# The first example of a property compiles, which takes longer than any deadline.
hypothesis.settings.register_profile("cereal", deadline=None)
hypothesis.settings.load_profile("cereal")


def pytest_configure(config: pytest.Config) -> None:
    """Programs of old code do not pile up: the folder is begun anew before it grows large."""
    alone = not hasattr(config, "workerinput")  # no worker of xdist
    if alone and _COMPILED.exists() and len(os.listdir(_COMPILED)) > _MOST_COMPILED:
        shutil.rmtree(_COMPILED)


def pytest_collection_finish() -> None:
    """The collector looks only at what tests make: modules and tests themselves stay anyway."""
    gc.collect()
    gc.freeze()


# Tests with other libraries run where these are installed: `make test-bridges`.
_LIBRARIES = ("brax", "craftax", "datasets", "grain", "jumanji", "tensorflow", "torch")
collect_ignore = [] if all(map(importlib.util.find_spec, _LIBRARIES)) else ["bridges"]
if importlib.util.find_spec("navix") is None:
    collect_ignore.append("bridges/test_navix.py")

_DESCRIPTORS = Path("/proc/self/fd")
# The first compilation, callback or progress bar of a process opens a few descriptors for good
# (runtime pools, terminals); a test that leaks opens one for each loader, file or worker.
_FEW = 4
_ROUNDS = 5  # what lingers holds other data in cycles, which lingers in its turn


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """Programs are compiled, and not loaded from the cache of compiled programs."""
    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", before)


@pytest.fixture(scope="module", autouse=True)
def no_programs_pile_up() -> Iterator[None]:
    """What a file has compiled leaves memory after it."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def strict_jax() -> Iterator[None]:
    """No implicit promotion of dtypes or ranks, for one test."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A test ends with the threads that it began with, daemons aside."""
    before = _threads()
    yield
    left = _threads() - before
    assert not left, f"threads left running: {sorted(thread.name for thread in left)}"


@pytest.fixture
def orbax_threads_end() -> Iterator[None]:
    """Waits for the threads of Orbax's event loops, which end a little after its calls.

    (After an error, when its traceback is gone.) Cereal starts no thread of such a name.
    """
    yield
    gc.collect()
    for thread in _threads():
        if thread.name.startswith("asyncio_"):
            thread.join(timeout=30)


@pytest.fixture(autouse=True)
def no_error_left_unseen() -> Iterator[None]:
    """A test ends without errors of programs that nobody has seen."""
    yield
    raise_unseen()


@pytest.fixture(autouse=True)
def no_files_left_open() -> Iterator[None]:
    """A test ends with the file descriptors that it began with."""
    if not _DESCRIPTORS.exists():
        yield
        return
    before = _open_files()
    yield
    for _ in range(_ROUNDS):
        if len(_open_files()) <= len(before) + _FEW:
            break
        gc.collect()  # files in cycles are closed by the collector,
        _wait_for_what_lingers()  # and those that a program read, when it has been done for a while
    after = _open_files()
    new = sorted(target for number, target in after.items() if before.get(number) != target)
    assert len(after) <= len(before) + _FEW, f"files left open: {new}"


def _wait_for_what_lingers() -> None:
    """Waits for the thread that keeps what programs read a second longer; it ends by itself."""
    thread = lingering._thread
    if thread is not None:
        thread.join(timeout=30)


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir(_DESCRIPTORS):
        try:
            found[name] = os.readlink(_DESCRIPTORS / name)
        except FileNotFoundError:  # the listing's own
            continue
    return found


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded digits in the files of MNIST: three times as large, in a margin of two."""
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "test"):
        digits = cereal.DigitsDataset(split).as_array_dict()
        large = digits["image"][..., 0].repeat(3, axis=1).repeat(3, axis=2)
        images = np.pad(large, ((0, 0), (2, 2), (2, 2)))
        write_mnist(folder / "mnist", split, images, digits["label"])
    return folder


@pytest.fixture
def mnist_is_small(small_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `MNISTDataset` finds in the folder of datasets is the small one."""
    record = with_own_hashes(cereal.MNISTDataset.record, small_mnist)
    monkeypatch.setattr(cereal.MNISTDataset, "record", record)
    monkeypatch.setenv("CEREAL_DATA_DIR", str(small_mnist))
