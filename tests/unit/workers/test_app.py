"""What a worker says to whom has started it by hand."""

import sys
from types import SimpleNamespace
from typing import cast

import pytest

from workers import app
from workers.serving import Serving

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("slots", "words"), [(3, "3 slots"), (1, "1 slot")])
def test_on_a_terminal_a_worker_says_in_a_sentence_that_it_is_ready(
    slots: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = cast(Serving, SimpleNamespace(name="more", model_name="anthropic-m", slot_count=slots))
    app._say_ready(serving)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    app._say_ready(serving)
    assert capsys.readouterr().out == f"worker more is ready: model anthropic-m, {words}; Ctrl-C stops it\n"
