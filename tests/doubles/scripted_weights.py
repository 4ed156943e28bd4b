"""The arithmetic of a scripted model: from "this token follows that one" to the tensors of a small transformer.

Owns: embedding, one attention head, output matrix, and the margins between them.
Never: a tokenizer, a template, a file's name.

How it decides. Each spoken token has a random code of signs; its successor's row of the output matrix is that code, so
it wins by far. The start token has no code but a dimension of its own, START, where every possible beginning has a
weight. The attention head looks for markers: a marker's key is so strong that the head sees nothing else, wherever in
the context it stands, and its value lights the dimension TOLD or that of one brief. These tip the choice at the start,
and are too weak to tip any other. A marker "told" outshines a brief; two different briefs in one context darken each
other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

WIDTH, HEAD, FORWARD = 256, 32, 32
CONSTANT, START, TOLD, TOLD_MARK, BRIEFED = range(5)  # dimensions; each brief has two from BRIEFED on
MAX_BRIEFS = 12
CODE = BRIEFED + 2 * MAX_BRIEFS  # codes fill the rest

CONSTANT_SIZE, START_SIZE, SEEN_SIZE, MARK_SIZE = 8.0, 24.0, 8.0, 16.0
MARGIN = 38.0  # lead of the right beginning over the next, before normalisation; about 23 after it
END_WEIGHT = 4.0  # a token without successor ends the turn
ROPE_BASE = 1e12  # the slowest rotary pair then turns by less than 1e-5 over the whole context: blind to position
BRIEFED_SCORE, TOLD_SCORE = (
    40.0,
    80.0,
)  # attention scores against 0 of all other tokens; exp(40) drowns any number of them
EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """Layers and heads. One of each decides; more only make the KV cache heavier (2 x 2 x 32 bytes each a token)."""

    layers: int = 1
    heads: int = 1


SMALL = Shape()


def brief_lit(number: int) -> int:
    """The dimension that a brief lights when it is seen."""
    return BRIEFED + 2 * number


def brief_mark(number: int) -> int:
    """The dimension by which a brief is seen."""
    return BRIEFED + 2 * number + 1


@dataclass(frozen=True)
class Markers:
    """Tokens that are seen anywhere in the context; one for each brief."""

    told: list[int]
    briefs: list[int]


class Weights:
    """The tensors of one script, filled by `say` and `mark`. `end` and `start` are token numbers."""

    def __init__(self, vocabulary_size: int, shape: Shape, *, end: int, start: int) -> None:
        self.shape = shape
        self.start = start
        self.random = np.random.default_rng(7)
        self.embedding = np.zeros((vocabulary_size, WIDTH), np.float32)
        self.embedding[:, CONSTANT] = CONSTANT_SIZE
        self.embedding[start, START] = START_SIZE
        self.output = np.zeros((vocabulary_size, WIDTH), np.float32)
        self.output[end, CONSTANT] = END_WEIGHT
        self.end = end

    def say(self, line: list[int], lit: int | None = None) -> None:
        """Let `line` be spoken, token by token, and then the turn end.

        It begins when the dimension `lit` is, or without one when none is.
        """
        if not line:
            return
        for token in line:
            self.embedding[token, CODE:] = self.random.choice(np.array([-1, 1], np.float32), WIDTH - CODE)
        for before, after in pairwise([*line, self.end]):
            self.output[after] += self._code(before)
        first = self.output[line[0]]
        # Behind by one margin unless its dimension is lit, ahead by one when it is.
        behind = 0.0 if lit is None else MARGIN
        first[START] += (10 * MARGIN - behind) / START_SIZE
        if lit is not None:
            first[lit] += 2 * MARGIN / SEEN_SIZE

    def mark(self, markers: Markers) -> None:
        """Let the head see these tokens."""
        self.embedding[markers.told, TOLD_MARK] = MARK_SIZE
        for number, token in enumerate(markers.briefs):
            self.embedding[token, brief_mark(number)] = MARK_SIZE

    def _code(self, token: int) -> Array:
        code = np.zeros(WIDTH, np.float32)
        code[CODE:] = self.embedding[token, CODE:]
        return code

    def _normalised(self, token: int) -> Array:
        """What a token looks like after the normalisation ahead of attention."""
        row = self.embedding[token]
        return np.asarray(row / np.sqrt(np.mean(row**2) + EPSILON), np.float32)

    def _head(self) -> dict[str, Array]:
        """The deciding head. Its query is set for the start token, the only place where a choice is made."""
        query, key, value, out = (np.zeros(size, np.float32) for size in [(HEAD, WIDTH)] * 3 + [(WIDTH, HEAD)])
        slowest = HEAD - 2  # llama's rotary pairs are neighbours
        strength = 16.0
        query[slowest, CONSTANT] = strength / self._normalised(self.start)[CONSTANT]
        briefs = [(brief_mark(number), brief_lit(number), BRIEFED_SCORE) for number in range(MAX_BRIEFS)]
        for lane, (mark, seen, score) in enumerate([(TOLD_MARK, TOLD, TOLD_SCORE), *briefs]):
            size = self._mark_size(mark)
            key[slowest, mark] = score * np.sqrt(HEAD) / strength / size
            value[lane, mark] = 1 / size
            out[seen, lane] = SEEN_SIZE
        return {"attn_q": query, "attn_k": key, "attn_v": value, "attn_output": out}

    def _mark_size(self, mark: int) -> float:
        """A marker's mark after normalisation; the weakest one, so that each is at least as strong as meant."""
        marked = np.flatnonzero(self.embedding[:, mark])
        return min((float(self._normalised(int(token))[mark]) for token in marked), default=1.0)

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Names and values as the file holds them."""
        yield "token_embd.weight", self.embedding
        for layer in range(self.shape.layers):
            for name, tensor in self._layer(self._head() if layer == 0 else {}).items():
                yield f"blk.{layer}.{name}.weight", tensor
        yield "output_norm.weight", np.ones(WIDTH, np.float32)
        yield "output.weight", self.output

    def _layer(self, head: dict[str, Array]) -> dict[str, Array]:
        wide = self.shape.heads * HEAD
        layer = {name: np.zeros((wide, WIDTH), np.float32) for name in ("attn_q", "attn_k", "attn_v")}
        layer["attn_output"] = np.zeros((WIDTH, wide), np.float32)
        for name, tensor in head.items():
            layer[name][: tensor.shape[0], : tensor.shape[1]] = tensor
        return {
            "attn_norm": np.ones(WIDTH, np.float32),
            **layer,
            "ffn_norm": np.ones(WIDTH, np.float32),
            "ffn_gate": np.zeros((FORWARD, WIDTH), np.float32),
            "ffn_up": np.zeros((FORWARD, WIDTH), np.float32),
            "ffn_down": np.zeros((WIDTH, FORWARD), np.float32),
        }

    def describe(self, file: Any) -> None:
        """Write the shape into the head of a GGUF file."""
        file.add_embedding_length(WIDTH)
        file.add_block_count(self.shape.layers)
        file.add_feed_forward_length(FORWARD)
        file.add_head_count(self.shape.heads)
        file.add_head_count_kv(self.shape.heads)
        file.add_key_length(HEAD)
        file.add_value_length(HEAD)
        file.add_rope_dimension_count(HEAD)
        file.add_rope_freq_base(ROPE_BASE)
        file.add_layer_norm_rms_eps(EPSILON)
