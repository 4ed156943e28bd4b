"""A command is packed as redis-py packs it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Connection

from infra.redis_script import Argument, packed

pytestmark = pytest.mark.unit
texts = st.text(st.characters(exclude_categories=["Cs"]))
arguments = st.one_of(texts, st.integers(), st.floats(), st.binary(), st.just(b"x" * 80_000))


@given(name=st.just("EVALSHA"), rest=st.lists(arguments, max_size=20))
def test_any_command_is_packed_as_by_redis_py(name: str, rest: list[Argument]) -> None:
    assert packed([name, *rest]) == b"".join(Connection().pack_command(name, *rest))
