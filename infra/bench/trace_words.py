"""Words that stand in for the pieces of a trace: as many tokens, equal where the pieces were equal.

Owns: how many words make a piece's tokens on a given server, and the texts.
Never: a word of the recorded ones; nobody knows them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from infra.bench.agents_house import Counter
from infra.bench.agents_session import Based, Kind, Reply, Talk, Tools
from infra.bench.bodies import WORDS, even_words
from infra.bench.trace import Piece, Request, Trace

FEW, MANY = 2 * WORDS, 22 * WORDS  # to count what a word takes; each comes equally often
TOOL: Tools = [("Tool0", "Run a command.", {"type": "object", "properties": {"value0": {"type": "string"}}})]


@dataclass(frozen=True, slots=True)
class Beginning:
    """System text, and one tool where the recorded prompt had some: only then is it taken for an agent's main line."""

    rules: str
    tools: Tools


@dataclass(frozen=True, slots=True)
class Scale:
    """What a word takes in tokens, what a message takes beyond its words, and a beginning without and with a tool."""

    word: float = 1.0
    message: float = 0.0
    plain: float = 0.0
    with_tool: float = 0.0

    @classmethod
    def of(cls, counter: Counter, trace: Trace) -> "Scale":
        """As `counter` counts. One token a word where nobody does, and of a model whose template leaves system texts
        out, as the demo's: it counts many words as few."""
        kinds = {request.tools for request in trace.requests}
        few = counter.tokens(_sample(FEW, 1, tool=False))
        many, longer = counter.tokens(_sample(MANY, 1, tool=False)), counter.tokens(_sample(FEW, 3, tool=False))
        tooled = counter.tokens(_sample(FEW, 1, tool=True)) if True in kinds else few
        if not (few and many > few and longer and tooled):
            return cls()
        word = (many - few) / (MANY - FEW)
        message = (longer - few) / 2 - word
        first = FEW * word + message + word
        return cls(word, message, few - first, tooled - first)

    def words(self, tokens: int, beyond: float) -> int:
        """How many words make up `tokens` tokens, of which `beyond` are there anyway; at least one."""
        return max(1, round((tokens - beyond) / self.word))


@dataclass(slots=True)
class Writer:
    """The texts of one arm, which come from `text`: no two arms share one."""

    scale: Scale
    text: str
    _written: dict[tuple[Piece, float], str] = field(default_factory=dict)

    def talk(self, request: Request, prompt: Sequence[Piece], place: tuple[int, int]) -> Talk:
        """The request as a conversation that stands where the recorded one stood. `place` is one of `Trace.places`."""
        beginning, first, *others = prompt
        beyond = self.scale.with_tool if request.tools else self.scale.plain
        base: Based = Beginning(self._words(beginning, beyond), TOOL if request.tools else [])
        # A side call's beginning can be smaller than any that is written here: its first message makes up for it.
        over = max(0.0, beyond + self.scale.word - beginning[1])
        said = [self._words(first, self.scale.message + over)]
        said += [self._words(piece, self.scale.message) for piece in others]
        return Talk(
            kind=request.kind,
            agent=place[0],
            number=place[1],
            session=f"{self.text}-{request.session}",
            base=base,
            max_tokens=max(1, request.output_tokens),
            history=[Reply(text) if index % 2 else text for index, text in enumerate(said)],
            level=request.level,
        )

    def _words(self, piece: Piece, beyond: float) -> str:
        name, tokens = piece
        if (piece, beyond) not in self._written:
            self._written[piece, beyond] = even_words(f"{self.text} {name}", self.scale.words(tokens, beyond))
        return self._written[piece, beyond]


def _sample(count: int, messages: int, *, tool: bool) -> Talk:
    history = [Reply("go") if number % 2 else "go" for number in range(messages)]
    return Talk(Kind.MAIN, 0, 0, "sizing", Beginning(even_words("sizing", count), TOOL if tool else []), 1, history)
