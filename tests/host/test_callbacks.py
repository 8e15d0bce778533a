from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.functions.programs import spread

import cereal
from cereal.device.device_count import device_count_of_program
from cereal.host.callbacks import as_numpy, guarded, poison, raising

pytestmark = pytest.mark.optimized


class OwnError(Exception):
    pass


def program(error: Exception | None, identity: str) -> Any:
    """A compiled x -> 2x, by a callback that may raise; then it gives -1."""

    def double(x: Any) -> Any:
        if error is not None:
            raise error
        return np.asarray(2 * x)

    call = guarded(double, identity, lambda x: np.float32(-1))
    spec = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.jit(lambda x: jax.pure_callback(call, spec, device_count_of_program(x), x))


@pytest.mark.parametrize(
    "error",
    [OwnError("of mine"), ValueError(), KeyError("k"), OwnError("two\nlines"), TypeError("{}")],
)
def test_the_error_of_a_callback_arrives_as_it_was_raised(error: Exception) -> None:
    with pytest.raises(type(error), match=r".*") as caught, raising(("a",)):
        jax.block_until_ready(program(error, "a")(1.0))
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_the_program_itself_ends_well_with_the_stand_in() -> None:
    made = []
    with pytest.raises(OwnError, match="mine"), raising(("a",)):
        made.append(jax.block_until_ready(program(OwnError("mine"), "a")(1.0)))
    assert float(made[0]) == -1


def test_after_an_error_all_is_well() -> None:
    with pytest.raises(OwnError, match="mine"), raising(("a",)):
        jax.block_until_ready(program(OwnError("mine"), "a")(1.0))
    with raising(("a",)):
        assert float(program(None, "a")(1.0)) == 2


def test_each_caller_gets_the_errors_of_its_own_callbacks() -> None:
    def caller_of_b() -> None:
        with raising(("b",)):
            jax.block_until_ready(program(OwnError("of a"), "a")(1.0))
            jax.block_until_ready(program(OwnError("of b"), "b")(1.0))

    def caller_of_a() -> None:
        with raising(("a",)), pytest.raises(OwnError, match="of b"):
            caller_of_b()

    with pytest.raises(OwnError, match="of a"):
        caller_of_a()


@pytest.mark.parametrize("identity", ["a", "another"])
def test_on_several_devices_the_error_is_printed_and_kept_for_the_next_call(
    identity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # the first is kept
        jax.block_until_ready(program(OwnError("unwatched"), "a")(spread(jnp.float32(1))))
    assert "OwnError: unwatched" in capsys.readouterr().err
    with pytest.raises(OwnError, match="unwatched"), raising((identity,)):
        pytest.fail("the kept error comes first")
    with raising((identity,)):
        pass


def test_a_loader_that_waits_for_errors_raises_those_of_several_devices() -> None:
    with pytest.raises(OwnError, match="mine"), raising(("a",)):
        jax.block_until_ready(program(OwnError("mine"), "a")(spread(jnp.float32(1))))


def test_poison_is_nan_where_there_is_one_and_false_in_masks() -> None:
    dtypes = [np.float32, jnp.bfloat16, np.complex64, np.int32, np.bool_, np.uint8]
    specs = [jax.ShapeDtypeStruct((2,), dtype) for dtype in dtypes]
    floats = poison(specs)
    assert [(x.shape, x.dtype) for x in floats] == [((2,), np.dtype(d)) for d in dtypes]
    assert all(np.isnan(x.astype(np.complex64)).all() for x in floats[:3])
    assert not any(x.any() for x in floats[3:])


def test_errors_that_no_callback_raised_pass_unchanged() -> None:
    for error in (ZeroDivisionError("mine"), ValueError("mine")):
        with pytest.raises(type(error), match="mine"), raising(("a",)):
            raise error


def test_an_ordered_callback_under_vmap_is_told_what_to_do() -> None:
    message = "once per batch, in order, which has no meaning under `vmap`"
    with pytest.raises(cereal.UsageError, match=message), raising(("a",)):
        raise ValueError("Cannot `vmap` ordered IO callback")


def test_callbacks_get_fresh_containers_of_read_only_views() -> None:
    given = {"x": np.arange(3), "y": [np.float32(2)]}
    seen = as_numpy(given)
    assert seen is not given
    assert np.shares_memory(seen["x"], given["x"])
    with pytest.raises(ValueError, match="read-only"):
        seen["x"][0] = 7
    given["x"][0] = 5
    assert seen["x"][0] == 5


def test_on_one_device_of_many_it_is_raised_as_jax_reports_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert jax.device_count() > 1
    with pytest.raises(jax.errors.JaxRuntimeError, match="OwnError: of mine"):
        jax.block_until_ready(program(OwnError("of mine"), "a")(1.0))
    with raising(("a",)):  # nothing is kept
        assert float(program(None, "a")(1.0)) == 2
    capfd.readouterr()  # JAX prints the traceback too
