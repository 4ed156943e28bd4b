"""The real engine by itself: llama.cpp's own server from the xllamacpp wheel, in a process of its own.

Owns: the few parameters that a test of the doubles needs.
Never: Corral's embedded engine, which maps many more.

usage: python -m tests.doubles.embedded_engine MODEL PORT SLOTS CONTEXT_TOKENS_PER_SLOT [FOLDER_OF_SLOT_FILES]; key from
LLAMA_API_KEY
"""

import os
import signal
import sys

import xllamacpp


def main(model: str, port: int, slots: int, context_tokens: int, folder: str = "") -> None:
    """Serve until a signal ends the process."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = slots
    parameters.n_ctx = slots * context_tokens
    parameters.kv_unified = False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_threads_http = 8
    parameters.fit_params = False
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.use_jinja = True
    parameters.endpoint_slots = parameters.endpoint_props = parameters.endpoint_metrics = True
    if folder:
        parameters.slot_save_path = f"{folder}/"
    if os.environ.get("LLAMA_API_KEY"):
        parameters.api_keys = [os.environ["LLAMA_API_KEY"]]
    server = xllamacpp.Server(parameters)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:6])
