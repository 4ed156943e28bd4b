"""The names of every key that Corral keeps in Redis.

Owns: the key layout. Celery's own lists are named by `queue` and `level_list`; all others start with `corral:`.
Never: a value, a client, a time to live.

    corral:job:<job>            hash    the record: the truth about one request
    corral:line:<worker>        zset    queued jobs of a worker; score = level * 10^12 + arrival number
    corral:running:<worker>     hash    job -> incarnation that claimed it
    corral:stream:<job>         stream  deltas, ids <attempt>-<seq>
    corral:wake:<api>           stream  tells an API process that it follows one stream more; there while it lives
    corral:apis                 set     every API process seen lately
    corral:watched              string  there while somebody looks at the requests of all API processes
    corral:ledger:<api>         string  its requests, running and recent (JSON), told while somebody looks
    corral:control:<worker>     stream  cancellations for a worker
    corral:lease:<worker>       string  WorkerInfo, 5 s to live
    corral:drain:<worker>       string  it is to take no work; until when its answers may go on, broker's clock, ms
    corral:workers              zset    every worker seen lately; score = last beat, broker's clock
    corral:attained:<whom>      hash    service an agent or a key has had lately: ms, and at_ms since when it fades; of
                                        an agent also left_ms, its last tool call, and gap_ms, its usual time in one
    corral:lengths:<whom>       hash    output tokens of past answers: n, mean and m2 of their logarithms
    corral:settled:<job>:<attempt>  string  its service has been settled
    corral:back:<worker>        zset    <level>:<key name>:<agent> in a tool call; score = until when a slot is kept
    corral:urgent:<worker>      string  there while requests of the urgent levels come
    corral:holding:<worker>     string  there while a free slot of the worker is kept: it wants to hear of new jobs; how
                                        many tickets it holds meanwhile
    corral:promises:<part>:<model>  places: zset, who was refused and promised room; score = level * 10^13 + when it is
                                    due; lapses: zset, until when each is kept; counts: hash, <level>:<agent> -> how
                                    many promises it holds; arrivals: hash, <level>:n and <level>:at, who came lately
    corral:homes:<worker>       zset    conversations at home there; score = last use
    corral:home:<conversation>  hash    its worker; tokens and slot of its last answer there; used_ms, broker's clock
    corral:turn:<conversation>  string  its last turn (JSON): fingerprints and sizes of the prompt, no text
    corral:latest:<line>        string  the conversation that a main line, subagent or an agent's side calls had last
    corral:why:<request>        string  the account of its cache (JSON), for an hour
    corral:whys:<agent>         list    its last requests, newest first, for an hour
    corral:misses               hash    <cause>:count, <cause>:tokens and <cause>:ms since the broker began
    corral:counts               hash    events of scheduling since the broker began, by name
    corral:warm:<engine>        hash    base -> failures so far, or `done`: the warm-ups of one run of a worker's engine
    corral:count:<model>        list    requests to count, popped by the counting threads
    corral:overflow:<key name>:<session>  string  this session met the window in the last ten minutes: its requests may
                                          use the reserve
    corral:arrivals             counter arrival numbers
    corral:layout               string  how all who share the broker name and order Celery's lists
    corral:lock:<name>          string  a lock with an owner and a time limit
    llm.<worker>[\\x06\\x16<level>]  list  Celery's tickets
"""

SEPARATOR = "\x06\x16"
QUEUE_LEVELS = range(10)
ARRIVALS = "corral:arrivals"
WORKERS = "corral:workers"
APIS = "corral:apis"
LAYOUT = "corral:layout"
MISSES = "corral:misses"
COUNTS = "corral:counts"
WATCHED = "corral:watched"
LEVEL_WEIGHT = 10**12


def job(job_id: str) -> str:
    return f"corral:job:{job_id}"


def line(worker: str) -> str:
    return f"corral:line:{worker}"


def running(worker: str) -> str:
    return f"corral:running:{worker}"


def stream(job_id: str) -> str:
    return f"corral:stream:{job_id}"


def wake(api: str) -> str:
    return f"corral:wake:{api}"


def api_client(api: str) -> str:
    """The name of an API process's connections to the broker."""
    return f"corral-api-{api}"


def ledger(api: str) -> str:
    return f"corral:ledger:{api}"


def control(worker: str) -> str:
    return f"corral:control:{worker}"


def lease(worker: str) -> str:
    return f"corral:lease:{worker}"


def drain(worker: str) -> str:
    return f"corral:drain:{worker}"


def attained(whom: str) -> str:
    """`whom` is `key:<name>`, or `agent:<key name>:<agent>`; the name of a key holds no colon."""
    return f"corral:attained:{whom}"


def lengths(whom: str) -> str:
    """`whom` is `<kind>:<key name>:<agent>`, or `all`."""
    return f"corral:lengths:{whom}"


def settled(job_id: str, attempt: int) -> str:
    return f"corral:settled:{job_id}:{attempt}"


def back(worker: str) -> str:
    return f"corral:back:{worker}"


def urgent(worker: str) -> str:
    return f"corral:urgent:{worker}"


def holding(worker: str) -> str:
    return f"corral:holding:{worker}"


def promises(part: str, model: str) -> str:
    """`part` is `places`, `lapses`, `counts` or `arrivals`."""
    return f"corral:promises:{part}:{model}"


def homes(worker: str) -> str:
    return f"corral:homes:{worker}"


def home(conversation: str) -> str:
    return f"corral:home:{conversation}"


def turn(conversation: str) -> str:
    return f"corral:turn:{conversation}"


def latest(line_name: str) -> str:
    return f"corral:latest:{line_name}"


def why(request_id: str) -> str:
    return f"corral:why:{request_id}"


def whys(agent: str) -> str:
    return f"corral:whys:{agent}"


def warm(engine: str) -> str:
    return f"corral:warm:{engine}"


def count(model: str) -> str:
    return f"corral:count:{model}"


def overflow(key_name: str, session: str) -> str:
    """A session's name is its client's own choice; the name of a key holds no colon."""
    return f"corral:overflow:{key_name}:{session}"


def lock(name: str) -> str:
    return f"corral:lock:{name}"


def queue(worker: str) -> str:
    """The Celery queue of a worker; a dot, because ':' inside a name breaks level 0 with some separators."""
    return f"llm.{worker}"


def bindings(worker: str) -> list[str]:
    """Where kombu notes that the queue exists; it never removes them. A consumer that comes back writes them anew."""
    return [f"_kombu.{kind}.{queue(worker)}" for kind in ("binding", "binding_permanent")]


def level_list(worker: str, level: int) -> str:
    """The Redis list in which kombu keeps one level of a worker's queue."""
    return queue(worker) if level == 0 else f"{queue(worker)}{SEPARATOR}{level}"


def level_lists(worker: str) -> list[str]:
    """The lists of all levels of a worker's queue."""
    return [level_list(worker, level) for level in QUEUE_LEVELS]
