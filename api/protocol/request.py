"""From a client's body and headers to what the scheduler takes: packed, so that nothing large is done later.

Owns: the order of the steps, and the fields that are no messages.
Never: HTTP, a store, an engine. Pure and linear in the body's size; a body of megabytes still takes tens of
milliseconds, so callers parse those off the event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from api.protocol import identity, normalise, notes, places, prefix
from api.protocol.body import read_object
from api.protocol.dropped import Dropped
from api.protocol.known_tools import KnownTools, SentTools
from api.protocol.limits import limits
from api.protocol.schema import DEFAULT_MAX_TOKENS, MessagesRequest, ThinkingSwitch, validated
from scheduler.contract import GenerationRequest, Identity, Limits, PackedRequest, TextBlock, Thinking
from scheduler.packing import pack, pack_with_chain
from scheduler.policy.chain import Chain
from scheduler.tool_lists import KNOWN_LIST_BYTES, tool_list

# How Claude Code (2.1.197) begins the history that it goes on with after a compaction.
SUMMARY = "This session is being continued from a previous conversation"


@dataclass(frozen=True, slots=True)
class Reading:
    """How bodies are read. Images at an http(s) address are noted, and carried only with `image_urls`. With
    `merge_repeated` an assistant message that says the last one again is left out. With `share_base` what the system
    text says of one place is told in the first message (`places`)."""

    image_urls: bool = False
    merge_repeated: bool = True
    share_base: bool = True


USUAL = Reading()
UNLIMITED = Limits()
KNOWN_TOOLS = KnownTools()  # of this process


class Call(BaseModel):
    """One request of a client: what to generate, for whom, how urgent (0 first), streamed or whole. `chain` stands for
    the prompt wherever it is only compared; `summarised` says that it begins with a summary of a longer past; `dropped`
    is what the client sent and the prompt does not hold.

    `asked_model` is the name that the answer has to bear: Claude Code drops the thinking of an answer that bears
    another name than the one it asked for from its history (tried with 2.1.197), and the cache is lost with it.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    request: PackedRequest
    chain: Chain
    summarised: bool
    dropped: Dropped
    identity: Identity
    level: int
    stream: bool
    asked_model: str
    limits: Limits = UNLIMITED


def parse(
    raw: bytes,
    headers: Mapping[str, str],
    *,
    key_name: str,
    models: Sequence[str],
    default_level: int,
    reading: Reading = USUAL,
    known_tools: KnownTools = KNOWN_TOOLS,
) -> Call:
    """The body of `POST /v1/messages` with its lower-case `headers`. A name that is not among the served `models` means
    the first of them.

    Raises BadRequest that names the field (`messages[3].content[0].type`) or the header.
    """
    level = identity.level(headers, default_level)
    body, tools = _read(raw, known_tools)
    request, dropped = _generation_request(body, tools, models, reading, limits(headers))
    packed, links = pack_with_chain(request, tools.kept)
    return Call(
        request=packed,
        chain=links,
        summarised=_summarised(request),
        dropped=dropped,
        identity=identity.identify(headers, body.metadata, request, links, key_name),
        level=level,
        stream=bool(body.stream),
        asked_model=body.model or request.model,
        limits=request.limits,
    )


def parse_count(
    raw: bytes, *, models: Sequence[str], reading: Reading = USUAL, known_tools: KnownTools = KNOWN_TOOLS
) -> PackedRequest:
    """The body of `POST /v1/messages/count_tokens`: the same prompt as `parse` makes of it. Raises BadRequest."""
    body, tools = _read(raw, known_tools)
    request, _ = _generation_request(body, tools, models, reading)
    return pack(request, tools.kept)


def _read(raw: bytes, known_tools: KnownTools) -> tuple[MessagesRequest, SentTools]:
    """The body, and its tools; where these are known `body.tools` is empty."""
    found = known_tools.find(raw)
    if found:
        return validated(found.rest), found.tools
    sent = read_object(raw)
    body = validated(sent)
    kept, removed = prefix.split_tools(body.tools)
    tools = SentTools(tool_list(kept, keep=len(raw) <= KNOWN_LIST_BYTES), removed)
    if body.tools:
        known_tools.learn(raw, sent["tools"], tools)
    return body, tools


def _generation_request(
    body: MessagesRequest, sent: SentTools, models: Sequence[str], reading: Reading, within: Limits = UNLIMITED
) -> tuple[GenerationRequest, Dropped]:
    tools, removed = sent.kept.tools, sent.removed
    blocks, sections = places.split_blocks(body.system) if reading.share_base else (body.system, ())
    system, attribution_characters = prefix.system_text(blocks, removed)
    messages, repeated_characters = normalise.messages(body.messages, merge_repeated=reading.merge_repeated)
    messages = places.told(messages, sections)
    request = GenerationRequest(
        model=body.model if body.model in models else next(iter(models), ""),
        system=system,
        messages=messages if reading.image_urls else notes.without_addresses(messages),
        tools=tools,
        tool_choice=prefix.tool_choice(body.tool_choice, tools, removed),
        max_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
        # An empty stop sequence would end the answer before it begins.
        stop_sequences=tuple(dict.fromkeys(filter(None, body.stop_sequences))),
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        thinking=_thinking(body.thinking),
        limits=within,
    )
    return request, Dropped(attribution_characters, repeated_characters)


def _summarised(request: GenerationRequest) -> bool:
    return any(isinstance(block, TextBlock) and block.text.startswith(SUMMARY) for block in request.messages[0].content)


def _thinking(switch: ThinkingSwitch | None) -> Thinking:
    if switch is None:
        return Thinking()
    if switch.type == "disabled":
        return Thinking(enabled=False)
    return Thinking(enabled=True, budget_tokens=switch.budget_tokens)
