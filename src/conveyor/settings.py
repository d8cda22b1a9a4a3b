"""Settings: read once, at the start. `settings_loader` merges their sources and checks them."""

import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from conveyor.domain.ids import MOST_TASKS
from conveyor.domain.params import HONOURED
from conveyor.domain.submission import LEAST_TASK_BYTES, Limits

# Up to the last @, because a password may contain slashes and more of them.
IN_ADDRESS = re.compile(r"(?<=:)(//)?\S+(?=@)|(?<=\?)\S+")
DIRECT = "direct:"  # in place of a gateway's URL
MOST_TASK_BYTES = 1024 * 1024
SECRET = {"api_keys", "encryption_key", "gateway_key"}
LIMITS = Limits()  # the defaults
PERMIT_LEASE = timedelta(seconds=30)
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
LOOPS = ("dispatch", "control", "sender", "scheduler", "sweeper")


class Auth(StrEnum):
    DEV = "dev"
    FORWARD = "forward"
    KEYS = "keys"


def _about(text: str, *, ge: int | None = None, le: int | None = None) -> msgspec.Meta:
    """Describe a setting, for the reference, and bound it."""
    return msgspec.Meta(description=text, ge=ge, le=le)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each field is a flag (where a command offers it), a variable and a key of the file."""

    host: Annotated[str, _about("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, _about("Port to listen on; 0 is any free one.", ge=0, le=65_535)] = 8080
    metrics_port: Annotated[
        int,
        _about(
            "Port on which a worker serves `/healthz`, `/readyz` and `/metrics`; 0 is any free one.",
            ge=0,
            le=65_535,
        ),
    ] = 8090
    loops: Annotated[
        tuple[str, ...],
        _about(
            "Loops that a worker runs, separated by commas or spaces: `dispatch` scrapes, `control` "
            "ingests, exports and purges, `sender` delivers webhooks and callbacks, `scheduler` "
            "fires schedules, `sweeper` repairs. `serve` runs all."
        ),
    ] = LOOPS
    data: Annotated[str, _about("Folder of the embedded engines.")] = "data"
    gateway: Annotated[
        str,
        _about(
            "The scraping gateway: an http or https URL of ZenRows' API, or `direct:` to fetch "
            "pages from the sites themselves."
        ),
    ] = "https://api.zenrows.com/v1/"
    public_url: Annotated[
        str | None, _about("URL that links to results begin with, for a service behind a proxy.")
    ] = None
    auth: Annotated[
        str | None,
        _about(
            "How callers are authenticated: `dev` accepts any key, on loopback only; `forward` "
            "accepts the callers' own gateway keys and passes them on; `keys` accepts those that "
            "`conveyor keys create` makes. The default is `forward` with `api_keys`, else `dev`."
        ),
    ] = None
    api_keys: Annotated[
        tuple[str, ...],
        _about("Of `forward`: the only keys that are accepted, separated by commas or spaces."),
    ] = ()
    gateway_key: Annotated[
        str | None,
        _about("Of `keys`: the gateway key for API keys that were created without one."),
    ] = None
    encryption: Annotated[
        str,
        _about(
            "Where the key comes from that stored credentials are encrypted with: `file:`, in the "
            "data folder; `file:/path`, a root key in a file that processes share; `kms:` and the "
            "id, alias or ARN of a key of AWS KMS, which wraps it."
        ),
    ] = "file:"
    encryption_key: Annotated[
        tuple[str, ...],
        _about(
            "The root key that processes share: 32 bytes in base64. While it is rotated, the new "
            "key and then the earlier one, separated by commas or spaces."
        ),
    ] = ()

    engines: Annotated[
        str,
        _about(
            "Defaults for the engines of all kinds of state: `embedded`, one process with SQLite and "
            "files; `aws`, DynamoDB and SQS; `postgres`, the database that `metadata` names. With the "
            "last two, `bodies` and `blobs` must be given, and with `aws` `coordination`. A setting "
            "of a kind wins."
        ),
    ] = "embedded"
    metadata: Annotated[
        str,
        _about(
            "Engine of jobs, runs and other small records: `sqlite:` in the data folder, or "
            "`postgresql://user:password@host/database` or `dynamodb://table`, which processes can "
            "share."
        ),
    ] = "sqlite:"
    tasks: Annotated[
        str,
        _about(
            "Engine of tasks and their claims: `sqlite:` in the data folder, `postgresql://…`, or "
            "`dynamodb://table` with `queues`."
        ),
    ] = "sqlite:"
    control_queue: Annotated[
        str,
        _about(
            "Engine of the control queue: `sqlite:` in the data folder; `postgresql://…` or "
            "`sqs://prefix`, which processes can share; or `memory:` for one process whose metadata "
            "and tasks are not on `sqlite:`."
        ),
    ] = "sqlite:"
    queues: Annotated[
        str,
        _about(
            "Queue of tasks' messages, for engines of tasks whose rows are no queue: `memory:`, in "
            "one process; `sqs://prefix`, which processes can share. Empty if the rows are the "
            "queue, as with `sqlite:`."
        ),
    ] = ""
    bodies: Annotated[
        str,
        _about(
            "Engine of results: `segments:` or `files:` in the data folder; `files:/folder` or "
            "`s3://bucket/prefix`, which processes can share. With `?layout=segments`, results "
            "that are stored together are one file or object."
        ),
    ] = "segments:"
    blobs: Annotated[
        str,
        _about(
            "Engine of lists and exports: `files:` in the data folder; `files:/folder` or "
            "`s3://bucket/prefix`, which processes can share."
        ),
    ] = "files:"
    s3_origins: Annotated[
        tuple[str, ...],
        _about(
            "Origins of pages that may use presigned URLs of S3 in a browser, such as "
            "`https://app.example`, separated by commas or spaces; `*` allows all. `conveyor "
            "migrate` sets them."
        ),
    ] = ("*",)
    coordination: Annotated[
        str,
        _about(
            "Engine of permits, rate limits, cached counts and notifications: `memory:`, in one "
            "process; `redis://host:6379/0`, a Redis or Valkey server (`rediss:` with TLS; "
            "`?cluster=true` for a cluster, `?prefix=name` for the prefix of its keys); "
            "`postgresql://…`; or `dynamodb://table`."
        ),
    ] = "memory:"
    durability: Annotated[
        str,
        _about(
            "What a call that was answered survives: power cuts (power), or process crashes (process)."
        ),
    ] = "power"

    step_functions: Annotated[
        str,
        _about(
            "Step Functions, which receive the end of runs that have a task token: `aws:`, with "
            "region, endpoint and credentials from the AWS_* variables, or empty for none."
        ),
    ] = ""

    task_shard_count: Annotated[
        int,
        _about(
            "Partitions over which `dynamodb:` spreads the tasks of a new job that is open or has at "
            "least 1,000; 0 and 1 keep them together. Existing jobs keep theirs.",
            ge=0,
            le=256,
        ),
    ] = 8
    concurrency: Annotated[int, _about("Tasks in flight in one process.", ge=1)] = 500
    lease: Annotated[
        timedelta,
        _about(
            "How long a claim is valid without renewal; 90s with `engines = aws`. A permit is valid "
            "as long, but at most for 30s or three times `renewal`."
        ),
    ] = timedelta(seconds=30)
    renewal: Annotated[
        timedelta,
        _about(
            "Time between renewals of both; must be less than half of the lease. With `queues`, claims "
            "are renewed from half of their lease on."
        ),
    ] = timedelta(seconds=10)
    grace: Annotated[
        timedelta, _about("Time that a stop of the program takes at most; tasks finish in it.")
    ] = timedelta(seconds=20)
    sweep_every: Annotated[timedelta, _about("Time between two sweeps.")] = timedelta(seconds=60)
    body_life: Annotated[
        timedelta,
        _about(
            "How long bodies stay on disk after their run has ended; never less than its job's "
            "`result_ttl_days`."
        ),
    ] = timedelta(days=30)
    scheduled_run_life: Annotated[
        timedelta,
        _about(
            "How long runs of scheduled jobs are kept after their end; never less than their "
            "job's `result_ttl_days`. The latest run is always kept; 0 keeps all runs."
        ),
    ] = timedelta(days=30)
    retry_first_delay: Annotated[
        timedelta,
        _about("Delay before the first retry of a task; each further one is 8 times as long."),
    ] = timedelta(seconds=1)
    retry_longest_delay: Annotated[timedelta, _about("The longest delay between retries.")] = (
        timedelta(minutes=5)
    )
    gateway_deadline: Annotated[
        timedelta, _about("Deadline of one call to the gateway; the gateway must time out sooner.")
    ] = timedelta(seconds=190)
    http_client: Annotated[
        str,
        _about(
            "HTTP client for pages: `conveyor` is our own and takes less CPU; `aiohttp` is the "
            "library, held to the same limits."
        ),
    ] = "conveyor"
    largest_body: Annotated[int, _about("Bytes of a page; a larger one fails its task.", ge=1)] = (
        50 * 1024 * 1024
    )
    direct_user_agent: Annotated[
        str,
        _about(
            "User agent of `direct:`; its first word is the name that is looked up in robots.txt."
        ),
    ] = "Conveyor"
    direct_robots: Annotated[
        bool, _about("Whether `direct:` fetches only what a site's robots.txt allows.")
    ] = True
    direct_delay: Annotated[
        timedelta, _about("Least time between two calls of `direct:` to one host.")
    ] = timedelta(milliseconds=100)
    direct_ports: Annotated[
        tuple[int, ...],
        _about("Ports that `direct:` connects to, separated by commas or spaces."),
    ] = (80, 443)
    direct_allow_private: Annotated[
        tuple[str, ...],
        _about(
            "Private networks that `direct:` may connect to, such as `10.0.0.0/8`, separated by "
            "commas or spaces."
        ),
    ] = ()
    webhook_timeout: Annotated[
        timedelta, _about("Deadline of one delivery to a webhook, from the lookup to the response.")
    ] = timedelta(seconds=15)
    webhook_ports: Annotated[
        tuple[int, ...],
        _about("Ports of webhooks that are allowed, separated by commas or spaces."),
    ] = (443,)
    webhook_allow_http: Annotated[
        bool, _about("Whether webhooks may use http, without encryption.")
    ] = False
    webhook_allow_private: Annotated[
        tuple[str, ...],
        _about(
            "Private networks that webhooks may be in, such as `10.0.0.0/8`, separated by commas "
            "or spaces."
        ),
    ] = ()
    result_url_life: Annotated[
        timedelta, _about("How long a signed link to a result is valid.")
    ] = timedelta(hours=24)
    export_bytes: Annotated[
        int, _about("Bytes of results in one export; a larger one fails.", ge=1)
    ] = 100 * 1024**3

    inline_tasks: Annotated[int, _about("Tasks in one submission.", ge=1)] = LIMITS.inline_tasks
    inline_bytes: Annotated[int, _about("Bytes of one request.", ge=1)] = LIMITS.inline_bytes
    task_bytes: Annotated[
        int,
        _about(
            "Bytes of one task: its URL, external id, metadata, parameters and body together; "
            f"at least {LEAST_TASK_BYTES}.",
            le=MOST_TASK_BYTES,
        ),
    ] = LIMITS.task_bytes
    bodies_in_flight: Annotated[
        int, _about("Bytes of request bodies in memory at once; further requests wait.", ge=1)
    ] = 256 * 1024 * 1024
    connections: Annotated[
        int, _about("Connections open at once; further ones get a 503.", ge=1)
    ] = 10_000
    sync_tasks: Annotated[
        int,
        _about(
            "Number of tasks from which a submission or rerun is answered 202 and ingested later.",
            ge=1,
        ),
    ] = LIMITS.sync_tasks
    list_bytes: Annotated[int, _about("Bytes of one file input, as sent.", ge=1)] = (
        LIMITS.list_bytes
    )
    list_rows: Annotated[int, _about("Rows of one file input.", ge=1, le=MOST_TASKS)] = (
        LIMITS.list_rows
    )
    open_job_tasks: Annotated[int, _about("Tasks of an open job, over all additions.", ge=1)] = (
        LIMITS.open_job_tasks
    )

    requests_per_second: Annotated[
        float, _about("Requests of one caller a second, on average; 0 is any number.", ge=0)
    ] = 0
    requests_burst: Annotated[
        int, _about("Requests of one caller at once; 0 is as many as in a second.", ge=0)
    ] = 0
    active_jobs: Annotated[
        int, _about("Jobs of one caller with a live run; 0 is any number.", ge=0)
    ] = 0
    scheduled_jobs: Annotated[
        int, _about("Scheduled jobs of one caller; 0 is any number.", ge=0)
    ] = 0
    open_tasks: Annotated[int, _about("Unfinished tasks of one caller; 0 is any number.", ge=0)] = 0
    unused_file_inputs: Annotated[
        int, _about("File inputs of one caller that no job uses yet; 0 is any number.", ge=0)
    ] = 1_000
    active_exports: Annotated[
        int, _about("Exports of one caller that are not finished; 0 is any number.", ge=0)
    ] = 10

    event_listeners: Annotated[
        int, _about("Event streams of one caller open at once; 0 is any number.", ge=0)
    ] = 500
    caller_connections: Annotated[
        int,
        _about(
            "Connections of one caller open at once, counted from its first request on each; 0 is "
            "any number.",
            ge=0,
        ),
    ] = 1_000

    slow_call: Annotated[
        timedelta, _about("Time from which a call to an engine is counted as slow and logged.")
    ] = timedelta(seconds=1)
    slow_loop: Annotated[
        timedelta, _about("Time from which a delay of the event loop is logged.")
    ] = timedelta(milliseconds=500)

    cloudwatch: Annotated[
        str,
        _about(
            "Namespace in CloudWatch of the backlog of tasks for each worker, which one worker writes to "
            "standard output every 30 s in embedded metric format; empty for none."
        ),
    ] = ""

    log_level: Annotated[
        str, _about("Least severity that is logged: debug, info, warning or error.")
    ] = "info"
    log_format: Annotated[
        str, _about("Format of the log: json, console, or auto (console on a terminal, else json).")
    ] = "auto"

    @property
    def mode(self) -> Auth:
        """How callers are authenticated."""
        return Auth(self.auth or (Auth.FORWARD if self.api_keys else Auth.DEV))

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK

    @property
    def gateway_scheme(self) -> str:
        """The part of `gateway` before its colon, which selects the adapter."""
        return self.gateway.partition(":")[0]

    @property
    def limits(self) -> Limits:
        """The limits of callers' input: those that are settings, and what the gateway can do."""
        names = set(Limits.__struct_fields__) & set(Settings.__struct_fields__)
        honoured = HONOURED[self.gateway_scheme]
        return Limits(honoured=honoured, **{name: getattr(self, name) for name in names})

    @property
    def permit_lease(self) -> timedelta:
        """How long a permit is valid without renewal.

        All permits of a process are renewed together, at little cost. So a worker that died blocks
        others for a short time, also where leases of tasks are long because each renewal is a
        write of its own.
        """
        return min(self.lease, max(PERMIT_LEASE, 3 * self.renewal))

    @property
    def folder(self) -> Path:
        return Path(self.data)


def shown(settings: Settings) -> dict[str, str]:
    """Return every setting as text, with secrets masked."""
    return {name: masked(name, getattr(settings, name)) for name in Settings.__struct_fields__}


def masked(name: str, value: object) -> str:
    if name in SECRET and isinstance(value, tuple):
        return f"*** ({len(value)})" if value else "-"
    if name in SECRET:
        return "***" if value else "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, timedelta):
        return _brief(value.total_seconds())
    text = "-" if value is None or value == "" else str(value)
    return without_secrets(text)


def _brief(seconds: float) -> str:
    """A duration in the largest unit that divides it, as settings take it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and not seconds % length:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def without_secrets(text: str) -> str:
    """Mask what may be secret in an address: a password, or a key in its query."""
    return IN_ADDRESS.sub(lambda found: f"{found[1] or ''}***", text) if ":" in text else text
