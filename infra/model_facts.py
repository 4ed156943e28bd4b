"""What a GGUF file says of the memory that a model needs: layer by layer, what each keeps of the tokens it has read.

Owns: which metadata key means what, and what llama.cpp assumes where a file leaves a key out.
Never: bytes of a KV type, slots or devices; `infra.gguf_plan` does that sum.

Three kinds of layer: full attention keeps keys and values of every token; sliding-window attention only of the last
few; a recurrent layer (SSM, linear attention, short convolution) keeps a state of fixed size. The rules are those of
llama.cpp's loader (src/llama-hparams.cpp and src/models/). What such keys do not tell, as the index of sparse
attention, is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import StartError
from infra.gguf_file import Header, parts, read_header

STATE_BYTES = 4  # recurrent states are kept as float32, whatever the KV type

# Every n-th layer sees everything, the others a window, where the file names a window but no pattern.
PERIOD_OF = {"cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "olmo2": 4}
# llama.cpp reads a window from these files and does not use it.
WINDOW_UNUSED = frozenset({"llama", "phi3"})
# Attention and state side by side in every layer.
BOTH_IN_EACH_LAYER = frozenset({"falcon-h1"})
FULL_ATTENTION_INTERVAL_OF = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
GEMMA3N_LAYERS_WITH_CACHE = 20


@dataclass(frozen=True, slots=True)
class Cache:
    """What one attention layer keeps of a token: so many numbers as keys and as values. `window` is how many tokens
    it keeps, 0 for all."""

    keys: int
    values: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one model. `state_bytes` is the fixed part of a slot; widths are numbers per token in the widest layer."""

    trained_tokens: int
    weights_bytes: int
    caches: tuple[Cache, ...]
    state_bytes: int = 0
    layers: int = 0
    vocabulary: int = 0
    width: int = 0
    forward_width: int = 0
    heads: int = 0


def read(path: Path) -> Facts:
    """The facts of the model at `path`, all of its parts weighed. Raises StartError when the file does not say."""
    size = sum(part.stat().st_size for part in parts(path))
    return facts(read_header(path), size, str(path))


def facts(header: Header, weights_bytes: int, name: str) -> Facts:
    """The facts in a file's `header`. Raises StartError that names what is missing; `name` is the file's, for it."""
    metadata = _Metadata(header)
    missing = [key for key in ("block_count", "context_length", "embedding_length") if not metadata.number(key)]
    if missing:
        raise StartError("model", f"{name} does not say {metadata.key(missing[0])}; its memory cannot be told")
    return Facts(
        trained_tokens=metadata.number("context_length"),
        weights_bytes=weights_bytes,
        caches=tuple(_cache(metadata, layer) for layer in _attention_layers(metadata)),
        state_bytes=len(_recurrent_layers(metadata)) * _state_numbers(metadata) * STATE_BYTES,
        layers=metadata.number("block_count"),
        vocabulary=header.lengths.get("tokenizer.ggml.tokens", metadata.number("vocab_size")),
        width=metadata.number("embedding_length"),
        forward_width=max(metadata.of_layer("feed_forward_length")),
        heads=max(metadata.of_layer("attention.head_count")),
    )


class _Metadata:
    """Keys of the architecture, with what llama.cpp takes for a key that is not there."""

    def __init__(self, header: Header) -> None:
        self._values = header.values
        self.architecture = str(header.values.get("general.architecture", ""))
        # The layers that predict further tokens are no part of the model proper.
        self.layers = max(0, self.number("block_count") - self.number("nextn_predict_layers"))

    def key(self, name: str) -> str:
        return f"{self.architecture or 'ARCHITECTURE'}.{name}"

    def number(self, name: str, default: int = 0) -> int:
        value = self._values.get(self.key(name))
        return int(value) if isinstance(value, int | float) else default

    def of_layer(self, name: str, default: int = 0) -> Sequence[int]:
        """One number a layer, whether the file has one for all or one for each."""
        value = self._values.get(self.key(name))
        if isinstance(value, tuple):
            numbers = [int(number) for number in value][: self.layers]
            return [*numbers, *[default] * (self.layers - len(numbers))] or [default]
        return [self.number(name, default)] * max(1, self.layers)

    def key_value_heads(self) -> Sequence[int]:
        """One number a layer; a file without them has as many as it has heads."""
        has_own = self.key("attention.head_count_kv") in self._values
        return self.of_layer("attention.head_count_kv" if has_own else "attention.head_count")

    def list_or_number(self, name: str) -> tuple[int, ...] | int:
        value = self._values.get(self.key(name))
        return tuple(int(number) for number in value) if isinstance(value, tuple) else self.number(name)


def _recurrent_layers(metadata: _Metadata) -> list[int]:
    """Layers that keep a state. They are marked by an interval, or by having no heads for keys and values."""
    if not _state_numbers(metadata):
        return []
    layers = range(metadata.layers)
    if metadata.architecture in BOTH_IN_EACH_LAYER:
        return list(layers)
    interval = metadata.number("full_attention_interval", FULL_ATTENTION_INTERVAL_OF.get(metadata.architecture, 0))
    if interval:
        return [layer for layer in layers if (layer + 1) % interval]
    heads, forward = metadata.key_value_heads(), metadata.of_layer("feed_forward_length")
    # In files with one width a layer, a layer with neither heads nor state is a plain feed-forward one.
    by_layer = len(set(forward)) > 1
    return [layer for layer in layers if not heads[layer] and not (by_layer and forward[layer])]


def _attention_layers(metadata: _Metadata) -> list[int]:
    recurrent = set() if metadata.architecture in BOTH_IN_EACH_LAYER else set(_recurrent_layers(metadata))
    heads = metadata.key_value_heads()
    own = metadata.layers - metadata.number("attention.shared_kv_layers")
    if metadata.architecture == "gemma3n":
        own = min(own, GEMMA3N_LAYERS_WITH_CACHE)
    return [layer for layer in range(metadata.layers) if layer not in recurrent and heads[layer] and layer < own]


def _cache(metadata: _Metadata, layer: int) -> Cache:
    window = metadata.number("attention.sliding_window") if _slides(metadata, layer) else 0
    heads = metadata.key_value_heads()[layer]
    head = metadata.number("embedding_length") // max(1, *metadata.of_layer("attention.head_count"))
    key, value = (metadata.number(f"attention.{part}_length", head) for part in ("key", "value"))
    if window:
        key, value = (
            metadata.number(f"attention.{part}_length_swa", full) for part, full in (("key", key), ("value", value))
        )
    # Multi-head latent attention keeps one joint vector, from which the values are read too.
    joint = metadata.number("attention.key_length_mla") and metadata.number("attention.value_length_mla")
    return Cache(keys=heads * key, values=0 if joint else heads * value, window=window)


def _slides(metadata: _Metadata, layer: int) -> bool:
    """Does this layer see a window only? A file that does not tell which layers do is taken to keep all in each: the
    plan is then too careful, never too bold."""
    if not metadata.number("attention.sliding_window") or metadata.architecture in WINDOW_UNUSED:
        return False
    pattern = metadata.list_or_number("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return bool(pattern[layer % len(pattern)]) if pattern else False
    period = pattern or PERIOD_OF.get(metadata.architecture, 1)
    return layer % period < period - 1


def _state_numbers(metadata: _Metadata) -> int:
    """Numbers in the state of one recurrent layer: what it remembers, and the last inputs of its convolution."""
    width, number = metadata.number("embedding_length"), metadata.number
    if head := number("wkv.head_size"):
        return width * (number("token_shift_count", 2) + head)
    if length := number("shortconv.l_cache"):
        return width * (length - 1)
    convolution = max(0, number("ssm.conv_kernel") - 1)
    if head := number("kda.head_dim"):
        heads = max(metadata.of_layer("attention.head_count"))
        return 3 * convolution * heads * head + heads * head * head
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    return convolution * (inner + 2 * number("ssm.group_count") * state) + inner * state
