"""A tiny hybrid model with random weights: attention in every other layer, a short convolution in the rest.

Owns: its shape, its weights, and the GGUF file that they become, written at test time. Vocabulary and chat template are
those of the scripted models, so that prompts tokenise as there.
Never: says anything sensible, or ends an answer by itself: a request must bound it with `max_tokens`.

A convolution's state knows only the tokens just read. It cannot be cut back to an earlier one, which is what hybrid
models that people serve have in common. What it says seldom tokenises again as it was generated: each turn that gives
it back is a tail that was rewritten. The same file each time.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.doubles.scripted_model import CONTEXT_TOKENS, CONTROL, END, TEMPLATE, vocabulary

Array = NDArray[np.float32]

NAME = "tiny-hybrid"
ARCHITECTURE = "lfm2"
SEED = 11
# A role is a word after a control token, as in real models: so the engine finds where each message begins.
TURN = "<|im_start|>"


@dataclass(frozen=True)
class Shape:
    """`key_value_heads` has one entry a layer; a layer without any convolves so many tokens (`convolution`)."""

    width: int = 64
    heads: int = 4
    key_value_heads: tuple[int, ...] = (0, 2, 0, 2)
    forward: int = 64
    convolution: int = 3

    @property
    def head(self) -> int:
        return self.width // self.heads


def write(folder: Path, shape: Shape | None = None) -> Path:
    """The model's GGUF in `folder`, written if it is not there yet. Returns its path."""
    path = folder / f"{NAME}.gguf"
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        _save(unfinished, shape or Shape())
        unfinished.rename(path)  # whoever looks in between sees no half a model
    return path


def tensors(shape: Shape, tokens: int) -> Iterator[tuple[str, Array]]:
    """Names and values as the file holds them; `tokens` is the size of the vocabulary."""
    random = np.random.default_rng(SEED)
    yield "token_embd.weight", _weights(random, tokens, shape.width)
    yield "token_embd_norm.weight", np.ones(shape.width, np.float32)
    for layer, key_value_heads in enumerate(shape.key_value_heads):
        mixing = _attention(random, shape, key_value_heads) if key_value_heads else _convolution(random, shape)
        for name, tensor in (mixing | _forward(random, shape)).items():
            yield f"blk.{layer}.{name}.weight", tensor


def _weights(random: np.random.Generator, outputs: int, inputs: int) -> Array:
    return np.asarray(random.standard_normal((outputs, inputs)) / np.sqrt(inputs), np.float32)


def _attention(random: np.random.Generator, shape: Shape, key_value_heads: int) -> dict[str, Array]:
    narrow = key_value_heads * shape.head
    return {
        "attn_q": _weights(random, shape.width, shape.width),
        "attn_k": _weights(random, narrow, shape.width),
        "attn_v": _weights(random, narrow, shape.width),
        "attn_output": _weights(random, shape.width, shape.width),
        "attn_q_norm": np.ones(shape.head, np.float32),
        "attn_k_norm": np.ones(shape.head, np.float32),
    }


def _convolution(random: np.random.Generator, shape: Shape) -> dict[str, Array]:
    return {
        "shortconv.in_proj": _weights(random, 3 * shape.width, shape.width),
        "shortconv.conv": _weights(random, shape.width, shape.convolution),
        "shortconv.out_proj": _weights(random, shape.width, shape.width),
    }


def _forward(random: np.random.Generator, shape: Shape) -> dict[str, Array]:
    return {
        "attn_norm": np.ones(shape.width, np.float32),
        "ffn_norm": np.ones(shape.width, np.float32),
        "ffn_gate": _weights(random, shape.forward, shape.width),
        "ffn_up": _weights(random, shape.forward, shape.width),
        "ffn_down": _weights(random, shape.width, shape.forward),
    }


def _save(path: Path, shape: Shape) -> None:
    learnt, merges = vocabulary()
    control = [*CONTROL, TURN]
    tokens = [*control, *learnt]
    file = gguf.GGUFWriter(str(path), ARCHITECTURE)
    file.add_name(NAME)
    _describe(file, shape, len(tokens))
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    file.add_token_types([gguf.TokenType.CONTROL] * len(control) + [gguf.TokenType.NORMAL] * len(learnt))
    file.add_token_merges(merges)
    file.add_eos_token_id(tokens.index(END))
    file.add_eot_token_id(tokens.index(END))
    file.add_add_bos_token(False)
    file.add_chat_template(TEMPLATE)
    for name, tensor in tensors(shape, len(tokens)):
        file.add_tensor(name, tensor)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _describe(file: gguf.GGUFWriter, shape: Shape, tokens: int) -> None:
    file.add_context_length(CONTEXT_TOKENS)
    file.add_vocab_size(tokens)
    file.add_file_type(gguf.LlamaFileType.ALL_F32)
    file.add_embedding_length(shape.width)
    file.add_block_count(len(shape.key_value_heads))
    file.add_feed_forward_length(shape.forward)
    file.add_head_count(shape.heads)
    file.add_head_count_kv(list(shape.key_value_heads))
    file.add_rope_freq_base(1e6)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_shortconv_l_cache(shape.convolution)
