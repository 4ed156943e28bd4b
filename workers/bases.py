"""What a request finds in its slot before it is asked: its own cache, its base, or a base that it makes for all.

Owns: that the first conversation with a base prefills it alone and saves it, so that the others, on any worker of the
store, restore it instead.
Never: decides whether that pays (`policy.swap`), answers a request.
"""

import threading
from dataclasses import dataclass

import structlog

from infra.errors import EngineRefused, EngineTimeout, PromptTooLong
from scheduler.contract import ClaimedJob, GenerationRequest, Kind, Message, TextBlock, ToolChoice
from scheduler.policy.chain import chain
from workers.caches import Brought, Caches
from workers.llama.client import End, Prompt
from workers.running import Running
from workers.serving import Serving
from workers.slots import Slot, Want

log = structlog.get_logger(__name__)
NOBODY = Message(role="user", content=(TextBlock(text="."),))


@dataclass(frozen=True, slots=True)
class Found:
    """What the slot holds of the prompt now, and what of that was prefilled for this very request a moment ago."""

    brought: Brought
    laid_tokens: int = 0
    laid_ms: int = 0

    def cached_tokens(self, of_engine: int) -> int:
        """What was saved of the prefill: the engine finds in the slot also what this request has just put there."""
        return max(0, of_engine - self.laid_tokens)


class Waiting:
    """Stands for a request that waits for what another is saving, so that it can be cancelled."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def cancel(self) -> None:
        self.stopped.set()


def prepare(
    caches: Caches, serving: Serving, running: Running, job: ClaimedJob, request: GenerationRequest, slot: Slot,
    want: Want,
) -> Found:  # fmt: skip
    """Bring into the slot what there is of this prompt. Raises Cancelled and EngineLost."""
    waiting = Waiting()
    running.attach(job.id, waiting)
    brought = caches.bring(slot, want, waiting.stopped)
    if job.kind is Kind.SIDE or not caches.lacks_base(brought, want):
        return Found(brought)
    with caches.making_base(slot, want, waiting.stopped) as ready:
        if ready is not None:
            return Found(ready)
        laid = _prefill(caches, serving, running, job, request, slot, want)
        if laid is None:
            return Found(brought)
        caches.save_base(slot, want)
        return Found(brought, laid.prompt_tokens - laid.cached_tokens, laid.prefill_ms)


def _prefill(
    caches: Caches, serving: Serving, running: Running, job: ClaimedJob, request: GenerationRequest, slot: Slot,
    want: Want,
) -> End | None:  # fmt: skip
    """Prefill the base and nothing else. None when the engine refuses it: the request itself will be told why."""
    own = base_want(want, request)
    end: End | None = None
    try:
        with serving.generation(base_request(request), slot.number, traceparent=job.engine_trace) as generation:
            running.attach(job.id, generation)
            for event in generation:
                if isinstance(event, Prompt):
                    caches.prompt(slot, own, event)
                elif isinstance(event, End):
                    caches.ended(slot, event)
                    end = event
    except (EngineRefused, EngineTimeout, PromptTooLong) as error:
        log.info("base_not_made", job=job.id, reason=type(error).__name__)
        return None
    return end


def base_request(request: GenerationRequest) -> GenerationRequest:
    """The shortest request with the same base: what all conversations of a kind begin with, and hardly more."""
    changes = {"messages": (NOBODY,), "max_tokens": 1, "stop_sequences": (), "tool_choice": ToolChoice()}
    return request.model_copy(update=changes)


def base_want(want: Want, request: GenerationRequest) -> Want:
    """Who wants the base of `request`, for the books of the slot."""
    return Want(want.conversation, want.agent, want.kind, chain(base_request(request)))
