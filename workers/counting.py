"""Exact token counts for whoever asks, beside the GPU's queue.

Owns: the threads that render a prompt and let the engine's own template and tokenizer count it.
Never: generates.
"""

import threading

import structlog

from infra.errors import BrokerDown, EngineRefused
from scheduler.answering import CountRequest, CountRequests
from scheduler.contract import CountReply
from scheduler.packing import unpack
from workers.serving import Serving

log = structlog.get_logger(__name__)
RETRY_S = 0.5


def count_forever(requests: CountRequests, serving: Serving, stopping: threading.Event) -> None:
    """Answer count requests until `stopping`; while the engine is not ready they are left to other workers.

    No request and no error ends it: a worker has two such threads, and nobody starts them again.
    """
    while not stopping.is_set():
        if not serving.usable_slots():
            stopping.wait(RETRY_S)
            continue
        try:
            request = requests.take()
            if request is not None and (reply := _reply(request, serving)) is not None:
                requests.reply(request, reply)
        except BrokerDown as error:
            log.warning("counting_waits", reason=error.message)
            stopping.wait(RETRY_S)
        except Exception as error:
            log.warning("counting_waits", reason=type(error).__name__)
            stopping.wait(RETRY_S)


def _reply(request: CountRequest, serving: Serving) -> CountReply | None:
    """None when the engine could not answer; the asker then estimates."""
    try:
        return CountReply(tokens=serving.count(unpack(request.body)))
    except EngineRefused as error:
        return CountReply(error=error.message)
    # One request, whatever it holds, costs its own count only.
    except Exception as error:
        log.warning("not_counted", error=type(error).__name__)
        return None
