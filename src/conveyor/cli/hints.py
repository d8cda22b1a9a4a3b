"""What to do next, for every refusal: in the words of the command line where it has some."""

from collections.abc import Iterator

from conveyor.errors import ConveyorError

BY_CODE = {
    "invalid_argument": "mend what is named and run the command again; --help tells what it takes",
    "job_not_open": "submit them as a new job; `conveyor submit --open` makes one that can grow",
    "run_not_terminal": "`conveyor status JOB --follow` waits for its end, `conveyor stop JOB` "
    "ends it; while rows are being written, try again in a moment",
    "run_has_descendants": "delete the newer run first, or the whole job; "
    "`conveyor runs JOB` lists them",
    "no_prior_run": "its runs are deleted: submit the list as a new job",
    "no_matching_tasks": "there is nothing to do again; leave --status out to repeat all tasks",
    "partial_rerun_window_expired": "leave --status out: all tasks are scraped anew then",
    "idempotency_key_conflict": "for another list take another --idempotency-key; "
    "for the same one, try again in a moment",
    "method_not_allowed": "the base URL given by --url ends in /v1; is it this API's?",
    "subscription_inactive": "renew the subscription of the key, or use a key that the gateway "
    "accepts, then run the command again",
    "storage_full": "tell the operator; run the command again when there is room",
}
BY_STATUS = {
    401: "give your API key with --key, CONVEYOR_KEY, or `key` in ~/.config/conveyor/cli.toml",
    403: "use a key that may write, and that pages can be asked for with; `conveyor keys create` "
    "makes one",
    404: "`conveyor jobs` lists what this key can see; the base URL given by --url ends in /v1",
    413: "pack the list by gzip or zstd, or split it into smaller ones",
    429: "wait a while, or hand in less",
    503: "try again in a few seconds",
}


def hint(status: int, code: str) -> str | None:
    """The command line's own words, else the error's; a code of another service may have none."""
    return BY_CODE.get(code) or BY_STATUS.get(status) or _remedy(status, code)


def _remedy(status: int, code: str) -> str | None:
    unknown = ConveyorError.remedy if status >= 500 else None
    found = {kind.code: kind.remedy for kind in _kinds(ConveyorError)}.get(code, unknown)
    return found and (found[0].lower() + found[1:]).rstrip(".")


def _kinds(root: type[ConveyorError]) -> Iterator[type[ConveyorError]]:
    """The error and those below it that the wire knows: not the kinds a door adds for itself."""
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == root.__module__:
            yield from _kinds(kind)
