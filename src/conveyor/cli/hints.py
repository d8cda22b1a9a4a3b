"""What to do next, for every refusal: in terms of the command line where possible."""

from collections.abc import Iterator

from conveyor.cli.output import plain
from conveyor.client import ApiError, UnreachableError
from conveyor.errors import ConveyorError

BASE_URL = "check --url and CONVEYOR_URL: the base URL must end in /v1"
NO_SUCH_PATH = "No such path"  # as the service says it
BY_CODE = {
    "invalid_argument": "correct what is named and repeat the command; see --help",
    "conflict": "`conveyor status JOB` shows the state of the run",
    "run_not_stoppable": "`conveyor rerun JOB` runs the job again",
    "job_not_open": "submit them as a new job; `conveyor submit --open` makes one that can grow",
    "run_not_terminal": "`conveyor status JOB --follow` waits for its end, `conveyor stop JOB` "
    "ends it; while rows are being written, try again in a moment",
    "run_has_descendants": "delete the newer run first, or the whole job; "
    "`conveyor runs JOB` lists them",
    "no_prior_run": "all its runs are deleted: submit the list as a new job",
    "no_matching_tasks": "no task meets all the given options; `conveyor failures JOB` shows what "
    "failed, and without options all tasks are repeated",
    "partial_rerun_window_expired": "leave out the options that select tasks: then all tasks are "
    "scraped again",
    "idempotency_key_conflict": "use another --idempotency-key for another list; "
    "for the same one, try again in a moment",
    "candidate_pending": "`conveyor signing-keys finish` finishes the rotation, `conveyor "
    "signing-keys cancel` ends it",
    "no_candidate": "`conveyor signing-keys rotate` begins a rotation",
    "method_not_allowed": BASE_URL,
    "subscription_inactive": "renew the subscription of the key, or use a key that the gateway "
    "accepts, then repeat the command",
    "storage_full": "tell the operator; repeat the command when there is disk space",
}
BY_STATUS = {
    401: "give your API key with --key, CONVEYOR_KEY, or `key` in ~/.config/conveyor/cli.toml",
    403: "use a key that may write, and that the gateway accepts; `conveyor keys create` makes one",
    404: "`conveyor jobs` lists the jobs of this key; check --url, the base URL must end in /v1",
    413: "compress the list with gzip or zstd, or split it into smaller ones",
    429: "wait a while, or submit less",
    503: "try again in a few seconds",
}
PARAMETERS = "`conveyor params` lists the parameters with their values"
# By what the service says is missing.
BY_DETAIL = {
    "No such task": "`conveyor results JOB` lists the tasks of a job, with their whole ids",
    NO_SUCH_PATH: "check the ids, and --url and CONVEYOR_URL: the base URL must end in /v1",
    "No such run": "`conveyor runs JOB` lists the runs of a job, with their whole ids",
    "No such event": "`conveyor webhook deliveries JOB` lists the events of a job",
    "The job has no webhook": "`conveyor webhook set JOB URL` sets one",
    "The job has no webhook in use: set one first": "`conveyor webhook set JOB URL` sets one",
    "This job has no schedule: submit one with `type: scheduled`": "`conveyor submit` makes a "
    "scheduled job with --cron, --every or --at",
}
NOT_RUNNING = (
    "is it running? `conveyor dev --mock-gateway` starts one to try, `conveyor serve` a real one; "
    "or name another with --url"
)


class Advised(ConveyorError):
    """A refusal, with advice of the command itself."""

    def __init__(self, error: ApiError, advice: str | None) -> None:
        super().__init__(explained(error, advice))


def explained(error: ConveyorError, advice: str | None = None) -> str:
    """An error as it is printed: what happened, and below it what to do."""
    if isinstance(error, ApiError):
        said = plain(error.problem.detail or error.problem.title or "Refused")
        which = f"{error.status} {plain(error.code)}".rstrip()
        if error.request_id and error.status >= 500:  # the operator finds the cause by it
            which += f", request id {plain(error.request_id)}"
        if "`zenrows_params." in said:
            advice = advice or PARAMETERS
        advice = advice or BY_DETAIL.get(said) or hint(error.status, error.code)
        return f"{said} ({which})" + (f"\n  {advice}" if advice else "")
    if isinstance(error, UnreachableError):
        is_absent = str(error).startswith("cannot reach")
        return str(error) + (f"\n  {NOT_RUNNING}" if is_absent else "")
    return str(error)


def hint(status: int, code: str) -> str | None:
    """The command line's advice, else the error's; a code of another service may have none."""
    return BY_CODE.get(code) or BY_STATUS.get(status) or _remedy(status, code)


def _remedy(status: int, code: str) -> str | None:
    unknown = ConveyorError.remedy if status >= 500 else None
    found = {kind.code: kind.remedy for kind in _kinds(ConveyorError)}.get(code, unknown)
    return found and (found[0].lower() + found[1:]).rstrip(".")


def _kinds(root: type[ConveyorError]) -> Iterator[type[ConveyorError]]:
    """The error and its subclasses that the API returns: not those that other modules add."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == root.__module__:
            yield from _kinds(kind)
