"""The types that the API and the workers both speak.

Owns: what a request, a job, a delta, a worker and the cluster look like on the wire through Redis, and the version
of that wire. Imports the standard library and pydantic only.
Never: behaviour. No clock, no store, no HTTP.

Units are in the names: `_ms` and `_s` are times, `_tokens` token counts, `_bytes` sizes. Points in time are the
broker's clock (Redis TIME), never a machine's own.
"""

from scheduler.contract.base import CONTRACT_VERSION, LEVELS, TASK_NAME, Frozen
from scheduler.contract.cluster import (
    ClusterView,
    CountReply,
    LostWorker,
    Rates,
    SlotInfo,
    StoreInfo,
    Tallies,
    WorkerInfo,
    WorkerState,
    WorkerView,
)
from scheduler.contract.deltas import (
    Delta,
    Failed,
    Finished,
    Gone,
    Source,
    Started,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    decode_deltas,
    encode_deltas,
)
from scheduler.contract.job import ClaimedJob, Identity, JobSpec, Kind, PackedRequest
from scheduler.contract.request import (
    Block,
    GenerationRequest,
    ImageBlock,
    Limits,
    Message,
    TextBlock,
    Thinking,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)

__all__ = [
    "CONTRACT_VERSION",
    "LEVELS",
    "TASK_NAME",
    "Block",
    "ClaimedJob",
    "ClusterView",
    "CountReply",
    "Delta",
    "Failed",
    "Finished",
    "Frozen",
    "GenerationRequest",
    "Gone",
    "Identity",
    "ImageBlock",
    "JobSpec",
    "Kind",
    "Limits",
    "LostWorker",
    "Message",
    "PackedRequest",
    "Rates",
    "SlotInfo",
    "Source",
    "Started",
    "StopReason",
    "StoreInfo",
    "Tallies",
    "TextBlock",
    "TextDelta",
    "Thinking",
    "ThinkingBlock",
    "ThinkingDelta",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolResultBlock",
    "ToolUseBlock",
    "WorkerInfo",
    "WorkerState",
    "WorkerView",
    "decode_deltas",
    "encode_deltas",
]
