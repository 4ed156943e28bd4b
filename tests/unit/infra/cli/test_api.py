"""Which processes the API is."""

import pytest

from infra.cli import api
from infra.cli.supervise import Stage
from infra.config import Settings

pytestmark = pytest.mark.unit


def test_one_process_is_all_there_is_and_the_house_ends_with_it() -> None:
    (part,) = api.processes(Settings())
    assert (part.name, part.stage, part.restartable, part.log.name) == ("API", Stage.API, False, "api.log")


def test_each_of_several_has_a_name_and_a_log_and_may_come_back() -> None:
    parts = api.processes(Settings(api_workers=3))
    assert [part.name for part in parts] == ["API 1", "API 2", "API 3"]
    assert [part.log.name for part in parts] == ["api-1.log", "api-2.log", "api-3.log"]
    assert all(part.restartable and part.stage is Stage.API for part in parts)
