"""What a call becomes for the scheduler."""

from types import SimpleNamespace
from typing import cast

import pytest

from api.house import House
from api.messages import _job
from api.protocol.request import Call
from infra.config import Settings
from scheduler.contract import GenerationRequest, Identity, Kind
from scheduler.packing import pack

pytestmark = pytest.mark.unit


def test_a_job_bears_the_weights_of_its_agent_and_key_its_callers_limit_and_how_long_its_prompt_is() -> None:
    settings = Settings(agent_weights={"reviewer": 2.0}, key_weights={"team": 0.5}, wait_identified_s=90)
    house = SimpleNamespace(settings=settings, counts=SimpleNamespace(estimate=lambda _: 123))
    request = pack(GenerationRequest(model="m", messages=(), max_tokens=1))
    who = {"session": None, "conversation": "c", "kind": Kind.MAIN, "identified": True}
    jobs = [
        _job(
            cast(
                Call,
                SimpleNamespace(
                    identity=Identity(key_name=key, agent=agent, **who), level=4, request=request, stream=True
                ),
            ),
            cast(House, house),
            "its trace",
        )
        for key, agent in (("team", "reviewer"), ("other", "another"))
    ]
    assert [(job.agent_weight, job.key_weight) for job in jobs] == [(2.0, 0.5), (1.0, 1.0)]
    assert (jobs[0].level, jobs[0].wait_limit_ms, jobs[0].prompt_tokens) == (4, 90_000, 123)
    assert jobs[0].traceparent == "its trace"
