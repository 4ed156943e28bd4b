"""Renders a request as the chat body that llama-server takes.

Owns: every field of that body but the conversation itself, which is `conversation`'s.
Never: speaks to the engine, or changes the prompt for anything but what the client changed: what a slot holds in its
cache is only worth something if the next turn begins with it.

Tool choice. The engine renders the same prompt for every `tool_choice`; so the tools always stay in the prompt, and
only what may be generated changes:
- `any`: the engine's `required`; after a given beginning `auto`, as `_tools` says.
- `none`: the engine then parses no calls but lets their text through, and takes a grammar of ours beside the tools: any
  text that does not open a call.
- by name: the engine takes the OpenAI form but ignores it. So it is `any`, with only the named tool given to the
  engine's grammar, while the template is handed all of them through `chat_template_kwargs`, which go over the engine's
  own variables.
"""

from typing import Any

from scheduler.contract import GenerationRequest
from workers.llama.conversation import Part, is_prefilled, said
from workers.llama.exclusion import grammar_without
from workers.llama.functions import functions
from workers.llama.parse import AnswerRules

# How the chat templates in use open a call.
CALL_OPENERS = ("<tool_call", "<|tool_call", "<function=", "[TOOL_CALLS]", "<|python_tag|>")
NO_CALLS = grammar_without(CALL_OPENERS)


def render(
    request: GenerationRequest,
    *,
    slot: int,
    stop: tuple[str, ...],
    vision: bool,
    context_tokens: int,
    call_joint: str = "",
) -> dict[str, Any]:
    """The body for POST /v1/chat/completions, which only orjson can write. `stop` are the model's own stop words, not
    the client's.

    `call_joint` is what the model's template writes between the text and the calls of an answer.
    """
    body: dict[str, Any] = {
        "messages": list(said(request.system, request.messages, vision=vision, call_joint=call_joint)),
        "max_tokens": max(1, min(request.max_tokens, context_tokens)),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "cache_prompt": True,
        "id_slot": slot,
        # Only with it are there counts to report when an answer is cut here, at a stop sequence.
        "timings_per_token": bool(request.stop_sequences),
    }
    body |= _sampling(request)
    if stop:
        body["stop"] = list(stop)
    prefilled = is_prefilled(request.messages)
    arguments = _thinking(request, body, prefilled=prefilled)
    if request.tools:
        arguments |= _tools(request, body, prefilled=prefilled)
    if arguments:
        body["chat_template_kwargs"] = arguments
    return body


def answer_rules(request: GenerationRequest, *, context_tokens: int, repeat_limit: int = 0) -> AnswerRules:
    """What the client asked of the answer and the engine does not see to."""
    return AnswerRules(
        context_tokens=context_tokens,
        tool_names=tuple(tool.name for tool in request.tools),
        parallel_calls=request.tool_choice.parallel,
        stop_sequences=request.stop_sequences,
        repeat_limit=repeat_limit,
    )


def _sampling(request: GenerationRequest) -> Part:
    given = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
    return {name: value for name, value in given.items() if value is not None}


def _thinking(request: GenerationRequest, body: Part, *, prefilled: bool) -> Part:
    """Template arguments for thinking. With a given beginning it is off: some templates refuse the two together."""
    enabled = False if prefilled else request.thinking.enabled
    if enabled and request.thinking.budget_tokens is not None:
        body["reasoning_budget_tokens"] = request.thinking.budget_tokens
    return {} if enabled is None else {"enable_thinking": enabled}


def _tools(request: GenerationRequest, body: Part, *, prefilled: bool) -> Part:
    """Adds the tools to `body`; returns the template arguments that this needs.

    With a given beginning no call is required: the engine holds the beginning against the grammar of the call, answers
    nonsense when it does not fit, and is ended by it (SIGABRT) when the beginning holds the model's end token.
    """
    known = functions(request.tools)
    choice = request.tool_choice
    named = known.named(choice.name) if choice.mode == "tool" else []
    body["tools"] = named or known.json
    body["tool_choice"] = {"auto": "auto", "none": "none"}.get(choice.mode, "auto" if prefilled else "required")
    body["parallel_tool_calls"] = choice.parallel
    if choice.mode == "none":
        body["grammar"] = NO_CALLS
    return {"tools": known.json} if named else {}
