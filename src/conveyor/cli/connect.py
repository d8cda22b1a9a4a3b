"""Which service a command calls, and as whom: flags, then variables, then a TOML file."""

import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

import msgspec
import typer

from conveyor.cli.output import moment, plain
from conveyor.client import Conveyor, Job, Patience
from conveyor.client.errors import AuthenticationError, NotFoundError, UnreachableError
from conveyor.client.models import JobPage
from conveyor.client.transport import OnOutage, decoded
from conveyor.domain.ids import LAST, stands_for_id, whole_id
from conveyor.errors import ConveyorError, RefusedToStart
from conveyor.wire import WireIdentity

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8080/v1"
DEFAULT_FILE = "~/.config/conveyor/cli.toml"
KNOWN = {"url", "key"}
ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^/?#@:\s]+)(:\d{1,5})?(/[^?#\s]*)?", re.ASCII)
API_KEY = re.compile(r"[\x20-\x7e]{1,512}")
MOST_SEARCHED = 1_000  # jobs, the newest first
NO_SUCH_RUN = "No such run"  # as the service says it
COMPLETED = 50  # jobs that a shell completes
# Sent to a service on this machine that has a default key when no other is given.
LOCAL_KEY = "my-key"
LOCAL = re.compile(r"https?://(127\.[0-9.]+|localhost|\[::1\])(:\d+)?(/.*)?", re.ASCII)
OUTAGE = 60.0  # seconds that a long command waits for the service: a restart takes less
ONCE = Patience(attempts=1)
AGAIN = Patience(attempts=3, first=0.1, longest_asked=5.0)
PATIENT = Patience(attempts=10_000, within=OUTAGE, first=0.25, longest=1.0)


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Job ids for the shell to complete: of the newest jobs, or none if they cannot be listed.

    They begin with the letters as they were typed: the shell drops others.
    """
    given = context.params
    try:
        with connect(given.get("url"), given.get("key"), given.get("config")).client() as client:
            raw = client.request("GET", "jobs", query={"limit": COMPLETED})
        ids = [one.job_id for one in decoded(raw, JobPage).jobs]
    except (ConveyorError, OSError):
        ids = []
    begins = incomplete.upper()
    ids = [incomplete + id_[len(begins) :] for id_ in ids if id_.startswith(begins)]
    return [*([LAST] if LAST.startswith(incomplete) else []), *ids]


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, the beginning of it, or @last for your newest job.",
        autocompletion=complete_job,
    ),
]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.")]
Url = Annotated[
    str | None, typer.Option(help="Base URL of the service, or CONVEYOR_URL [local port 8080].")
]
Key = Annotated[str | None, typer.Option(help="API key; better in CONVEYOR_KEY or the file.")]
ConfigFile = Annotated[
    str | None, typer.Option(help="TOML file with `url` and `key` [~/.config/conveyor/cli.toml].")
]
OfRun = Annotated[
    str | None,
    typer.Option("--run", help="Of this run, by its id or the beginning of it [the latest]."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the API's JSON.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait until the run has ended.")]


class NoRun(ConveyorError):
    """The job has no run: its schedule has not started one yet, or all are deleted."""


class Endpoint(msgspec.Struct, frozen=True):
    """A base URL and a key."""

    url: str
    key: str | None

    def client(self) -> Conveyor:
        """A client that reports the first failure: the URL may be wrong."""
        return Conveyor(self.url, self.key, patience=ONCE)

    @contextmanager
    def repeating_client(self, idempotency_key: str) -> Iterator[Conveyor]:
        """A client for one call with this key, which it repeats if the response is lost."""
        try:
            with Conveyor(self.url, self.key, patience=AGAIN) as client:
                yield client
        except UnreachableError as error:
            raise UnreachableError(
                f"{error}\n  if the service got the call, it may have done it: to repeat it safely, add "
                f"--idempotency-key {idempotency_key}"
            ) from None

    def patient_client(self, on_outage: OnOutage | None = None) -> Conveyor:
        """A client that waits out a restart, for a service that has answered before."""
        return Conveyor(self.url, self.key, patience=PATIENT, on_outage=on_outage)


def with_options(
    build: Callable[..., T], **options: object
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Replace the first parameter of a command by options, from which `build` makes its value.

    Typer reads the options of a command from its signature, so that is rewritten: several commands
    share their options without repeating them.
    """

    def decorate(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        @wraps(command)
        def call(*args: Any, **given: Any) -> None:
            shared = {name: given.pop(name, None) for name in options}
            command(build(**shared), *args, **given)

        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = list(inspect.signature(command).parameters.values())[1:] + [
            inspect.Parameter(name, kind, default=None, annotation=annotation)
            for name, annotation in options.items()
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        return call

    return decorate


def connect(
    url: str | None,
    key: str | None,
    config: str | None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Endpoint:
    environ = os.environ if environ is None else environ
    kept = _from_file(config)
    base = url or environ.get("CONVEYOR_URL") or kept.get("url") or DEFAULT_URL
    secret = _checked_key(key or environ.get("CONVEYOR_KEY") or kept.get("key"))
    base = _checked_url(base)
    if not secret and LOCAL.fullmatch(base):
        secret = _local_key(base)
    return Endpoint(base, secret)


def _local_key(url: str) -> str | None:
    """The key for a development service whose gateway has no accounts.

    Another service may send the key to its gateway.
    """
    try:
        with Endpoint(url, LOCAL_KEY).client() as client:
            known = decoded(client.request("GET", "caller"), WireIdentity)
            has_default_key = known.has_default_key
    except AuthenticationError:
        has_default_key = False
    except ConveyorError:
        return None  # the command itself reports what is wrong, such as a URL without /v1
    if not has_default_key:
        raise RefusedToStart(
            "this service needs a key, which it may send to the gateway: give yours in CONVEYOR_KEY, "
            "in the file of --config, or with --key"
        )
    return LOCAL_KEY


def with_service(command: Callable[Concatenate[Endpoint, P], None]) -> Callable[..., None]:
    """Give a command the service of its options, and the full ids of the job and run it names."""

    @wraps(command)
    def call(service: Endpoint, /, *args: P.args, **given: P.kwargs) -> None:
        if "job" in given:
            given["job"] = full_job_id(service, str(given["job"]))
            if given.get("run"):
                given["run"] = full_run_id(service, str(given["job"]), str(given["run"]))
        try:
            command(service, *args, **given)
        except NotFoundError as error:
            if error.problem.detail != NO_SUCH_RUN or "job" not in given or given.get("run"):
                raise
            with service.client() as client:
                job = client.job(str(given["job"]))
            if job.latest_run is None:
                raise NoRun(why_no_run(job)) from None
            raise

    return with_options(connect, url=Url, key=Key, config=ConfigFile)(call)


def why_no_run(job: Job) -> str:
    """Why a job has no run, and what to do about it."""
    why, advice = "all are deleted", ""
    if job.schedule is not None:
        why = f"its schedule is {plain(job.schedule_state)}"
        advice = f"\n  `conveyor rerun {plain(job.job_id)}` runs it now"
    if job.next_scheduled_run:
        why = f"it runs next at {moment(job.next_scheduled_run)}"
    return f"job {plain(job.job_id)} has no run: {why}{advice}"


def full_job_id(service: Endpoint, text: str) -> str:
    """The id that `@last` or the beginning of an id stands for; any other text is left as it is."""
    if not stands_for_id(text):
        return whole_id(text) or text
    with service.client() as client:
        known = (job.job_id for job in islice(client.jobs(), MOST_SEARCHED))
        return full_id(text, known, "job")


def full_run_id(service: Endpoint, job: str, text: str) -> str:
    """The same of the runs of a job."""
    if not stands_for_id(text):
        return whole_id(text) or text
    with service.client() as client:
        known = (run.run_id for run in islice(client.runs(job), MOST_SEARCHED))
        return full_id(text, known, "run")


def full_id(text: str, newest_first: Iterator[str], kind: str) -> str:
    if text == LAST:
        newest = next(newest_first, None)
        if newest is None:
            raise RefusedToStart(f"{LAST}: there is no {kind} yet")
        return newest
    found = list(islice((one for one in newest_first if one.startswith(text.upper())), 2))
    if len(found) > 1:
        raise RefusedToStart(
            f"several {kind}s begin with {text}, such as {plain(found[0])} and {plain(found[1])}: "
            "give more of the id"
        )
    return found[0] if found else text


def _from_file(file: str | None) -> dict[str, str]:
    path = Path(file or DEFAULT_FILE).expanduser()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file is None:
            return {}
        raise RefusedToStart(f"{path}: no such file; see --config") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RefusedToStart(f"{path}: {_why(error)}") from None
    return _checked(path, found)


def _why(error: Exception) -> str:
    """What is wrong with the file, without quoting it: it may hold a key."""
    if isinstance(error, OSError):
        return error.strerror or "cannot be read"
    return 'must be TOML in UTF-8, with lines such as url = "https://…/v1"'


def _checked(path: Path, found: Mapping[str, object]) -> dict[str, str]:
    for name, value in found.items():
        if name not in KNOWN:
            raise RefusedToStart(f"{path}: keys must be {' or '.join(sorted(KNOWN))}, got {name!r}")
        if not isinstance(value, str):
            raise RefusedToStart(f"{path}: {name!r} must be a string in quotes")
    return {name: str(value) for name, value in found.items()}


def _checked_url(url: str) -> str:
    found = ADDRESS.fullmatch(url)
    if not found or int((found[2] or ":0")[1:]) > 65_535:
        # Not quoted: a URL may hold a password.
        raise RefusedToStart(f"the base URL must be like {DEFAULT_URL}; see --url and CONVEYOR_URL")
    return url.rstrip("/")


def _checked_key(key: str | None) -> str | None:
    # Checked here: the HTTP library would quote a key that it cannot send.
    if key and not API_KEY.fullmatch(key):
        raise RefusedToStart("the API key must be 1 to 512 printable ASCII characters")
    return key or None
