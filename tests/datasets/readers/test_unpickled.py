"""Pickles are read, never run: plain data comes back, and everything else is an error."""

from __future__ import annotations

import pickle
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.datasets.files import Python2

from cereal import DatasetError
from cereal.datasets.readers.unpickled import unpickled

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
BATCH = {"label": "one of two", "labels": [3, 258, -1, 70_000], "data": np.arange(6, dtype="u1")}


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        alike = found.dtype == expected.dtype and found.shape == expected.shape
        return alike and np.array_equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[k], expected[k]) for k in expected)
    if isinstance(expected, list | tuple):
        pairs = zip(found, expected, strict=True)
        return type(found) is type(expected) and all(same(*pair) for pair in pairs)
    return type(found) is type(expected) and found == expected


def is_plain(value: Any, key: bool = False) -> bool:
    """Whether this is data of exact types, down to the keys."""
    if isinstance(value, np.ndarray):
        return not key and type(value) is np.ndarray and not value.dtype.hasobject
    if type(value) is dict:
        return not key and all(is_plain(k, True) and is_plain(v) for k, v in value.items())
    if type(value) in (list, tuple):
        return all(is_plain(each, key) for each in value)
    return value is None or type(value) in (bool, int, float, str, bytes, bytearray)


def refused(data: bytes, message: str) -> None:
    with pytest.raises(DatasetError, match="^batch " + message):
        unpickled(data, "batch")


# Values


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.int16).reshape(3, 4)),
        np.arange(24, dtype=">f4").reshape(2, 3, 4),
        np.array([1.5, -2], "f8"),
        np.array([True, False]),
        np.array(["a", "bcd"]),
        np.frombuffer(b"read-only", np.uint8),
    ],
    ids=lambda array: array.dtype.str,
)
def test_arrays_of_python_3_are_read(array: np.ndarray, protocol: int) -> None:
    found = unpickled(pickle.dumps({"data": array, "twice": [array, array]}, protocol), "batch")
    assert same(found, {"data": array, "twice": [array, array]})


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 1001, 2500])
def test_batches_of_python_2_are_read(count: int) -> None:
    data = np.random.default_rng(count).integers(0, 256, (count, 7), np.uint8)
    labels = [int(row[0]) for row in data]
    names = [f"{at}.png" for at in range(count)]
    found = unpickled(Python2().dumps({"labels": labels, "data": data, "names": names}), "batch")
    assert same(found["labels"], labels)
    assert same(found["data"], data)
    assert [name.decode() if isinstance(name, bytes) else name for name in found["names"]] == names


def test_arrays_of_python_2_have_their_order_and_byte_order() -> None:
    for array in (np.arange(6, dtype=">i4").reshape(2, 3), np.ones((2, 3, 4), "<f8")):
        assert same(unpickled(Python2().dumps(array), "batch"), array)
        turned = np.asfortranarray(array)
        assert same(unpickled(Python2().dumps(turned), "batch"), array)


def test_what_was_written_for_python_2_is_what_its_opcodes_say() -> None:
    """Python's own unpickler agrees with the writer that these tests use."""
    theirs = pickle.loads(Python2().dumps(BATCH), encoding="latin1")
    assert same(theirs, BATCH)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars | st.binary(min_size=1),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


@given(values, st.sampled_from(PROTOCOLS))
def test_plain_data_of_python_3_comes_back(value: Any, protocol: int) -> None:
    assert same(unpickled(pickle.dumps(value, protocol), "batch"), value)


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.lists(st.integers(-(2**31), 2**31 - 1))))
def test_numbers_of_python_2_come_back(value: Any) -> None:
    assert same(unpickled(Python2().dumps(value), "batch"), value)


# Programs


def harm(path: Path) -> dict[str, bytes]:
    """Pickles that would write a file or import a module, in every way that there is."""
    name = str(path).encode()
    line = b"touch " + name
    text = b"X" + struct.pack("<I", len(line)) + line
    return {
        "os.system": b"cos\nsystem\n(S'" + line + b"'\ntR.",
        "posix.system": b"\x80\x02cposix\nsystem\n" + text + b"\x85R.",
        "builtins.eval": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + text + b"\x85R.",
        "builtins.getattr": b"cbuiltins\ngetattr\n(S'a'\nS'b'\ntR.",
        "numpy.load": b"\x80\x02cnumpy\nload\n" + text + b"\x85R.",
        "numpy.f2py.crackfortran.myeval": b"cnumpy.f2py.crackfortran\nmyeval\n.",
        "copyreg._reconstructor": b"ccopyreg\n_reconstructor\n.",
        "antigravity.x": b"cantigravity\nx\n.",
        "numpy.ndarray.tofile": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",
        "the instruction INST": b"(S'" + line + b"'\nios\nsystem\n.",
        "the instruction OBJ": b"(cnumpy\nndarray\nK\0o.",
        "the instruction NEWOBJ": b"\x80\x02cnumpy\nndarray\nK\0\x85\x81.",
        "the instruction NEWOBJ_EX": b"\x80\x04cnumpy\nndarray\n)}\x92.",
        "the instruction PERSID": b"Psomething\n.",
        "the instruction BINPERSID": b"K\x01Q.",
        "the instruction EXT1": b"\x80\x02\x82\x01.",
        "the instruction NEXT_BUFFER": b"\x80\x05\x97.",
        "the instruction EMPTY_SET": b"\x80\x04\x8f.",
    }


@pytest.mark.parametrize("what", harm(Path("x")))
def test_what_is_no_plain_data_is_refused_by_name(what: str, tmp_path: Path) -> None:
    data, name = harm(tmp_path / "harm")[what], what if " " in what else f"the name {what}"
    says = rf"is a pickle that uses {re.escape(name)} \(byte \d+\)\. Only plain data and arrays are"
    refused(data, says + r" read from pickles, and nothing in them is run\.$")
    assert not (tmp_path / "harm").exists()


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "harm")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_of_python_3_are_refused(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "harm"
    refused(pickle.dumps({"data": [Harm(path)]}, protocol), "is a pickle that uses the name ")
    assert not path.exists()
    refused(pickle.dumps(np.array([{1: 2}, None], object), protocol), ".*")
    refused(pickle.dumps(np.float32(3), protocol), r"is a pickle that uses the name numpy\.")


_LISTENER = """
import sys
from cereal.datasets.readers.unpickled import unpickled
unpickled(b"Vx\\n.", "batch")  # what the reader itself needs is imported now
happened, listening = set(), False
sys.addaudithook(lambda event, args: happened.add(event) if listening else None)
for line in open(sys.argv[1]).read().split():
    listening = True
    try:
        unpickled(bytes.fromhex(line), "batch")
    except OSError:
        pass
    listening = False
print(*sorted(happened - {"object.__getattr__", "sys._getframe", "builtins.id"}))
"""


@pytest.mark.slow
def test_nothing_is_imported_opened_or_run(tmp_path: Path) -> None:
    """Python itself tells: a process with an audit hook reads all that is in this file."""
    good = [pickle.dumps(BATCH, protocol) for protocol in PROTOCOLS] + [Python2().dumps(BATCH)]
    lines = [data.hex() for data in (*good, *harm(tmp_path / "harm").values(), *CROOKED.values())]
    (tmp_path / "pickles").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", _LISTENER, str(tmp_path / "pickles")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    assert not (tmp_path / "harm").exists()


# Damage

_NEW = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85C\x01btR"
CROOKED = {
    "empty": b"",
    "a web page": b"<!DOCTYPE html><html>",
    "no end": b"\x80\x02]",
    "nothing to return": b"\x80\x02.",
    "a mark to return": b"(.",
    "a mark in a list": b"](a.",
    "a mark in a tuple": b"(\x85.",
    "a mark as key": b"}(K\x01s.",
    "a name to return": b"cnumpy\nndarray\n.",
    "a name in a list": b"]cnumpy\nndarray\na.",
    "a name as key": b"}cnumpy\nndarray\nK\x01s.",
    "a name in a key": b"}cnumpy\nndarray\n\x85K\x01s.",
    "a dtype": b"cnumpy\ndtype\nU\x02u1\x85R.",
    "an array that is nothing yet": _NEW + b".",
    "an array as key": b"}" + _NEW + b"K\x01s.",
    "an array without its bytes": _NEW + b"(K\x01K\x02\x85tb.",
    "a name that is called": b"cnumpy\nndarray\nK\x05\x85R.",
    "a list that is called": b"])R.",
    "a list that is built": b"])b.",
    "a key without a value": b"}(K\x01u.",
    "a list as key": b"}]K\x01s.",
    "an append to a dict": b"}K\x01a.",
    "an item of a list": b"]K\x01K\x01s.",
    "a missing memo": b"h\x07.",
    "a memo of nothing": b"q\x01.",
    "a tuple of too few": b"K\x01\x87.",
    "marks that are missing": b"K\x01t.",
    "a huge text": b"\x8d" + b"\xff" * 8 + b"x.",
    "huge bytes": b"\x8e" + b"\xff" * 7 + b"\x0fx.",
    "a negative length": b"T\xff\xff\xff\xffx.",
    "a number of very many digits": b"I" + b"9" * 100_000 + b"\n.",
    "a list inside itself": b"]q\x01h\x01a.",
    "a dict inside itself": b"}q\x01K\x01h\x01s.",
    "lists in lists in lists": b"]" * 100_000 + b"a" * 99_999 + b".",
    "tuples in tuples": b")" + b"\x85" * 100_000 + b".",
}


@pytest.mark.parametrize("what", CROOKED)
def test_what_is_no_whole_pickle_is_damaged(what: str) -> None:
    refused(CROOKED[what], r"is a damaged pickle \(.+\); fetch it again\.$")


@pytest.mark.parametrize("dtype", ["O", "O8", "u1,O", "no such type", ""])
def test_arrays_of_objects_and_of_unknown_types_are_refused(dtype: str) -> None:
    name = b"U" + bytes([len(dtype)]) + dtype.encode()
    kind = b"cnumpy\ndtype\n" + name + b"K\0K\x01\x87R(K\x03U\x01|NNNK\0K\0K\0tb"
    raw = b"U\x08" + b"\x10" * 8
    refused(_NEW + b"(K\x01K\x01\x85" + kind + b"\x89" + raw + b"tb.", "is a damaged pickle")


def test_an_array_with_too_few_bytes_is_damaged() -> None:
    data = Python2().dumps(np.arange(6, dtype="u1"))
    refused(data.replace(b"\x06\0\x01\x02\x03\x04\x05", b"\x05\0\x01\x02\x03\x04"), "is a damaged")


def test_a_pickle_cut_anywhere_is_damaged() -> None:
    for data in (Python2().dumps(BATCH), *(pickle.dumps(BATCH, p) for p in PROTOCOLS)):
        for cut in range(len(data)):
            refused(data[:cut], "is a ")


def test_what_is_shared_in_a_pickle_is_shared_when_read() -> None:
    """Else sixty lists of two would be as many as there is memory for."""

    def doubled(times: int) -> bytes:
        steps = [b"]q%c" % 0]
        steps += [b"](h%ch%ceq%c" % (at, at, at + 1) for at in range(times)]
        return b"".join(steps) + b"."

    found = unpickled(doubled(3), "batch")
    assert found == [[[[], []], [[], []]], [[[], []], [[], []]]]
    assert found[0] is found[1]
    assert len(unpickled(doubled(100), "batch")) == 2


# Anything


def in_time(call: Callable[[], Any]) -> Any:
    """The result of a call that must end; a thread that hangs is left behind and told of."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(60)
    assert results, "it hangs"
    return results[0]


def outcome(data: bytes) -> Any:
    try:
        return is_plain(unpickled(data, "batch"))
    except DatasetError:
        return True
    except BaseException as error:
        return error


OPCODES = b"(.0123FIJKLMNPQRSTUVXabcdeghijlopqrstu})](\x80\x81\x82\x85\x86\x87\x88\x89\x8a\x8b"
OPCODES += b"BC\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98"
PIECES = [bytes([code]) for code in OPCODES] + [
    *(b"K\x01", b"K\x02", b"q\x01", b"h\x01", b"U\x02u1", b"X\x01\0\0\0b", b"M\xff\xff"),
    *(b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n"),
    *(b"c_codecs\nencode\n", b"\x85", b"\x86", b"\x87", b"R", b"b", _NEW),
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join))
@example(b"](.")
def test_any_program_gives_plain_data_or_an_error(data: bytes) -> None:
    assert in_time(lambda: outcome(data + b".")) is True


@given(st.sampled_from(range(len(PROTOCOLS) + 1)), st.data())
def test_a_pickle_altered_anywhere_gives_plain_data_or_an_error(which: int, draw: Any) -> None:
    data = bytearray(Python2().dumps(BATCH) if which == 6 else pickle.dumps(BATCH, which))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    assert in_time(lambda: outcome(bytes(data))) is True


@given(st.binary(max_size=200))
def test_any_bytes_give_plain_data_or_an_error(data: bytes) -> None:
    assert in_time(lambda: outcome(data)) is True
