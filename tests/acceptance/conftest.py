"""Fixtures of the acceptance tier only: the real client.

Owns: what needs real programs from outside. Shared fixtures are one folder up.
Never: a test.
"""

from pathlib import Path

import pytest

from tests.doubles.claude import ClaudeCode, find_or_install


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeCode:
    """The real Claude Code, with workspaces in this test's folder."""
    return ClaudeCode(find_or_install(), tmp_path / "claude")
