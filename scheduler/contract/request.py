"""The request, after the protocol has been taken off."""

from typing import Annotated, Any, Literal

from pydantic import Field

from scheduler.contract.base import CONTRACT_VERSION, Frozen, Version


class TextBlock(Frozen):
    type: Literal["text"] = "text"
    text: str


class ImageBlock(Frozen):
    """`url` is a data: URL or an http(s) one, as the engine takes it."""

    type: Literal["image"] = "image"
    url: str


class ThinkingBlock(Frozen):
    type: Literal["thinking"] = "thinking"
    thinking: str


class ToolUseBlock(Frozen):
    """`input` keeps the client's key order: replayed history must be the same bytes."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Frozen):
    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False


Block = Annotated[TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class Message(Frozen):
    role: Literal["user", "assistant"]
    content: tuple[Block, ...]


class Tool(Frozen):
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class ToolChoice(Frozen):
    mode: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    parallel: bool = True


class Thinking(Frozen):
    """`enabled` None = the client did not say; the template's default holds."""

    enabled: bool | None = None
    budget_tokens: int | None = None


class Limits(Frozen):
    """How long the client waits, in seconds from its request's arrival; between two tokens from the last one.

    None: as long as the settings say. They never make the limits of the settings longer.
    """

    total_s: float | None = None
    first_token_s: float | None = None
    between_tokens_s: float | None = None


class GenerationRequest(Frozen):
    """What to generate, normalised: two client requests that mean the same are equal here.

    Who makes one guarantees of `messages`, and who reads one trusts, that roles alternate and start with the user; that
    the calls of an assistant's message are answered in the next message, one result each, in their order and ahead of
    all else; that no call has the id of another; that no text is blank; and that the text of a last message by the
    assistant, which is to be gone on with, ends without a blank.
    """

    version: Version = CONTRACT_VERSION
    model: str
    system: str = ""
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    max_tokens: int
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: Thinking = Thinking()
    limits: Limits = Limits()
