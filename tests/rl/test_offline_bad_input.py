"""Episodes that are not in order are refused when the source is built, with what to write."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.rl.recorded import episode, recorded

from cereal import ArraySampleSource, PipelineError, UsageError
from cereal.rl import EpisodeSource, MinariSource, RLDSSource

GOOD = recorded((3, 2))


def changed(**parts: Any) -> list[dict[str, Any]]:
    """Two good episodes and a third, of four steps, with other parts; None takes a part out."""
    third = {**episode(4, 2), **parts}
    return [*GOOD, {name: part for name, part in third.items() if part is not None}]


def refused(episodes: Any, match: str, **options: Any) -> None:
    with pytest.raises(PipelineError, match=match):
        EpisodeSource(episodes, **options)


NO = np.zeros(4, bool)
MIDDLE = np.array([False, True, False, True])


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"terminations": NO}, r'episode 2 has no end: its last step, 3.*`unfinished="truncate"`'),
        ({"terminations": MIDDLE}, r"episode 2 terminates at step 1, before its last step 3.*\[:3"),
        ({"truncations": MIDDLE}, r"episode 2 is truncated at step 1.*cut it into two episodes"),
        ({"rewards": np.ones(5)}, r"`terminations` has 4 rows, but there are 5 rewards"),
        ({"rewards": np.ones((4, 1))}, r"`rewards` of shape \(4, 1\).*write `rewards\[:, 0\]`"),
        ({"rewards": np.ones(0), "terminations": [], "truncations": []}, "episode 2 has no steps"),
        ({"rewards": [[1.0], [1.0, 2.0], [1.0], [1.0]]}, "`rewards` is not one number for each"),
        ({"terminations": np.array([0, 0, 0, 7])}, r"`terminations` must be True or False"),
        ({"observations": None}, r"no key 'observations'; it has .*'actions'.*Give its arrays the"),
        ({"truncations": None}, r"no key 'truncations'.*write `np.zeros\(steps, bool\)`"),
        ({"log_prob": np.ones(4)}, r"a key 'log_prob'.*put it into `infos`"),
        ({"steps": []}, r"has 'steps', as RLDS data; write `RLDSSource"),
        ({"infos": {"success": np.ones(3)}}, r"`infos\['success'\]` has 3 rows"),
        ({"infos": {"terminated": np.ones(4)}}, r"has an info 'terminated', but `info` has that"),
        ({"infos": 3}, r"`infos` must be a dict of arrays, got int"),
        ({"infos": {}}, r"episode 2 lacks `infos\['of_reset_too'\]`, which the first has"),
        ({"actions": [np.ones(2)] * 4}, r"`actions` is a list; write `np.stack\(actions\)`"),
        ({"actions": np.ones(4)}, r"episode 2 has `actions`, which the first episode lacks"),
        (
            {"actions": (np.ones(4, "u1"), np.ones(3))},
            r"`actions\[1\]` has 3 rows, but there are 4",
        ),
        ({"actions": np.array(["up"] * 4)}, r"episode 2: `actions` must be an array of numbers"),
        ({"rewards": np.full(4, 1e300)}, r"episode 2: `rewards`: the number 1e\+300 does not fit"),
    ],
)
def test_a_wrong_part_of_an_episode(parts: Any, match: str) -> None:
    refused(changed(**parts), match)


def test_observations_of_a_wrong_length_shape_or_dtype() -> None:
    right = episode(4, 2)["observations"]
    refused(
        changed(observations={**right, "x": right["x"][:-1]}),
        r"episode 2: `observations\['x'\]` has 4 rows, but there are 4 rewards; it needs 5 rows",
    )
    refused(
        changed(observations={**right, "x": right["x"][:, :1]}),
        r"each row of `observations\['x'\]` is float32\[1\], but in the first episode float32\[2\]",
    )
    refused(
        changed(observations={**right, "x": right["x"].astype(np.int32)}),
        r"each row of `observations\['x'\]` is int32\[2\], but in the first episode float32",
    )
    refused(changed(observations={"x": right["x"]}), r"episode 2 lacks `observations\['id'\]`")
    refused(
        changed(observations={**right, "id": np.float32(3)}), r"is one number; it needs an axis"
    )


MASKED = np.ma.masked_array(np.ones(4, np.float32), [False, True, False, False])


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"rewards": MASKED}, "`rewards`"),
        ({"rewards": [1.0, np.ma.masked, 2.0, 3.0]}, "`rewards`"),
        ({"truncations": np.ma.masked_array(NO, ~NO)}, "`truncations`"),
        ({"actions": (np.ones(4, "u1"), MASKED)}, r"`actions\[1\]`"),
        ({"observations": {"x": np.ma.masked_equal(np.arange(5), 3)}}, r"`observations\['x'\]`"),
        ({"infos": {"ok": MASKED}}, r"`infos\['ok'\]`"),
        ({"infos": {"ok": [np.ma.masked, 1.0, 2.0, 3.0]}}, r"`infos\['ok'\]`"),
    ],
)
def test_masked_numbers_are_refused(parts: Any, name: str) -> None:
    refused(changed(**parts), rf"episode 2: {name} is a masked array, .*fill it: `x.filled\(0\)`")


def test_a_masked_array_without_masked_numbers_is_an_array() -> None:
    source = EpisodeSource([{**GOOD[0], "rewards": np.ma.masked_array(np.arange(3.0))}])
    assert np.asarray(source.take(np.arange(3))["reward"]).tolist() == [0, 1, 2]


def test_keys_that_cannot_be_sorted_and_random_keys() -> None:
    mixed = r"episode 2: the keys of a dict in `{}` cannot be sorted.*make all of them strings"
    five = np.arange(5)
    refused(changed(observations={"a": five, 1: five}), mixed.format("observations"))
    refused(changed(infos={"a": five, 1: five}), mixed.format("infos"))
    keys = jax.random.split(jax.random.key(0), 5)
    for observations in (keys, {"key": keys}):
        words = (
            r"episode 2: `observations.*` holds random keys; write `jax.random.key_data\(keys\)`"
        )
        refused(changed(observations=observations), words)


def test_none_stays_where_it_is_as_in_any_source() -> None:
    seen = {"a": np.arange(4), "b": None}
    source = EpisodeSource([{**GOOD[0], "observations": seen}])
    assert source.take(np.arange(2))["state"]["b"] is None
    assert ArraySampleSource(seen).take(jnp.arange(2))["b"] is None
    refused([{**GOOD[0], "observations": seen}, GOOD[1]], r"episode 1 has .*, which the first")


def test_integers_that_do_not_fit_are_named() -> None:
    right = episode(4, 2)["observations"]
    refused(
        changed(observations={**right, "id": right["id"] + 2**40}),
        r"episode 2: `observations\['id'\]`: the integer 1099511627976 does not fit int32",
    )


def test_an_end_that_was_not_written_can_be_a_truncation() -> None:
    source = EpisodeSource(changed(terminations=NO), unfinished="truncate", n_step=2, gamma=0.5)
    last = source[8]
    assert (bool(last["info"]["truncated"]), bool(last["info"]["terminated"])) == (True, False)
    assert float(last["bootstrap_discount"]) == 0.5
    given = [episode(2)]
    given[0]["terminations"] = np.zeros(2, bool)
    EpisodeSource(given, unfinished="truncate")
    assert not given[0]["truncations"].any(), "the user's array is not written into"


@pytest.mark.parametrize(
    ("episodes", "match"),
    [
        ([], "there are no episodes"),
        (iter(()), "there are no episodes"),
        (GOOD[0], r"`episodes` is one dict, with the keys \['actions'.*pass a list of episodes"),
        (3, "must be a list of dicts, got int"),
        ("D4RL/pen/human-v2", r"got the path 'D4RL/pen/human-v2'; write `MinariSource"),
        ([3], r"episode 0 must be a dict with the keys \['observations'.*got int"),
        (ArraySampleSource(np.arange(3)), "must be a list of dicts, got ArraySampleSource"),
    ],
)
def test_wrong_episodes(episodes: Any, match: str) -> None:
    refused(episodes, match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"window": 4, "pad": False}, r"no episode has the 4 steps of a window, the longest has 3"),
        ({"window": 0}, r"`window`"),
        ({"n_step": 0}, r"`n_step`"),
        ({"gamma": 1.5}, r"`gamma` must be a number from 0 to 1"),
        ({"period": 2}, r"`period=` is for windows; pass `window=`"),
        ({"pad": False}, r"`pad=` is for windows; pass `window=`"),
        ({"window": 2, "pad": "no"}, r"`pad` must be True or False, got 'no'"),
        ({"window": 2, "pad": None}, r"`pad` must be True or False, got None"),
        ({"unfinished": "drop"}, r'`unfinished` must be "error" or "truncate", got \'drop\''),
        ({"infos": "ok"}, r"`infos` must be True, False or a list of names, got 'ok'"),
        ({"infos": ["no"]}, r"episode 0 has no info 'no'; it has \['of_reset_too', 'ok'\]"),
        ({"index_key": "reward"}, r"has a key 'reward' already"),
        ({"ordering": "random"}, r"`ordering`"),
    ],
)
def test_wrong_options(options: Any, match: str) -> None:
    refused(GOOD, match, **options)


def test_it_is_built_outside_of_jit() -> None:
    def build(rewards: Any) -> Any:
        return EpisodeSource([{**GOOD[0], "rewards": rewards}])._steps

    with pytest.raises(PipelineError, match=r"`rewards` is traced; build the source outside"):
        jax.jit(build)(jnp.ones(3))


def test_a_dataset_that_minari_has_opened_goes_into_an_episode_source() -> None:
    class Opened:
        def iterate_episodes(self) -> Any: ...

    opened: Any = Opened()
    with pytest.raises(PipelineError, match=r"got Opened, .* write `EpisodeSource\(dataset\)`"):
        MinariSource(opened)


def test_a_dataset_that_is_not_there_is_not_downloaded(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(PipelineError, match=r"`minari download D4RL/pen/human-v2`"):
        MinariSource("D4RL/pen/human-v2")
    with pytest.raises(
        PipelineError, match=r"is no Minari dataset: it has no 'data/metadata.json'"
    ):
        MinariSource(tmp_path)
    (tmp_path / "metadata.json").write_text("{")
    with pytest.raises(PipelineError, match=r"metadata.json' is no JSON of a Minari dataset"):
        MinariSource(tmp_path)
    (tmp_path / "metadata.json").write_text('{"data_format": "zip"}')
    with pytest.raises(PipelineError, match=r"has the format 'zip'.*iterate_episodes"):
        MinariSource(tmp_path)


@pytest.mark.parametrize(
    ("kind", "module", "extra"), [("hdf5", "h5py", "hdf5"), ("arrow", "pyarrow", "arrow")]
)
def test_a_library_that_is_missing_is_named(
    kind: str, module: str, extra: str, tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "metadata.json").write_text(json.dumps({"data_format": kind}))
    (tmp_path / "0").mkdir()
    monkeypatch.setitem(sys.modules, module, None)
    words = rf"MinariSource needs '{module}', .*`pip install 'cereal-jax\[{extra}\]'`"
    with pytest.raises(UsageError, match=words):
        MinariSource(tmp_path)


def test_tfds_is_needed_for_its_folders(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "features.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(UsageError, match=r"RLDSSource needs 'tensorflow_datasets', .*\[tfds\]"):
        RLDSSource(tmp_path)
