"""The names under which Corral counts."""

import pytest
from prometheus_client import generate_latest

from infra.observability import metrics

pytestmark = pytest.mark.unit


def test_no_series_tells_when_another_one_began() -> None:
    metrics.RETRIES.labels(worker="w1").inc(0)
    text = generate_latest(metrics.API).decode()
    assert 'corral_retries_total{worker="w1"}' in text
    assert "_created" not in text
