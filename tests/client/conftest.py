"""A router that answers as the test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.scripted_router import ScriptedRouter, running_router


@pytest.fixture
def router() -> Iterator[ScriptedRouter]:
    with running_router() as router:
        yield router
