"""A picture that is drawn each second, and what becomes of it while the API is away."""

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from infra.cli import console, live
from infra.errors import Refused

pytestmark = pytest.mark.unit


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    written = StringIO()
    monkeypatch.setattr(console, "out", Console(file=written, force_terminal=True, width=100, height=20))
    return written


def looks(*found: str | BaseException) -> Iterator[Text]:
    for one in found:
        if isinstance(one, BaseException):
            raise one
        yield Text(one)


def test_an_api_that_is_away_for_a_moment_does_not_end_it(screen: StringIO) -> None:
    pictures = iter((looks("one"), looks(Refused("nobody answers")), looks("two"), looks(KeyboardInterrupt())))
    live.follow(lambda: next(next(pictures)), every_s=0)
    text = screen.getvalue()
    away = text.index("nobody answers. This is old:")
    assert text.index("one") < away < text.index("one", away) < text.index("two")


def test_an_api_that_is_away_at_first_is_told(screen: StringIO) -> None:
    with pytest.raises(Refused, match="nobody answers"):
        live.follow(lambda: next(looks(Refused("nobody answers"))))
    assert not screen.getvalue()
