"""A real worker on a Celery that has known failures.

Owns: the faults. Messages that are not acknowledged come back after five seconds, and on SIGUSR2 the consumer keeps its
connection and asks for no message any more.
Never: changes a part of Corral.
"""

import signal
import sys
from typing import Any

from kombu.transport.redis import Channel

from workers.app import main


def _deaf(_number: int, _frame: Any) -> None:
    Channel._brpop_start = lambda *_, **__: None


if __name__ == "__main__":
    Channel.visibility_timeout = 5
    Channel.unacked_restore_interval = 1
    Channel.unacked_restore_throttle = 1
    signal.signal(signal.SIGUSR2, _deaf)
    sys.exit(main())
