"""Many conversations of one short answer each.

Owns: filling the books that a part keeps of the last few thousand conversations, so that they are as large as they ever
get before anybody measures whether something grows.
Never: judges an answer; that it came is enough.
"""

import threading
from collections.abc import Callable, Iterator

import httpx

from tests.chaos.house import House

# The longest book of conversations or prompts holds 4,096. Longer ones are of agents: those of a soak stay the same.
CONVERSATIONS = 4_500
CLIENTS = 8
SHOWN_EACH = 500


def pass_through(house: House, say: Callable[[str], None], conversations: int = CONVERSATIONS) -> None:
    """Let so many conversations come and go. Raises AssertionError when one was not answered."""
    numbers, refused = iter(range(conversations)), list[str]()
    clients = [threading.Thread(target=_come, args=(house, numbers, refused, say)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert not refused, refused[:3]


def _come(house: House, numbers: Iterator[int], refused: list[str], say: Callable[[str], None]) -> None:
    with httpx.Client(base_url=house.url, trust_env=False, timeout=45) as http:
        for number in numbers:  # shared: a step of a `range` is one of C's, and so atomic
            body = {"model": "any", "messages": [{"role": "user", "content": f"guest {number}: say 1 words"}]}
            who = {"x-claude-code-session-id": f"guest-{number}", "x-agent-id": f"guest-{number}"}
            try:
                answer = http.post("/v1/messages", json=body, headers=who)
            except httpx.HTTPError as error:
                refused.append(repr(error))
                return
            if answer.status_code != httpx.codes.OK:
                refused.append(f"{answer.status_code} {answer.text[:300]}")
                return
            if number % SHOWN_EACH == 0:
                say(f"guest {number} was answered")
