"""What all unit tests of a worker have.

Owns: that a restore takes no time unless a test says so: measured on a busy machine it may look slower than a prefill,
and then the caches rightly choose the prefill.
Never: a test.
"""

import pytest

from workers import saved


@pytest.fixture(autouse=True)
def restores_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "monotonic", lambda: 0.0)
