"""A server that has the tiny dataset, and an environment that is the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.datasets.remote import TINY, alone
from tests.datasets.server import Server


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    alone(monkeypatch, tmp_path_factory.mktemp("home"))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        TINY.serve(made)
        yield made
