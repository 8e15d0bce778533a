"""`tf.train.Example`, read without TensorFlow: one record, and batches of them."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import numpy as np
import pytest
from tests.sources.record_files import example, field, varint

from cereal import PipelineError, parse_example
from cereal.reading.records.example import ExampleDecoder
from cereal.reading.records.example_column import RecordError
from cereal.reading.records.wire import WireError

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
FEATURES = {
    "image": ((4, 3), "uint8"),
    "label": ((), "int64"),
    "weight": ((2,), "float32"),
    "flag": ((), "bool"),
}


def records(**more: Any) -> list[bytes]:
    """Labels of one to ten bytes, so that records differ in length."""
    labels = [3, 300, -1, 7, 2**40, 90]
    made = []
    for i, label in enumerate(labels):
        values = {"image": IMAGES[i].tobytes(), "label": label, "weight": [i / 2, -1.5]}
        made.append(example({**values, "flag": i % 2, **more}))
    return made


def decoder(features: Any = FEATURES) -> ExampleDecoder:
    return ExampleDecoder(features, "test")


def check(columns: list[Any], labels: Any = (3, 300, -1, 7, 2**40, 90)) -> None:
    flag, image, label, weight = columns
    assert flag.tolist() == [bool(i % 2) for i in range(6)]
    np.testing.assert_array_equal(image, IMAGES)
    assert image.dtype == np.uint8
    assert label.tolist() == list(labels)
    assert weight.tolist() == [[i / 2, -1.5] for i in range(6)]


def test_a_record_becomes_a_dict() -> None:
    found = parse_example(records()[4])
    assert found["image"] == [IMAGES[4].tobytes()]
    assert found["label"].tolist() == [2**40]
    assert found["weight"].dtype == np.float32
    assert parse_example(b"") == {}


@pytest.mark.parametrize("packed", [True, False])
def test_numbers_may_be_packed_or_not(packed: bool) -> None:
    record = example({"a": [1, -5, 2**62], "b": [0.5, 1.0]}, packed=packed)
    assert parse_example(record)["a"].tolist() == [1, -5, 2**62]
    found = decoder({"a": ((3,), "int64"), "b": ((2,), "float32")}).columns([record] * 3)
    assert found[0].tolist() == [[1, -5, 2**62]] * 3
    assert found[1].tolist() == [[0.5, 1.0]] * 3


def test_a_batch_becomes_columns() -> None:
    made = decoder()
    check(made.columns(records()))
    check(made.columns(records()))  # now by templates
    check(pickle.loads(pickle.dumps(made)).columns(records()))


def test_templates_are_not_used_for_records_that_differ_in_more_than_values() -> None:
    made = decoder({"a": ((), "int64"), "b": ((), "int64")})
    plain, turned = example({"a": 1, "b": 2}), example({"b": 2, "a": 1})
    other = example({"a": 1, "c": 2, "b": 2})[: len(plain)]
    assert len(plain) == len(turned)
    a, b = made.columns([plain, turned, plain, example({"a": 9, "b": 8})])
    assert (a.tolist(), b.tolist()) == ([1, 1, 1, 9], [2, 2, 2, 8])
    with pytest.raises(RecordError, match=r"no tf\.train\.Example") as caught:
        made.columns([plain, other])
    assert caught.value.lane == 1


def test_a_template_takes_the_record_s_own_bytes_only() -> None:
    """Whatever byte of a record is changed, both ways of reading agree, or both refuse."""
    record = records()[0]
    made, rng = decoder(), np.random.default_rng(0)
    made.columns([record])
    for place in range(len(record)):
        changed = bytearray(record)
        changed[place] ^= 1 << int(rng.integers(8))
        found = []
        for each in (made, decoder({**FEATURES, "none": ((), "int64", 0)})):  # no templates
            try:
                columns = each.columns([record, bytes(changed)])
                found.append([columns[at].tolist() for at in (0, 1, 2)])
            except RecordError:
                found.append(None)
        assert found[0] == found[1], place


def test_features_that_nobody_asked_for_may_be_anything() -> None:
    made = decoder({"label": ((), "int64")})
    some = [example({"label": i % 9, "name": b"n" * 3, "x": [i % 7]}) for i in range(20)]
    assert made.columns(some)[0].tolist() == [i % 9 for i in range(20)]


def test_a_missing_feature_is_named_or_has_a_default() -> None:
    without = example({"label": 4})
    with pytest.raises(RecordError, match=r"not have the feature 'weight'; it has \['label'\]"):
        decoder({"label": ((), "int64"), "weight": ((2,), "float32")}).columns([without])
    whole = example({"label": 5, "weight": [1.0, 2.0]})
    made = decoder({"label": ((), "int64", -1), "weight": ((2,), "float32", 0.5)})
    label, weight = made.columns([without, whole, example({})])
    assert label.tolist() == [4, 5, -1]
    assert weight.tolist() == [[0.5, 0.5], [1.0, 2.0], [0.5, 0.5]]


def test_rows_may_differ_in_length() -> None:
    made = decoder({"t": ((None,), "int32"), "p": ((None, 2), "float32"), "r": ((None,), "uint8")})
    some = [{"t": [*range(200, 200 + n)], "p": [1.0] * 2 * n, "r": bytes(n)} for n in (1, 3, 2)]
    p, r, t = made.columns([example(each) for each in some])
    assert [each.tolist() for each in t] == [[200], [200, 201, 202], [200, 201]]
    assert t[0].dtype == np.int32
    assert [each.shape for each in p] == [(1, 2), (3, 2), (2, 2)]
    assert [each.shape for each in r] == [(1,), (3,), (2,)]
    assert decoder({"t": ((None,), "int64")}).columns([example({"t": []})])[0][0].tolist() == []
    (found,) = decoder({"t": ((None,), "int64", ())}).columns([example({"t": [1, 2]}), example({})])
    assert [each.tolist() for each in found] == [[1, 2], []]


def test_text_stays_what_it_is() -> None:
    made = decoder({"a": bytes, "b": str, "c": ((None,), bytes)})
    record = example({"a": b"\xff", "b": "é".encode(), "c": [b"x", b""]})
    assert made.columns([record]) == [[b"\xff"], ["é"], [[b"x", b""]]]
    with pytest.raises(RecordError, match="damaged 'b'"):
        decoder({"b": str}).columns([example({"b": b"\xff"})])


def test_names_with_a_slash_become_nested() -> None:
    made = decoder({"image": {"size": ((2,), "int64"), "data": bytes}})
    assert sorted(made.form["image"]) == ["data", "size"]
    data, size = made.columns([example({"image/size": [3, 4], "image/data": b"d"})])
    assert (data, size.tolist()) == ([b"d"], [[3, 4]])


@pytest.mark.parametrize(
    ("features", "values", "match"),
    [
        ({"x": ((), "float32")}, {"x": 3}, r"an int64 list for 'x', not float32: write `\(\(\), "),
        ({"x": ((), "int64")}, {"x": 0.5}, "a float list for 'x', not int64"),
        ({"x": bytes}, {"x": 3}, "an int64 list for 'x', not bytes"),
        ({"x": ((), "int8")}, {"x": 300}, "has 300 in 'x', which does not fit int8"),
        ({"x": ((), "bool")}, {"x": 2}, "has 2 in 'x', which does not fit bool"),
        ({"x": ((), "float16")}, {"x": 1e30}, "does not fit float16"),
        ({"x": ((3,), "int64")}, {"x": [1, 2]}, r"has 2 numbers in 'x', where \(3,\) has 3"),
        ({"x": ((None, 3), "int64")}, {"x": [1, 2]}, "a whole number of times 3"),
        (
            {"x": ((4, 4), "uint8")},
            {"x": b"abc"},
            r"has 3 bytes in 'x', where uint8\[4, 4\] has 16",
        ),
        ({"x": ((4,), "uint8")}, {"x": b"\x89PNG.."}, "encoded image.*DecodeImageTransform"),
        ({"x": ((4,), "uint8")}, {"x": [b"abcd", b"abcd"]}, "has 2 values of 'x', not one"),
    ],
)
def test_values_that_are_not_as_promised_are_refused(
    features: Any, values: Any, match: str
) -> None:
    good = example({"x": values["x"]})
    with pytest.raises(RecordError, match=match) as caught:
        decoder(features).columns([good])
    assert caught.value.lane == 0


def test_records_may_hold_a_feature_in_different_ways() -> None:
    made = decoder({"x": ((2,), "uint8")})
    for _ in range(2):
        (found,) = made.columns([example({"x": x}) for x in (b"\1\2", [3, 4], b"\5\6")])
        assert found.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_bytes_of_bools_are_true_where_they_are_not_zero() -> None:
    made = decoder({"x": ((3,), "bool")})
    for _ in range(2):
        (found,) = made.columns([example({"x": b"\0\1\7"})] * 2)
        assert found.view(np.uint8).tolist() == [[0, 1, 1]] * 2


def test_the_lane_of_the_first_wrong_record_is_told() -> None:
    made = decoder({"x": ((), "int8")})
    with pytest.raises(RecordError, match="has 200 in") as caught:
        made.columns([example({"x": x}) for x in (1, 2, 3, 200, 300)])
    assert caught.value.lane == 3


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (field(1, b"") + field(2, b""), "SequenceExample"),
        (field(3, b""), "a field 3"),
        (b"\x0a\x7f", "longer than what holds it"),
        (field(1, b"\x0a\x7f"), "longer than the record"),
        (b"\xff" * 12, "more than 64 bits|not supported"),
        (b"hello world", "not supported|longer|field"),
    ],
)
def test_what_is_no_example_is_refused(data: bytes, match: str) -> None:
    with pytest.raises(WireError, match=match):
        parse_example(data)


@pytest.mark.parametrize("kind", [2, 3])
def test_numbers_in_a_field_of_another_kind_are_refused(kind: int) -> None:
    """Four bytes among integers, or eight among floats, were taken for numbers."""
    alone = b"\x0d\x01\x02\x03\x04" if kind == 3 else b"\x09" + bytes(8)
    feature = field(2, field(kind, alone + alone))
    with pytest.raises(WireError, match="a list with an unknown field"):
        parse_example(field(1, field(1, field(1, b"x") + feature)))


def test_any_bytes_are_read_or_refused() -> None:
    """No other error, and no endless loop."""
    rng, record = np.random.default_rng(0), records()[1]
    for _ in range(2000):
        changed = bytearray(record)
        for place in rng.integers(0, len(record), 3):
            changed[place] = rng.integers(256)
        cut = bytes(changed[: rng.integers(len(changed) + 1)])
        with contextlib.suppress(RecordError):
            decoder().columns([cut])


def test_unknown_fields_are_skipped_and_repeated_ones_go_on() -> None:
    entry = field(1, b"x") + field(2, field(3, b"\x08\x01") + field(3, b"\x08\x02")) + b"\x18\x05"
    record = field(1, b"\x10\x07" + field(1, entry) + varint(9 << 3 | 5) + b"abcd")
    assert parse_example(record)["x"].tolist() == [1, 2]
    twice = field(1, field(1, field(1, b"x") + field(2, field(3, b"\x08\x09")))) + record
    assert parse_example(twice)["x"].tolist() == [1, 2]  # the last of a name counts


@pytest.mark.parametrize(
    ("features", "match"),
    [
        ({}, "names no feature"),
        ({"x": "uint8"}, "must be"),
        ({"x": (3, "uint8")}, "must be"),
        ({"x": ((2, None), "uint8")}, "must be"),
        ({"x": ((), "text")}, "no type of numbers"),
        ({"x": ((3,), bytes)}, "text has the shape"),
        ({3: bytes}, "names of features are strings"),
    ],
)
def test_wrong_features_are_refused_when_the_source_is_built(features: Any, match: str) -> None:
    with pytest.raises(PipelineError, match=match):
        decoder(features)
