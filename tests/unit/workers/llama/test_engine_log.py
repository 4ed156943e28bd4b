"""Out of the engine's many lines the one that a person needs."""

import signal
from pathlib import Path

import pytest

from workers.llama import engine_log

pytestmark = pytest.mark.unit

# As the engine wrote them.
NOT_A_MODEL = """\
0.00.006.464 E cmn  common_init_: failed to load model 'text.gguf'
0.00.006.465 E srv    load_model: failed to load model, 'text.gguf'
0.00.006.467 I srv    operator(): operator(): cleaning up before exit...
0.00.006.790 E srv          init: exiting due to model loading error
error: cannot serve text.gguf on port 9913; the lines above say why
"""
PORT_TAKEN = """\
0.00.002.133 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9912
0.00.002.216 E srv          init: exiting due to HTTP server error
"""
NO_MEMORY = """\
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 24576.00 MiB on device 0: cudaMalloc failed: out of memory
llama_init_from_model: failed to initialize the context
srv    load_model: failed to load model, 'a.gguf'
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (NOT_A_MODEL, "failed to load model, 'text.gguf'"),
        (PORT_TAKEN, "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9912"),
        ("error: invalid argument: --nope\n", "invalid argument: --nope"),
        (
            "llama_model_load: error loading model: unknown model architecture: 'x'\n\n",
            "unknown model architecture: 'x'",
        ),
        ("0.01.000.000 I srv  init: loading\njust a line\n", "just a line"),
        ("", ""),
    ],
)
def test_the_telling_line_is_found(text: str, line: str) -> None:
    assert engine_log.telling_line(text).removeprefix("error loading model: ") == line


def test_want_of_memory_is_said_with_a_remedy() -> None:
    reason = engine_log.reason(NO_MEMORY, 1)
    assert "cudaMalloc failed: out of memory" in reason
    assert "lower --slots or --context" in reason


# As llama.cpp writes them, but for what an abort tells of its stack: 50 lines of it.
CARD_FULL_WHILE_IT_RAN = (
    """\
srv  update_slots: run slots completed
CUDA error: out of memory
  current device: 0, in function alloc at ggml-cuda.cu:479
  cuMemCreate(&handle, reserve_size, &prop, 0)
ggml-cuda.cu:98: CUDA error
"""
    + "libggml-base.so(+0x15a3b)[0x7f]\n" * 50
)
CARD_FULL_WHILE_IT_LOADED = """\
ggml_cuda_host_malloc: failed to allocate 64.00 MiB of pinned memory: out of memory
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 24576.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 25769803776
llama_model_load: error loading model: unable to allocate CUDA0 buffer
srv    load_model: failed to load model, 'a.gguf'
"""
VULKAN = """\
ggml_vulkan: Device memory allocation of size 4294967296 failed.
ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory
"""
PINNED = "ggml_cuda_host_malloc: failed to allocate 64.00 MiB of pinned memory: out of memory\n"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            CARD_FULL_WHILE_IT_RAN,
            -signal.SIGABRT,
            "SIGABRT: the memory of the card is full: CUDA error: out of memory;",
        ),
        (
            CARD_FULL_WHILE_IT_LOADED,
            1,
            "the memory of the card is full: allocating 24576.00 MiB on device 0: cudaMalloc",
        ),
        (VULKAN, -signal.SIGABRT, "the memory of the card is full: Device memory allocation of size 4294967296 failed"),
    ],
    ids=["while it ran", "while it loaded", "vulkan"],
)
def test_a_full_card_is_told_in_plain_words_with_what_to_do(text: str, code: int, words: str) -> None:
    reason = engine_log.reason(text, code)
    assert words in reason
    assert reason.endswith(
        'lower --slots or --context, or store the caches smaller: --engine-args "-ctk q8_0 -ctv q8_0"'
    )
    assert engine_log.short_of_memory(reason)


def test_main_memory_that_is_short_is_not_the_card_s() -> None:
    reason = engine_log.reason("ggml_aligned_malloc: insufficient memory\nfailed to allocate CPU buffer of size 9", 1)
    assert "card" not in reason
    assert engine_log.short_of_memory(reason)


def test_memory_that_an_engine_does_without_is_no_cause() -> None:
    assert not engine_log.short_of_memory(engine_log.reason(PINNED, -signal.SIGKILL))


def test_a_want_of_memory_that_was_survived_long_ago_is_no_cause() -> None:
    text = VULKAN + "srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 200\n" * engine_log.LAST_LINES
    assert engine_log.want_of_memory(text) == ""


def test_a_silent_end_is_told_by_its_code() -> None:
    assert engine_log.reason("", 3) == "the engine exited with code 3"


def test_an_end_by_a_signal_is_told_by_its_name_and_likely_cause() -> None:
    assert "SIGKILL; the machine may have run out of memory" in engine_log.reason("", -signal.SIGKILL)
    assert "built for another CPU" in engine_log.reason("", -signal.SIGILL)
    assert "GGML_ASSERT(n > 0) failed" in engine_log.reason("a.cpp:1: GGML_ASSERT(n > 0) failed", -signal.SIGABRT)


def test_an_error_of_an_earlier_request_is_not_taken_for_the_cause_of_a_kill() -> None:
    text = "0.22.962.326 W srv    operator(): got exception: image input is not supported\n"
    assert "image" not in engine_log.reason(text, -signal.SIGKILL)


def test_only_what_came_after_the_start_is_read(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("old\n")
    start = engine_log.size(log)
    with log.open("a") as file:
        file.write("x" * engine_log.TAIL_BYTES + "new\n")
    text = engine_log.since(log, start)
    assert len(text) == engine_log.TAIL_BYTES
    assert text.endswith("new\n")


def test_a_missing_log_is_an_empty_one(tmp_path: Path) -> None:
    assert engine_log.size(tmp_path / "no.log") == 0
    assert engine_log.since(tmp_path / "no.log", 0) == ""


def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_log, "ROTATE_BYTES", 4)
    log = tmp_path / "engine-w1.log"
    log.write_text("12345")
    assert engine_log.size(log) == 0
    assert not log.exists()
    assert (tmp_path / "engine-w1.log.1").read_text() == "12345"
