"""Numbers of 64 bits: what does not fit JAX's types is refused, wherever it comes from."""

import math
import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from cereal import (
    ArraySampleSource,
    BatchTransform,
    CacheTransform,
    ConcatSource,
    DataLoader,
    DatasetSource,
    DiskSampleSource,
    HostCallbackTransform,
    HostMapTransform,
    IterableSource,
    MemmapSource,
    MixSource,
    PipelineError,
    WindowSource,
    dataset_to_jax,
    pad_collate,
    save_arrays,
)
from cereal.base import fitting
from cereal.base.fitting import canonical, check_fits, narrowed

LARGE = 2**40 + 5
IDS = np.array([3, LARGE, 7])
FLOATS = np.array([1.0, 1e300, 2.0])
INT = re.escape(f"the integer {LARGE} does not fit int32, which JAX uses instead; switch 64-bit")
FLOAT = r"the number 1e\+300 does not fit float32, which JAX uses instead: it would become inf"


def first(*stages):
    return DataLoader([*stages, BatchTransform(3)]).batch_at(0, 0)[0]


def saved(tmp_path, array):
    save_arrays(tmp_path / "data", {"id": array})
    return tmp_path / "data"


def one_of(array):
    return DiskSampleSource(3, lambda i: {"id": array[i : i + 1]}, ordering="sequential")


@pytest.mark.parametrize(("array", "words"), [(IDS, INT), (FLOATS, FLOAT)])
@pytest.mark.parametrize("source", [ArraySampleSource, MemmapSource])
def test_arrays_in_memory_are_refused_when_a_source_is_built(source, array, words):
    with pytest.raises(PipelineError, match=rf"{source.__name__}: `data\['id'\]`: {words}"):
        source({"x": np.zeros(3), "id": array})


@pytest.mark.parametrize(("array", "words"), [(IDS, INT), (FLOATS, FLOAT)])
def test_other_ways_to_give_arrays_refuse_them_too(array, words):
    with pytest.raises(PipelineError, match=rf"WindowSource: `data`: {words}"):
        WindowSource(array, 2)
    with pytest.raises(PipelineError, match=rf"dataset_to_jax: `dataset\['id'\]`: {words}"):
        dataset_to_jax({"id": array})
    with pytest.raises(PipelineError, match=rf"`data\['id'\]`: {words}"):
        DataLoader([{"id": array}, BatchTransform(3)])
    with pytest.raises(PipelineError, match=rf"`dataset\['id'\]`: {words}"):
        dataset_to_jax([{"id": x} for x in array])


@pytest.mark.parametrize(("array", "words"), [(IDS, INT), (FLOATS, FLOAT)])
def test_files_are_looked_at_batch_by_batch(tmp_path, array, words):
    folder = saved(tmp_path, array)
    loader = DataLoader([MemmapSource(folder, ordering="sequential"), BatchTransform(1)])
    assert loader.batch_at(0, 0)[0]["id"].tolist() == [array[0]]
    with pytest.raises(PipelineError, match=rf"`data\['id'\]`: {words}"):
        loader.batch_at(0, 1)
    windows = WindowSource({"id": np.load(folder / "id.npy", mmap_mode="r")}, 2)
    with pytest.raises(PipelineError, match=rf"`data\['id'\]`: {words}"):
        DataLoader([windows, BatchTransform(2)]).batch_at(0, 0)


@pytest.mark.parametrize(("array", "words"), [(IDS, INT), (FLOATS, FLOAT)])
def test_what_functions_and_datasets_give_is_refused_with_its_place(array, words):
    def in_element(i):
        return {"id": array[i : i + 1]}

    with pytest.raises(PipelineError, match=rf"`element\['id'\]`: {words}"):
        first(one_of(array))
    with pytest.raises(PipelineError, match=rf"`element\['id'\]`: {words}"):
        first(DatasetSource([in_element(i) for i in range(3)]))
    with pytest.raises(PipelineError, match=rf"`element\['id'\]`: {words}"):
        first(IterableSource(lambda: map(in_element, range(3))))
    with pytest.raises(PipelineError, match=rf"`element\['id'\]`: {words}"):
        first([0, 1, 2], HostMapTransform(in_element))
    loader = DataLoader([[0, 1, 2], BatchTransform(3), HostMapTransform(lambda b: array[b])])
    with pytest.raises(PipelineError, match=rf"`element`: {words}"):
        loader.batch_at(0, 0)
    with pytest.raises(PipelineError, match=rf"`element\['id'\]`: {words}"):
        first(one_of(array), CacheTransform("host"))
    with pytest.raises(PipelineError, match=rf"`element\['id'\]`: {words}"):
        first(MixSource([one_of(array), one_of(np.zeros_like(array))], weights=(1, 1)))
    with pytest.raises(PipelineError, match=rf"`element\['id'\]`: {words}"):
        first(ConcatSource([one_of(array), one_of(array)]))


@pytest.mark.parametrize(("array", "words"), [(IDS, INT), (FLOATS, FLOAT)])
def test_what_collate_functions_and_callbacks_give_is_refused(array, words):
    def collated(collate, data):
        return DataLoader([data, BatchTransform(3, collate=collate)]).batch_at(0, 0)

    with pytest.raises(PipelineError, match=rf"`element\['x'\]`: {words}"):
        collated(lambda elements: {"x": array + 0 * len(elements)}, [1, 2, 3])
    ragged = [array[:1], array[:2], array]
    with pytest.raises(PipelineError, match=f"pad_collate: {words}"):
        collated(pad_collate(4), ragged)
    callback = HostCallbackTransform(lambda batch, mask: {"id": array.astype(np.float64)})
    if array.dtype == np.float64:
        source = ArraySampleSource({"id": np.zeros(3, np.float32)})
        with pytest.raises(PipelineError, match=rf"`batch\['id'\]`: {words}"):
            DataLoader([source, BatchTransform(3), callback]).batch_at(0, 0)


def test_single_numbers_beyond_float32_are_no_numbers_for_jax():
    with pytest.raises(PipelineError, match=rf"`element`: {FLOAT}"):
        first([1e300, 2.0, 3.0])
    with pytest.raises(PipelineError, match=rf"`element`: {FLOAT}"):
        first([1.0, 1e300, 3.0])
    with pytest.raises(PipelineError, match=rf"`element`: {FLOAT}"):
        first(list(FLOATS))


def test_a_host_stage_may_make_large_numbers_small_first():
    ids = IDS[:, None]
    source = DiskSampleSource(3, lambda i: ids[i], ordering="sequential")
    made = first(source, HostMapTransform(lambda x: x % 100))
    assert made[:, 0].tolist() == [3, LARGE % 100, 7]


def test_with_wide_types_on_all_of_it_is_kept(tmp_path):
    with jax.enable_x64(True):
        assert first(ArraySampleSource(IDS, ordering="sequential")).tolist() == IDS.tolist()
        assert first(ArraySampleSource(FLOATS, ordering="sequential")).tolist() == FLOATS.tolist()
        source = MemmapSource(saved(tmp_path, IDS), ordering="sequential")
        assert first(source)["id"].tolist() == IDS.tolist()
        assert first(one_of(IDS))["id"][:, 0].tolist() == IDS.tolist()
        assert dataset_to_jax(IDS).tolist() == IDS.tolist()


def test_what_fits_is_taken_with_infinities_and_what_is_no_number():
    floats = np.array([math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e-300])
    check_fits(floats)
    np.testing.assert_array_equal(narrowed(floats, canonical(floats.dtype)), np.float32(floats))
    check_fits(np.array([2**31 - 1, -(2**31)]))
    check_fits(np.array([2**32 - 1], np.uint64))
    check_fits(np.zeros(0, np.int64))
    check_fits(np.array([2**31 - 1, -(2**31)], ">i8"))


@pytest.mark.parametrize(
    ("array", "narrow"),
    [
        (np.array([0, 2**31]), "int32"),
        (np.array([-(2**31) - 1, 0]), "int32"),
        (np.array(2**31), "int32"),
        (np.array([[2**32]], np.uint64), "uint32"),
        (np.array([5, 2**31], ">i8"), "int32"),
        (np.array([float(2**128 - 2**103), math.nan]), "float32"),
        (np.array(-1e39), "float32"),
        (np.array([1 + 1e39j]), "complex64"),
        (np.array([math.inf + 1e39j]), "complex64"),
    ],
)
def test_the_first_number_that_does_not_fit_is_named(array, narrow):
    for check in (check_fits, lambda x, name: narrowed(x, canonical(x.dtype), name)):
        with pytest.raises(PipelineError, match=f"here: the .* does not fit {narrow}, which JAX"):
            check(array, "here")


def test_the_border_of_float32_is_where_rounding_makes_infinities():
    border = float(2**128 - 2**103)
    below = np.nextafter(border, 0)
    assert np.isfinite(np.float32(below))
    check_fits(np.array([below]))
    with pytest.raises(PipelineError, match="does not fit float32"):
        check_fits(np.array([border]))


@pytest.mark.parametrize("value", [math.nan, 1.5, 2**40, math.inf])
def test_padding_that_is_no_integer_is_refused_among_integers(value):
    collate = pad_collate(4, value=value)
    with pytest.raises(PipelineError, match="cannot be stored as int32, the dtype of the elements"):
        DataLoader([[[5, 7], [1, 2, 3]], BatchTransform(2, collate=collate)])


def test_padding_with_nan_among_floats_is_taken():
    collate = pad_collate(3, value=math.nan)
    loader = DataLoader([[[5.0, 7.0], [1.0, 2.0, 3.0]], BatchTransform(2, collate=collate)])
    assert np.isnan(loader.batch_at(0, 0)[0]["values"]).sum() == 1


@pytest.mark.parametrize("size", [1, 40, 10_000, 100_000])
@pytest.mark.parametrize("cast_looks", [True, False])
def test_any_number_of_numbers_is_looked_at(size, cast_looks, monkeypatch):
    if not cast_looks:  # as with NumPy before 2.4
        monkeypatch.setattr(fitting, "_SAME_VALUE", {})
    for dtype, wrong in (("i8", 2**31), ("i8", -(2**31) - 1), ("u8", 2**32), ("f8", -1e39)):
        array = np.full(size, 7, dtype)
        assert narrowed(array, canonical(array.dtype)).tolist() == [7] * size
        array[-1] = wrong
        with pytest.raises(PipelineError, match=re.escape(f" {wrong} does not fit")):
            narrowed(array, canonical(array.dtype))
        with pytest.raises(PipelineError, match=re.escape(f" {wrong} does not fit")):
            check_fits(array)


def test_every_dtype_is_the_one_that_jax_uses():
    names = "?bBhHiIlLqQefdFD"
    dtypes = [np.dtype(name) for name in names] + [np.dtype(">i8"), np.dtype(">f4")]
    kinds = [kind for kind in vars(ml_dtypes).values() if isinstance(kind, type)]
    dtypes += [np.dtype(kind) for kind in kinds if issubclass(kind, np.generic)]
    dtypes += [np.dtype("O"), np.dtype("U3"), np.dtype("M8[D]"), np.dtype("m8[s]"), np.dtype("V4")]
    for wide in (False, True):
        with jax.enable_x64(wide):
            for dtype in dtypes:
                native = dtype.newbyteorder("=")
                assert canonical(dtype) == jax.dtypes.canonicalize_dtype(native)
    for dtype in dtypes:
        known = dtype == np.bool_ or (jnp.issubdtype(dtype, jnp.number) and dtype.kind != "m")
        assert fitting.is_numeric(dtype) == known, dtype


def test_a_process_can_be_told_whether_wide_types_are_on():
    try:
        fitting.set_wide_types(lambda: True)
        assert canonical(np.dtype(np.int64)) == np.int64
    finally:
        fitting.set_wide_types(None)
    assert canonical(np.dtype(np.int64)) == np.int32
