"""Scripted models: GGUF files whose weights spell out an agent, so that a real engine says what a test expects.

Owns: what a script is, the ready scripts, the chat template, and the file that a script becomes.
Never: the arithmetic of the weights (`scripted_weights`), or a committed file: models are written at test time.

A script's first turn is a tool call or a text. Once a tool result stands anywhere in the context, or when the request
offers no tools, it says `answer` and ends. The same script gives the same bytes.
What a model says is read back as the very tokens it said: each piece stands once in all that the model can say.
"""

import functools
import json
import os
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.doubles.scripted_weights import SMALL, TOLD, Markers, Shape, Weights, brief_lit

CONTEXT_TOKENS = 262144
END = "<|im_end|>"
ASSISTANT = "<|im_start|>assistant\n"  # one token: the generation prompt ends in it, and from it a script sets out
RESULT = "<|im_start|>tool\n"  # one token: a tool result stands in the context
NO_TOOLS = "<|no_tools|>"  # one token: written by the template when nothing can be called
TURNS = ["<|im_start|>system\n", "<|im_start|>user\n"]
CONTROL = ["<|endoftext|>", END]
BRIEF = "corral-brief-7f3a"
HELPER_ANSWER = "Helper here: job finished."

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer with a call as <tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call><|im_end|>
{% else %}<|no_tools|>
{%- if messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>tool
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content.strip('\\n') }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif not (message.role == 'system' and loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class Script:
    """What a model says. `first` is said until a tool result is there, then `answer`.

    `briefs` are words and what is said to a prompt that holds one of them, with a blank before it, and no tool result.
    `told` are words that take the place of a tool result: only one of them brings the `answer`.
    """

    name: str
    answer: str
    first: str = ""
    briefs: tuple[tuple[str, str], ...] = ()
    told: tuple[str, ...] = ()
    shape: Shape = SMALL


def call(tool: str, arguments: object, *, separators: tuple[str, str] = (", ", ": ")) -> str:
    """A tool call as the template writes it; with other separators, as it does not.

    The engine's grammar wants the arguments in the order of the tool's schema, required ones first.
    """
    text = json.dumps(arguments, ensure_ascii=False, separators=separators)
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {text}}}\n</tool_call>'


def tool_then_text(
    command: str = "echo tool-ran", answer: str = "All done: the tool ran and said its piece."
) -> Script:
    """One Bash call, then text."""
    return Script("tool-then-text", answer, call("Bash", {"command": command, "description": "run echo"}))


def long_text(count: int = 200) -> Script:
    """`count` different words, with or without tools; cut between two words and given back, it goes on exactly."""
    return Script(f"long-text-{count}", " ".join(f"step{number:04}" for number in range(1, count + 1)))


def subagent(tool: str = "Agent") -> Script:
    """Calls the client's subagent tool; who reads the brief answers in text, then the main line does."""
    prompt = f"Please do the job named {BRIEF} now."
    arguments = {"description": "Ask a helper", "prompt": prompt, "subagent_type": "general-purpose"}
    return Script(
        f"subagent-{tool}",
        "The helper is back and all is well.",
        call(tool, arguments),
        briefs=((BRIEF, HELPER_ANSWER),),
    )


TOOL_THEN_TEXT = tool_then_text()
TWO_PARALLEL_CALLS = Script(
    "two-parallel-calls",
    "Both tools are back.",
    "\n".join(call("Bash", {"command": f"echo {word}", "description": f"say {word}"}) for word in ("left", "right")),
)
THINKING_THEN_TEXT = Script("thinking-then-text", "<think>\nFirst I weigh it up.\n</think>\n\nThe answer is forty-two.")
LONG_TEXT = long_text()
SUBAGENT = subagent()
# Calls on and on, until a prompt asks for a summary; the answer is the summary, and its first word ends the next turn.
FOLDED = "folded-4c1e"
TOOL_UNTIL_SUMMARY = Script(
    "tool-until-summary",
    f"{FOLDED} and finished: nothing is left to do.",
    call("Bash", {"command": "seq -s. 10000 10450", "description": "count a little"}),
    told=("<analysis>", FOLDED),
)
SPACED_JSON = Script(
    "spaced-json",
    "Spaced or not, done.",
    call("Bash", {"command": "echo spaced", "description": "run echo"}, separators=(",", ":")),
)
TEXT_AND_CALL = Script(
    "text-and-call",
    "Looked.",
    "I have to look around first.\n" + call("Bash", {"command": "ls -la /tmp", "description": "see what lies there"}),
)
THINKING_TEXT_AND_CALLS = Script(
    "thinking-text-and-calls",
    "Weighed and done.",
    "<think>\nWhat would be wise here?\n\nBoth, of course.\n</think>\n\nSo be it:\n"
    + "\n".join(call("Bash", {"command": f"ping {word}", "description": f"wake {word}"}) for word in ("me", "you")),
)
RICH_ARGUMENTS = Script(
    "rich-arguments",
    "Edited.",
    call(
        "Edit",
        {
            "path": "src/\u00fcn\u00ef.py",
            "edits": [{"old": 'a < b && "c"', "new": "tab\there\nand \u65e5\u672c \U0001f600"}],
            "count": 3,
            "dry": True,
            "note": None,
        },
    ),
)
TEXT_ONLY = Script("text-only", "Just a short plain answer.")
# 8 layers x 2 (key, value) x 16 heads x 32 wide x 2 bytes = 16 KiB of KV cache a token.
KV_HEAVY = Script("kv-heavy", "A heavy memory answers.", shape=Shape(layers=8, heads=16))

ALL = (
    TOOL_THEN_TEXT,
    TWO_PARALLEL_CALLS,
    THINKING_THEN_TEXT,
    LONG_TEXT,
    SUBAGENT,
    TOOL_UNTIL_SUMMARY,
    SPACED_JSON,
    TEXT_AND_CALL,
    THINKING_TEXT_AND_CALLS,
    RICH_ARGUMENTS,
    TEXT_ONLY,
    KV_HEAVY,
)


def write(script: Script, folder: Path) -> Path:
    """The script's GGUF in `folder`, written if it is not there yet. Returns its path."""
    path = folder / f"{script.name}.gguf"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        _write(script, unfinished)
        unfinished.rename(path)  # whoever looks in between sees no half a model
    return path


def medley(*scripts: Script) -> Script:
    """One model that begins as the script does whose `brief_of` stands in the prompt; then its own answer."""
    briefs = tuple((brief_of(script), script.first or script.answer) for script in scripts)
    which = sha256(repr(briefs).encode()).hexdigest()[:8]  # its name is its file's: another medley is another model
    return Script(f"medley-{which}", "The medley is over.", "Nobody asked for a script.", briefs)


def brief_of(script: Script) -> str:
    """The word that asks a medley for a script; it has to stand behind a blank."""
    return f"play-{script.name}"


def pieces(text: str, said: str, whole: frozenset[str] = frozenset()) -> list[str]:
    """`text` as tokens: words with their blanks, joined on until each stands once in all that is `said`.

    So a token has one successor, and no text can be read back as other tokens than those it was said with. Words in
    `whole` stay tokens of their own. Raises ValueError when a part cannot be told apart from the rest.
    """
    found: list[str] = []
    piece = ""
    for part in re.findall(r" *[^ ]+", text):
        if part in whole:
            _join_to_last(found, piece, whole)
            piece = ""
        piece += part
        if part in whole or _stands_once(piece, said):
            found.append(piece)
            piece = ""
    _join_to_last(found, piece, whole)
    return found


def _join_to_last(found: list[str], piece: str, whole: frozenset[str]) -> None:
    if not piece:
        return
    if not found or found[-1] in whole:
        raise ValueError(f"{piece!r} repeats what else is said; choose other words")
    found[-1] += piece


def _stands_once(piece: str, said: str) -> bool:
    first = said.find(piece)
    return first >= 0 and said.find(piece, first + 1) < 0


@functools.cache
def vocabulary(size: int = 4000) -> tuple[list[str], list[str]]:
    """A byte-level BPE vocabulary with its merges, learnt from the standard library's own source text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(path) for path in sorted(Path(os.__file__).parent.glob("*.py"))[:60]], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(pair) for pair in model["merges"]]


def _write(script: Script, path: Path) -> None:
    learnt, merges = vocabulary()
    briefs = [f" {word}" for word, _ in script.briefs]
    texts = [script.first, script.answer, *(text for _, text in script.briefs)]
    lines = [pieces(text, "\0".join(texts), frozenset(briefs)) for text in texts]
    spoken = [piece for line in lines for piece in line]
    literal = list(dict.fromkeys([ASSISTANT, RESULT, NO_TOOLS, *TURNS, *script.told, *briefs, *spoken]))
    # The learnt words stand first; a piece that is one of them already becomes literal where it stands.
    tokens = [*CONTROL, *learnt, *(piece for piece in literal if piece not in set(learnt))]
    number = {token: index for index, token in enumerate(tokens)}
    weights = Weights(len(tokens), script.shape, end=number[END], start=number[ASSISTANT])
    first, answer, *briefed = ([number[piece] for piece in line] for line in lines)
    weights.say(first)
    weights.say(answer, lit=TOLD if first else None)
    for index, line in enumerate(briefed):
        weights.say(line, lit=brief_lit(index))
    told = [number[word] for word in script.told or (RESULT, NO_TOOLS)]
    weights.mark(Markers(told=told, briefs=[number[word] for word in briefs]))
    _save(path, script, tokens, set(literal), merges, weights)


def _save(
    path: Path, script: Script, tokens: list[str], literal: set[str], merges: list[str], weights: Weights
) -> None:
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_name(script.name)
    file.add_context_length(CONTEXT_TOKENS)
    weights.describe(file)
    file.add_vocab_size(len(tokens))
    file.add_file_type(gguf.LlamaFileType.ALL_F32)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    file.add_token_types([_kind(token, literal) for token in tokens])
    file.add_token_merges(merges)
    file.add_bos_token_id(0)
    file.add_eos_token_id(tokens.index(END))
    file.add_eot_token_id(tokens.index(END))
    file.add_add_bos_token(False)
    file.add_chat_template(TEMPLATE)
    for name, tensor in weights.tensors():
        file.add_tensor(name, tensor)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _kind(token: str, literal: set[str]) -> int:
    if token in CONTROL:
        return int(gguf.TokenType.CONTROL)
    return int(gguf.TokenType.USER_DEFINED if token in literal else gguf.TokenType.NORMAL)
