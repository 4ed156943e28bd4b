"""The types of a Messages request as clients send it.

Owns: which fields and kinds of blocks exist, their types and bounds.
Lenient: unknown fields are ignored everywhere; null means "not said" where a field may be absent.
Never: the meaning of a conversation (`normalise`), who asks (`identity`), the words of an error (`wording`).
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    FailFast,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from api.protocol.wording import bad_request

DEFAULT_MAX_TOKENS = 4096
# The engine holds token counts in 32 bits.
MAX_INT = 2**31 - 1
BEYOND_64_BITS = 2.0**63
# The public Messages API takes 100,000. Parsing that many tiny ones holds Python's lock for seconds, in whatever
# thread; no session comes near this bound.
MAX_MESSAGES = 20_000


class Lenient(BaseModel):
    """A part of a client's body: unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


def _clamped(value: Any) -> Any:
    # The JSON reader gives whole numbers beyond 64 bits as floats; they mean "as many as possible" all the same.
    if type(value) is float and value >= BEYOND_64_BITS:
        return MAX_INT
    return min(value, MAX_INT) if type(value) is int else value


def _blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _none_is_empty(value: Any) -> Any:
    return [] if value is None else value


def _blocks_or_none(value: Any) -> Any:
    return _blocks(_none_is_empty(value))


def _in_bounds(value: Any) -> Any:
    # Before the items are looked at; pydantic's own bound is checked after them.
    if isinstance(value, list) and not 0 < len(value) <= MAX_MESSAGES:
        raise PydanticCustomError("bounds", f"must hold 1 to {MAX_MESSAGES} messages, not {len(value)}")
    return value


Count = Annotated[StrictInt, BeforeValidator(_clamped), Field(ge=1)]
CountOrZero = Annotated[StrictInt, BeforeValidator(_clamped), Field(ge=0)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
Temperature = Annotated[float, Field(strict=True, ge=0, le=2)]
Name = Annotated[str, Field(min_length=1)]
# Every answer repeats it, so it is bounded.
ModelName = Annotated[str, Field(max_length=256)]


# --- blocks -------------------------------------------------------------------------------------------------------


class Text(Lenient):
    type: Literal["text"]
    text: str


class Base64Source(Lenient):
    type: Literal["base64"]
    media_type: Name
    data: Name


class UrlSource(Lenient):
    type: Literal["url"]
    url: Name


class ImageUrlSource(Lenient):
    """The schemes are those an engine may be asked to open (`http` only where a setting allows it); never a file."""

    type: Literal["url"]
    url: Annotated[str, Field(pattern=r"^(?i:https?://|data:)")]


class FileSource(Lenient):
    type: Literal["file"]
    file_id: Name


class TextSource(Lenient):
    type: Literal["text"]
    data: str


class ContentSource(Lenient):
    """A document made of blocks of any kind; only their text is read."""

    type: Literal["content"]
    content: Annotated[list[Any], BeforeValidator(_blocks)]


class Image(Lenient):
    type: Literal["image"]
    source: Annotated[Base64Source | ImageUrlSource | FileSource, Discriminator("type")]


class Document(Lenient):
    type: Literal["document"]
    source: Annotated[Base64Source | UrlSource | FileSource | TextSource | ContentSource, Discriminator("type")]
    title: str | None = None
    context: str | None = None


class SearchResult(Lenient):
    type: Literal["search_result"]
    source: str = ""
    title: str = ""
    content: list[Any] = []


ServerBlockType = Literal[
    "server_tool_use",
    "mcp_tool_use",
    "mcp_tool_result",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "tool_reference",
    "container_upload",
    "compaction",
]


class ServerBlock(BaseModel):
    """A trace of something that ran at another provider; kept whole, told to the model as text."""

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    type: ServerBlockType


class ToolUse(Lenient):
    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any] = {}


ResultItem = Annotated[Text | Image | Document | SearchResult | ServerBlock, Discriminator("type")]


class ToolResult(Lenient):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: Annotated[list[ResultItem], FailFast(), BeforeValidator(_blocks_or_none)] = Field(default_factory=list)
    is_error: StrictBool | None = None


class Thinking(Lenient):
    """`signature` is not read: history from any provider is welcome."""

    type: Literal["thinking"]
    thinking: str = ""


class RedactedThinking(Lenient):
    type: Literal["redacted_thinking"]


Block = Annotated[
    Text | ToolUse | ToolResult | Thinking | RedactedThinking | Image | Document | SearchResult | ServerBlock,
    Discriminator("type"),
]
# A string is short for one text block. `FailFast`: ten megabytes of wrong items give one error, not a million.
Content = Annotated[list[Block], FailFast(), BeforeValidator(_blocks)]
System = Annotated[list[Text], FailFast(), BeforeValidator(_blocks_or_none)]


# --- the body -----------------------------------------------------------------------------------------------------


class Message(Lenient):
    role: Literal["user", "assistant", "system"]
    content: Content


class Tool(Lenient):
    """Without `input_schema` it is a tool that a provider runs itself; those have a `type` and not always a name."""

    type: str | None = None
    name: Name | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: StrictBool | None = None


class ThinkingSwitch(Lenient):
    type: Literal["adaptive", "enabled", "disabled"]
    budget_tokens: Count | None = None


class MessagesRequest(Lenient):
    """The body of `POST /v1/messages`. `model` may be any name; `metadata` any shape."""

    model: ModelName | None = None
    messages: Annotated[list[Message], FailFast(), BeforeValidator(_in_bounds)]
    system: System = Field(default_factory=list)
    tools: Annotated[list[Tool], FailFast(), BeforeValidator(_none_is_empty)] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    max_tokens: Count | None = None
    stop_sequences: Annotated[list[str], FailFast(), BeforeValidator(_none_is_empty)] = Field(default_factory=list)
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: CountOrZero | None = None
    thinking: ThinkingSwitch | None = None
    metadata: Any = None
    stream: StrictBool | None = None


def validated(body: dict[str, Any]) -> MessagesRequest:
    """The body with its types. Raises BadRequest that names the first wrong field, as `messages[3].content[0].type`."""
    try:
        return MessagesRequest.model_validate(body)
    except ValidationError as error:
        raise bad_request(error) from None
