"""The API as the command line sees it: its status, its models, and its silence in words.

Owns: the requests to /v1/status, /v1/why, /v1/models, /v1/workers and /ready, and the shapes of their answers.
Never: asks for an answer of a model.
"""

from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from infra import config
from infra.config import Settings
from infra.errors import CorralError, NotAuthenticated, NotFound, Refused
from infra.retrying import tries

TIMEOUT_S = 5.0
AGAIN = (502, 503, 504)
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - read, never bound
NO_KEY = "corral"  # the client insists on a credential even where none is asked for


class Answer(BaseModel):
    """A part of an answer; a newer API may say more than this command knows."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Slot(Answer):
    slot: int
    conversation: str | None = None
    agent: str | None = None
    busy: bool = False
    tokens: int = 0


class Store(Answer):
    """A worker's use of saved caches; `off` says why it uses none."""

    off: str = ""
    used_bytes: int = 0
    saves: int = 0
    restores: int = 0
    failures: int = 0


class Waiting(Answer):
    """A queued request, and in how many seconds it is expected to be started; None: nobody can say."""

    place: int
    agent: str = ""
    level: int = 0
    waited_s: float = 0
    expected_s: float | None = None


class Worker(Answer):
    name: str
    state: str
    reason: str = ""
    model: str = ""
    context_tokens: int = 0
    slots: tuple[Slot, ...] = ()
    queued: tuple[int, ...] = (0,) * 10
    line: tuple[Waiting, ...] = ()
    running: int = 0
    gpu: str = ""
    engine: str = ""
    engine_bytes: int = 0
    store: Store | None = None


class Lost(Answer):
    """A worker that is gone, and what is left of its jobs."""

    name: str
    queued: tuple[int, ...] = (0,) * 10
    running: int = 0


class Misses(Answer):
    """All cache misses of one cause; `tokens` were read again, which took `ms`."""

    count: int = 0
    tokens: int = 0
    ms: int = 0


class Wait(Answer):
    """How far the expected waits of the last `waits` were off, whom they had refused, how many waited `in_vain`, and
    how many of those who were told to ask again came in time (`promises_kept`) or may still come."""

    waits: int = 0
    median_error_s: float = 0
    p90_error_s: float = 0
    ratio: float = 0
    refused: dict[str, int] = {}
    in_vain: int = 0
    promises_kept: int = 0
    promises_open: int = 0
    moved: int = 0


class Running(Answer):
    """A request that has not ended; what is not known yet is None. `told` are the pieces of its answer so far; with
    `waits_again` its worker or engine was lost, and it waits for another attempt."""

    agent: str = ""
    worker: str = ""
    slot: int | None = None
    queue_ms: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    took_ms: int = 0
    told: int = 0
    per_s: float = 0.0
    waits_again: bool = False


class Ended(Running):
    """A request that has ended."""

    eta_ms: int | None = None
    outcome: str = ""
    reason: str = ""
    stop_reason: str = ""
    first_ms: int | None = None
    prefill_ms: int | None = None
    decode_ms: int | None = None
    output_tokens: int | None = None
    miss: str = ""


class Status(Answer):
    workers: tuple[Worker, ...] = ()
    lost: tuple[Lost, ...] = ()
    apis_silent: int = 0
    waiting: int = 0
    wait: Wait = Wait()
    coalesced: int = 0
    misses: dict[str, Misses] = {}
    running: tuple[Running, ...] = ()
    recent: tuple[Ended, ...] = ()


class Why(Answer):
    """What became of one request's cache."""

    request: str
    agent: str = ""
    kind: str = ""
    cause: str = ""
    lost_tokens: int = 0
    lost_ms: int = 0
    sentence: str = ""
    to_do: str = ""


def address(settings: Settings, port: int | None = None) -> str:
    """The URL under which this machine reaches the API of these settings."""
    host = ANYWHERE.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port if port is None else port}"


def own_key(settings: Settings) -> str:
    """The first of CORRAL_API_KEYS; empty where there is none."""
    return next(iter(config.api_keys(settings).values()), "")


def key(settings: Settings, given: str | None = None) -> str:
    """The key to send: the given one, else our own, else a word that stands for none."""
    return given or own_key(settings) or NO_KEY


class Gateway:
    """A client of one API. Every method raises CorralError in one sentence that says what to do."""

    def __init__(self, url: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        # trust_env off: a proxy for the internet must not stand between this machine and its own API.
        self._http = httpx.Client(headers={"x-api-key": key}, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def status(self, *, requests: bool = False) -> Status:
        """Workers, slots and queues, and the requests of the API process that answers."""
        try:
            return Status.model_validate(self.status_json(requests=requests))
        except ValidationError:
            raise self._foreign() from None

    def status_json(self, *, requests: bool = False) -> Any:
        """The same as the API wrote it."""
        return self._get("/v1/status?requests=1" if requests else "/v1/status")

    def why(self, name: str) -> tuple[Why, ...]:
        """What became of a request's cache, or those of an agent's late requests, newest first."""
        try:
            return tuple(Why.model_validate(why) for why in self.why_json(name)["requests"])
        except (ValidationError, KeyError, TypeError):
            raise self._foreign() from None

    def why_json(self, name: str) -> Any:
        """The same as the API wrote it."""
        return self._get(f"/v1/why/{quote(name, safe='')}", may_be_unknown=True)

    def drain(self, worker: str, timeout_s: float | None) -> None:
        """`worker` takes no work; its answers may go on for `timeout_s`, None: as long as the API says."""
        body = {} if timeout_s is None else {"timeout_s": timeout_s}
        self._ask("POST", f"/v1/workers/{quote(worker, safe='')}/drain", body=body, may_be_unknown=True)

    def undrain(self, worker: str) -> None:
        """`worker` takes work again."""
        self._ask("DELETE", f"/v1/workers/{quote(worker, safe='')}/drain", may_be_unknown=True)

    def models(self) -> tuple[str, ...]:
        """Ids of the models served, the default first."""
        try:
            return tuple(str(model["id"]) for model in self._get("/v1/models")["data"])
        except (KeyError, TypeError):
            raise self._foreign() from None

    def ready(self) -> bool:
        """Whether a request would be served now; False also while nothing listens."""
        try:
            return self._http.get(f"{self.url}/ready").is_success
        except httpx.HTTPError:
            return False

    def _get(self, path: str, *, may_be_unknown: bool = False) -> Any:
        return self._ask("GET", path, may_be_unknown=may_be_unknown)

    def _ask(self, method: str, path: str, *, body: object = None, may_be_unknown: bool = False) -> Any:
        try:
            response = self._asked(method, path, body)
            if response.status_code in (401, 403):
                raise NotAuthenticated(f"the API at {self.url} refuses the key; give --key, or set CORRAL_API_KEYS")
            if may_be_unknown and response.status_code == httpx.codes.NOT_FOUND and (words := _error(response)):
                raise NotFound(words)
            if not response.is_success:
                raise Refused(f"the API at {self.url} answers {path} with {_words(response)}")
            return response.json()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = "does not answer in time" if isinstance(error, httpx.TimeoutException) else "does not answer"
            raise Refused(f"the API at {self.url} {why}; start it with `corral up`, or give --url") from None
        except ValueError:
            raise self._foreign() from None

    def _asked(self, method: str, path: str, body: object) -> httpx.Response:
        """Asked again while nothing listens, or what listens says that it cannot answer now: whatever is asked here
        does the same when it is asked twice. Raises httpx.HTTPError."""
        for last in tries():
            try:
                response = self._http.request(method, self.url + path, json=body)
            except httpx.ConnectError:
                if last:
                    raise
            else:
                if last or response.status_code not in AGAIN:
                    return response
        raise AssertionError("the last try returns or raises")

    def _foreign(self) -> CorralError:
        return Refused(f"what answers at {self.url} is not Corral's API; give its address with --url")


def _words(response: httpx.Response) -> str:
    words = _error(response)
    return f"{response.status_code}: {words}" if words else str(response.status_code)


def _error(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""
