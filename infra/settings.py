"""The settings: names, units, defaults, bounds and words.

Owns: every setting, and what may stand in it.
Never: reads one from anywhere (`config`).
"""

import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from infra import setting_text

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Positive = Annotated[int, Field(gt=0)]
AUTO: Literal["auto"] = "auto"
Weight = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]


def default_data_dir() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "corral"


class Settings(BaseModel):
    """Effective settings. Names are those of `corral.toml`; in the environment `CORRAL_` + upper case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # the house
    redis_url: str = Field("", description="redis://[:password@]host:port/db of the broker; empty: `up` starts its own")
    data_dir: Path = Field(default_factory=default_data_dir, description="logs, broker data, assembled models")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["auto", "json", "text"] = Field("auto", description="auto: text on a terminal, JSON elsewhere")
    trace_endpoint: str = Field(
        "", description="OTLP address (HTTP) of what takes traces, as http://127.0.0.1:4318; empty: none are made"
    )

    # the API
    host: str = Field("127.0.0.1", description="address the API listens on; anything but loopback needs api_keys")
    port: Port = Field(8000, description="port of the API")
    api_workers: int = Field(1, ge=1, le=64, description="API processes behind that port")
    api_name: str = Field("api", pattern=NAME_PATTERN, description="name of one API process in its log and in status")
    api_keys: SecretStr = Field(SecretStr(""), description="name:key,name:key; who may ask")
    body_limit_bytes: Positive = Field(32 * 1024 * 1024, description="largest request body")
    image_urls: bool = Field(False, description="engines may fetch http(s) addresses of images that a request names")
    merge_repeated: bool = Field(True, description="an assistant message that repeats the one before it is left out")
    share_base: bool = Field(
        True, description="what Claude Code's system prompt says of one folder is told in the first message instead"
    )
    body_timeout_s: Seconds = Field(60, description="longest time a body may take to arrive")
    wait_anonymous_s: Seconds = Field(30, description="longest wait of a caller without identity, then 503")
    wait_identified_s: Seconds = Field(600, description="longest wait of an identified agent")
    early_commit_s: Seconds = Field(20, description="an identified agent's wait after which its stream is opened")
    ping_interval_s: Seconds = Field(10, description="a ping after this long without an event")
    heartbeat_interval_s: Seconds = Field(60, description="an empty message_delta after this long without content")
    count_timeout_ms: Positive = Field(300, description="longest wait for an exact token count, then an estimate")
    default_level: int = Field(5, ge=0, le=9, description="priority of a request without X-Priority")
    queue_limit: Positive = Field(64, description="queued jobs a worker's line may hold, then 529")
    load_bound: float = Field(
        1.25, ge=1, allow_inf_nan=False, description="a worker takes new conversations up to this times the mean load"
    )
    move_margin_s: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="a conversation leaves its home only to be answered so much sooner"
    )
    ageing_s: Seconds = Field(
        20, description="a request that waited so long rises by one level, and again after as long"
    )
    urgent_share: float = Field(
        0.25, ge=0, lt=1, description="share of a worker's slots kept for levels 0 to 2 while such requests come"
    )
    return_hold_s: float = Field(
        5, ge=0, le=60, description="longest time a slot is kept for an agent in a tool call; 0: none is"
    )
    fair_half_life_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        180, description="after this long the service an agent had counts half"
    )
    agent_weights: dict[str, Weight] = Field(
        {}, description="shares of agents inside a level, as name=2,name=0.5; 1 for all others"
    )
    key_weights: dict[str, Weight] = Field({}, description="as agent_weights, for the names of keys; they come first")
    coalesce: bool = Field(True, description="identical requests that overlap are answered once, where that is exact")
    linger_s: float = Field(
        3, ge=0, le=60, description="a hung-up answer of an identified agent goes on so long, for the client's retry"
    )
    gather_short: bool = Field(
        False, description="requests without identity and of similar length wait a moment to be sent together"
    )
    home_lifetime_s: Seconds = Field(
        3600, description="how long a conversation's home is remembered after its last use"
    )
    warm: tuple[Path, ...] = Field(
        (), description="files with system prompts or recorded requests that every worker prefills as it comes up"
    )
    flower_host: str = Field("127.0.0.1", description="address Flower listens on")
    flower_port: Port = Field(5555, description="port of Flower")
    flower_password: SecretStr = Field(SecretStr(""), description="user:password for Flower; needed off loopback")

    # a worker
    worker_name: str = Field("w1", pattern=NAME_PATTERN, description="name of this worker; stable over restarts")
    gpu: str = Field("", pattern=r"^(|none|\d+(,\d+)*)$", description="cards of this worker's engine, as 0 or 0,1")
    model: str = Field("demo", description="path of a GGUF file, demo, or hf:REPO[:QUANT]")
    model_name: str = Field("", description="name under which the model is served; empty: from the file")
    slots: Annotated[int, Field(gt=0, le=256)] | Literal["auto"] = Field(
        4, description="requests an engine serves at once; auto: as many as fit into memory"
    )
    context_tokens: Positive | Literal["auto"] = Field(
        32768, description="window of each slot; auto: the largest at which slots fit into memory"
    )
    scratch_slots: Annotated[int, Field(ge=0, le=4)] | Literal["auto"] = Field(
        AUTO, description="further slots for side calls; auto: 1 for a model whose saved slots cannot be restored"
    )
    threads: int = Field(0, ge=0, description="engine threads; 0: cores less one, shared among workers of `up`")
    engine_args: str = Field("", description="further llama-server flags, as one string")
    llama_server: str = Field("", description="llama-server binary, or `embedded`; empty: PATH, else the embedded one")
    engine_start_timeout_s: Seconds = Field(600, description="longest time a model may take to load")
    first_token_timeout_s: Seconds = Field(600, description="longest time without progress before the first token")
    between_tokens_timeout_s: Seconds = Field(120, description="longest silence of the engine between two tokens")
    hang_s: Seconds = Field(30, description="silence of a working engine after which it is looked at: does it hang")
    repeat_limit_tokens: int = Field(1000, ge=0, description="one token repeated more often is garbage; 0: it never is")
    engine_memory_ceiling_bytes: Positive | Literal["auto"] = Field(
        AUTO, description="an engine that has grown to hold so much memory is restarted; auto: until 5 % is left"
    )
    engine_growth_bytes_per_h: int = Field(2**30, ge=0, description="an engine growing so an hour is restarted; 0: no")
    sick_after: Positive = Field(5, description="failures of an engine in a row after which its worker rests as sick")
    answer_timeout_s: Seconds = Field(3600, description="longest time an answer may take in all")
    overflow_reserve_tokens: int = Field(-1, ge=-1, description="window kept for compaction; -1: 1/16, at most 4096")
    metrics_port: Port = Field(0, description="port of a worker's own /metrics, the next ones its neighbours'; 0: none")
    metrics_host: str = Field("127.0.0.1", description="address a worker's /metrics listens on")
    delta_batch_ms: int = Field(
        32,
        ge=0,
        le=100,
        description="longest rest between two reads of an answer; what came meanwhile travels together",
    )
    lease_lifetime_s: Seconds = Field(5, description="a worker silent for this long is dead")
    lease_renew_s: Seconds = Field(1, validate_default=True, description="how often a worker says that it lives")
    store_dir: str = Field(
        "", description="saved caches, shared by workers; empty: kv in data_dir; off: none are saved"
    )
    store_limit_bytes: Positive = Field(64 * 2**30, description="most that the store may hold")
    store_age_s: Seconds = Field(86_400, description="a saved cache unused for this long is removed")
    store_write_bytes_per_s: Positive = Field(
        20_000_000, description="mean rate at which a worker may write checkpoints of conversations that go on"
    )
    idle_slot_s: Seconds = Field(300, description="a slot unused for this long is freed, after saving")
    drain_s: Seconds = Field(30, description="how long running answers may go on when a part is stopped")

    @field_validator("data_dir")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("trace_endpoint")
    @classmethod
    def _reached_by_http(cls, value: str) -> str:
        if value and not setting_text.is_http_address(value):
            raise PydanticCustomError("no_address", "must be an http(s) address, as http://127.0.0.1:4318")
        return value

    @field_validator("warm", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        paths = setting_text.paths(value, Path())
        if not isinstance(paths, tuple):
            raise PydanticCustomError("no_files", "must be a list of files")
        return paths

    @field_validator("agent_weights", "key_weights", mode="before")
    @classmethod
    def _weighed(cls, value: Any) -> Any:
        try:
            weights = setting_text.weights(value)
        except ValueError as error:
            raise PydanticCustomError("weight_twice", "{words}", {"words": str(error)}) from None
        if not isinstance(weights, dict):
            raise PydanticCustomError("no_weights", "must be of the form name=2,name=0.5")
        return weights

    @property
    def store_folder(self) -> Path | None:
        """Where saved caches lie; None when none are to be saved."""
        if self.store_dir == "off":
            return None
        return Path(self.store_dir).expanduser().absolute() if self.store_dir else self.data_dir / "kv"

    @field_validator("lease_renew_s")
    @classmethod
    def _renewed_in_time(cls, value: float, info: ValidationInfo) -> float:
        lifetime_s = info.data.get("lease_lifetime_s", math.inf)
        if value > lifetime_s / 2:
            words = f"must be at most half of lease_lifetime_s ({lifetime_s:g})"
            raise PydanticCustomError("renewed_too_late", words)
        return value

    def reserve_tokens(self, context_tokens: int) -> int:
        """Tokens of a window that a normal prompt may not use, so that a compaction request still fits."""
        if self.overflow_reserve_tokens >= 0:
            return min(self.overflow_reserve_tokens, context_tokens // 2)
        return min(4096, context_tokens // 16)
