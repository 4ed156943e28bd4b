"""What README and the records of decisions point to is there."""

import re
from pathlib import Path

import pytest

from tests.doubles.processes import REPOSITORY

pytestmark = pytest.mark.contracts

TEXTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "infra" / "decisions").glob("*.md"))]


def headings(text: str) -> set[str]:
    """As a page of the repository names them in addresses."""
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_every_link_leads_somewhere(file: Path) -> None:
    text = file.read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
    files = [(file.parent / link.partition("#")[0], link) for link in links if not link.startswith("#")]
    assert [link for target, link in files if not target.exists()] == []
    assert {link.removeprefix("#") for link in links if link.startswith("#")} <= headings(text)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_every_file_of_the_repository_that_is_named_is_there(file: Path) -> None:
    named = re.findall(r"`((?:api|infra|scheduler|tests|workers)/[\w/]+\.\w+)`", file.read_text())
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
