"""Fixtures of the store's tests.

Owns: a store on the empty broker, closed at the end.
Never: a test.
"""

from collections.abc import AsyncIterator

import pytest

from tests.doubles.broker import Broker
from tests.integration.scheduler.store import Store


@pytest.fixture
async def store(broker: Broker) -> AsyncIterator[Store]:
    made = Store(broker.url, broker.client)
    yield made
    await made.close()
