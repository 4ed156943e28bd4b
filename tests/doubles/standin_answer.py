"""One answer of the stand-in engine: from its slot to its last chunk.

Owns: the order and the shapes of an answer's chunks, its faults, and what its slot holds afterwards.
Never: HTTP. The standard library only.
"""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from tests.doubles.standin_script import Call, JsonObject, Plan, plan, render, render_answer, words
from tests.doubles.standin_slots import Pace, Refusal, SlotTable

TOLD_TO_FAIL = "the stand-in was told to fail"
BATCH_TOKENS = 2048  # prefill goes by batches of as many, each reported


class Answering:
    """One request from its slot to its last chunk.

    `outcome` ends as done, cancelled, failed, dropped, died or aborted; before that it is waiting or running.
    """

    def __init__(self, table: SlotTable, body: JsonObject, model: str) -> None:
        self.table = table
        self.body = body
        self.plan: Plan = plan(body)
        self.text = render(body)
        self.prompt = words(self.text)
        self.slot = table.choose(_whole(body.get("id_slot"), -1), self.prompt)
        self.outcome = "waiting"
        self.refusal: Refusal | None = None
        self.reused = 0
        self.predicted = 0
        self.prefill_ms = 0.0
        self.decode_ms = 0.0
        self.reasoning = ""
        self.content = ""
        self.calls: list[Call] = []
        self.finish = ""
        self.envelope = {
            "created": int(time.time()),
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "model": model,
            "system_fingerprint": "b0-standin",
        }

    async def chunks(self) -> AsyncGenerator[JsonObject, None]:
        """The chunks of the stream, each when it is due. Sets `refusal` instead when nothing is generated."""
        self.refusal = self._refused()
        if self.refusal is not None:
            self.outcome = "failed"
            return
        try:
            await self._take_slot()
            try:
                async for chunk in self._run():
                    yield chunk
            finally:
                self._release()
        except (asyncio.CancelledError, GeneratorExit):
            self.outcome = "cancelled"
            raise

    async def _take_slot(self) -> None:
        self.slot.waiting += 1
        try:
            await self.slot.lock.acquire()
        finally:
            self.slot.waiting -= 1

    async def _run(self) -> AsyncGenerator[JsonObject, None]:
        slot = self.slot
        slot.processing, slot.task, slot.decoded = True, next(self.table.tasks), 0
        self.outcome = "running"
        self.reused = slot.common(self.prompt) if self.body.get("cache_prompt", True) else 0
        slot.prompt_tokens, slot.reused_tokens = len(self.prompt), self.reused
        if self.plan.leak_bytes:
            self.table.leaked.append(b"x" * self.plan.leak_bytes)
        if self.plan.hang_at_once:
            await asyncio.Event().wait()
        async for chunk in self._prefill():
            yield chunk
        yield self._chunk({"role": "assistant", "content": None})
        async for chunk in self._decode():
            yield chunk
        if self.outcome == "running":
            self.outcome = "done"
            for chunk in self._last_chunks():
                yield chunk

    async def _prefill(self) -> AsyncGenerator[JsonObject, None]:
        total, done = len(self.prompt), self.reused
        pace = Pace(self.table.prefill_tokens_per_s)
        if self.body.get("return_progress"):
            yield self._progress(done, pace)
        while done < total:
            done = min(total, done + BATCH_TOKENS)
            await pace.reach_past(self.table.moving, done - self.reused)
            self.slot.cached = self.prompt[:done]
            if self.body.get("return_progress"):
                yield self._progress(done, pace)
        await asyncio.sleep(self.plan.start_delay_s)
        if self.plan.hang:
            await asyncio.Event().wait()
        self.prefill_ms = pace.took_ms()
        self.table.prompt_total += total - self.reused

    async def _decode(self) -> AsyncGenerator[JsonObject, None]:
        pace = Pace(self.plan.tokens_per_s or self.table.decode_tokens_per_s)
        limit = self._limit()
        self.finish = "tool_calls" if self.plan.calls else "stop"
        for delta in self._deltas():
            if 0 <= self.plan.freeze_after <= self.predicted:
                await self.table.freeze()
            if fault := self._fault():
                self.outcome = fault
                break
            if self.predicted >= limit:
                self.finish = "length"
                break
            self.predicted += 1
            self.slot.decoded = self.predicted
            if not self.table.in_hurry(self.slot):
                await pace.reach_past(self.table.moving, self.predicted)
            cut = self._heard(delta)
            yield self._chunk(delta)
            if cut:
                break
        if self.outcome == "failed":
            self.refusal = Refusal(500, TOLD_TO_FAIL, "server_error")
            yield {"error": self.refusal.body()}
        self.decode_ms = pace.took_ms()
        self.table.predicted_total += self.predicted

    def _deltas(self) -> list[JsonObject]:
        deltas: list[JsonObject] = [{"reasoning_content": word} for word in self.plan.reasoning]
        said = [{"content": word} for word in self.plan.content]
        deltas += said * (self._limit() if self.plan.repeat else 1)
        for index, call in enumerate(self.plan.calls):
            function = {"name": call.name, "arguments": ""}
            head = {"index": index, "id": uuid.uuid4().hex, "type": "function", "function": function}
            deltas.append({"tool_calls": [head]})
            for word in words(call.arguments):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": word}}]})
        return deltas

    def _heard(self, delta: JsonObject) -> bool:
        """Keep what was said; True when a stop word ends it, which is then cut off the delta."""
        self.reasoning += delta.get("reasoning_content", "")
        for part in delta.get("tool_calls", ()):
            function = part["function"]
            if "name" in function:
                self.calls.append(Call(function["name"], ""))
            last = self.calls[-1]
            self.calls[-1] = Call(last.name, last.arguments + function["arguments"])
        if "content" not in delta:
            return False
        before, self.content = self.content, self.content + delta["content"]
        ends = [self.content.find(stop) for stop in self._stops() if stop in self.content]
        if ends:
            self.content = self.content[: min(ends)]
            delta["content"] = self.content[len(before) :]
        return bool(ends)

    def _stops(self) -> list[str]:
        stop = self.body.get("stop") or []
        return [stop] if isinstance(stop, str) else stop

    def _limit(self) -> int:
        wanted = [_whole(self.body.get(name), -1) for name in ("max_tokens", "max_completion_tokens", "n_predict")]
        room = self.table.n_ctx - len(self.prompt)
        return min([room, *(number for number in wanted if number >= 0)])

    def _fault(self) -> str | None:
        faults = {
            "failed": self.plan.fail_after,
            "died": self.plan.die_after,
            "aborted": self.plan.abort_after,
            "dropped": self.plan.drop_after,
        }
        return next((name for name, after in faults.items() if 0 <= after <= self.predicted), None)

    def _refused(self) -> Refusal | None:
        if self.plan.fail_status:
            return Refusal(self.plan.fail_status, TOLD_TO_FAIL, "server_error")
        return self.table.too_long(len(self.prompt))

    def _release(self) -> None:
        slot = self.slot
        if self.predicted:
            answer = render_answer(self.reasoning, self.content, self.calls)
            slot.cached = words(self.text + answer)
        slot.processing, slot.used_at = False, time.monotonic()
        slot.lock.release()

    # --- shapes -------------------------------------------------------------------------------------------------

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> JsonObject:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        return {"choices": [choice], **self.envelope, "object": "chat.completion.chunk"}

    def _progress(self, processed: int, pace: Pace) -> JsonObject:
        progress = {
            "total": len(self.prompt),
            "cache": self.reused,
            "processed": processed,
            "time_ms": int(pace.took_ms()),
        }
        return {**self._chunk({"role": "assistant", "content": None}), "prompt_progress": progress}

    def _last_chunks(self) -> list[JsonObject]:
        last = self._chunk({}, self.finish)
        if not (self.body.get("stream_options") or {}).get("include_usage"):
            return [{**last, "timings": self.timings()}]
        return [last, {**last, "choices": [], "usage": self.usage(), "timings": self.timings()}]

    def usage(self) -> JsonObject:
        return {
            "completion_tokens": self.predicted,
            "prompt_tokens": len(self.prompt),
            "total_tokens": len(self.prompt) + self.predicted,
            "prompt_tokens_details": {"cached_tokens": self.reused},
        }

    def timings(self) -> JsonObject:
        return {
            "cache_n": self.reused,
            "prompt_n": len(self.prompt) - self.reused,
            "prompt_ms": self.prefill_ms,
            "predicted_n": self.predicted,
            "predicted_ms": self.decode_ms,
        }

    def whole(self) -> JsonObject:
        """The body of an answer that is not streamed; it repeats a given beginning, as the engine does."""
        message: JsonObject = {"role": "assistant", "content": self.plan.given + self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": c.arguments}, "id": uuid.uuid4().hex}
                for c in self.calls
            ]
        choice = {"finish_reason": self.finish, "index": 0, "message": message}
        usage = {"usage": self.usage(), "timings": self.timings()}
        return {"choices": [choice], **self.envelope, "object": "chat.completion", **usage}

    def report(self) -> JsonObject:
        """The line that the log keeps of this request; messages and tools only by number."""
        asked = {key: value for key, value in self.body.items() if key not in {"messages", "tools"}}
        return {
            "outcome": self.outcome,
            "slot": self.slot.number,
            "id_slot": self.body.get("id_slot"),
            "cache_n": self.reused,
            "prompt_n": len(self.prompt) - self.reused,
            "predicted_n": self.predicted,
            "finish": self.finish,
            "messages": len(self.body["messages"]),
            "tools": len(self.body.get("tools") or []),
            "asked": asked,
            "pid": os.getpid(),
        }


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default
