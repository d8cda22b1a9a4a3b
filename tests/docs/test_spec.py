"""SPEC.md says what the code does: its tables and diagrams are compared, both ways."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from types import ModuleType
from typing import TypeVar, get_args

import msgspec
import pytest

from conveyor import errors, settings
from conveyor.adapters.http import direct_wire, webhooks, zenrows_errors
from conveyor.adapters.http.page_wire import CONVEYOR_CODES
from conveyor.app.control_handlers import EXPORTS, INGESTS, PURGES
from conveyor.app.engines import CODES
from conveyor.domain import (
    counts,
    cursor,
    delivery_queue,
    failure,
    failure_groups,
    file_input,
    ids,
    job,
    json_bodies,
    media,
    outbox,
    page_facts,
    params,
    public_address,
    run,
    step_functions,
    submission,
    task,
    task_bodies,
    webhook,
)
from conveyor.domain.batch import INGEST
from conveyor.domain.control_queue import SlotLimits
from conveyor.domain.export import EXPORT
from conveyor.domain.failure import AccountReason, FailureReason, Handling
from conveyor.domain.job import PURGE
from conveyor.domain.json_bodies import finish
from conveyor.domain.outbox import Channel
from conveyor.domain.retry import RetryPolicy
from conveyor.domain.task import (
    AccountBlocked,
    AttemptFailed,
    Interrupted,
    Outcome,
    Scraped,
    Throttled,
    decide,
)
from conveyor.domain.task_list import decompress, reader, rows, spec
from conveyor.domain.webhook import SCHEMA
from conveyor.steps.dispatch import write_window
from conveyor.steps.dispatch.config import SETTLE_LOOPS, DispatchConfig
from conveyor.steps.shared.work_limits import TURN
from conveyor.testing.factories import a_stored_body, a_task
from tests.docs.chapters import (
    DIRECT,
    FILE_INPUTS,
    NONE,
    NORMATIVE,
    WEBHOOKS,
    ZENROWS,
    Row,
    column,
    section,
    tables,
    text,
)

TEXT = text()


def number(text: str) -> int:
    return int(text.replace(",", ""))


def names(kind: type[msgspec.Struct]) -> set[str]:
    return set(kind.__struct_encode_fields__)


# 2 State machines.

S = TypeVar("S", bound=StrEnum)
Moves = dict[str, set[str]]


def as_text(moves: Mapping[S, frozenset[S]]) -> Moves:
    return {str(start): {str(end) for end in ends} for start, ends in moves.items()}


MACHINES = {
    "2.1 Job": as_text(job.MOVES),
    "2.2 Run": as_text(run.MOVES),
    "2.3 Task": as_text(task.MOVES),
}


@pytest.mark.parametrize(("heading", "moves"), MACHINES.items(), ids=MACHINES)
def test_the_tables_of_moves_are_the_moves(heading: str, moves: Moves) -> None:
    [table] = tables(heading)
    listed = {
        start: set() if ends == NONE else set(ends.split(", "))
        for start, ends in column(table, "from", "to").items()
    }
    assert listed == moves


@pytest.mark.parametrize(("heading", "moves"), MACHINES.items(), ids=MACHINES)
def test_the_diagrams_draw_the_moves(heading: str, moves: Moves) -> None:
    drawn = re.findall(r"^ +(\w+) --> (\w+)$", section(heading), re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(start, end) for start, ends in moves.items() for end in ends}


# 3 and 4.


def test_the_figures_of_a_retry_are_those_of_the_policy() -> None:
    [table] = tables("3.4 Delay before a retry")
    policy = msgspec.structs.asdict(RetryPolicy())
    written = {
        name: f"{value.total_seconds():.0f} s" if isinstance(value, timedelta) else str(value)
        for name, value in policy.items()
    }
    assert column(table, "setting", "value") == written


def test_what_is_an_attempt_is_what_the_decisions_charge() -> None:
    [table] = tables("3.3 What is an attempt")
    outcomes: dict[str, Outcome] = {
        "page scraped": Scraped(a_stored_body()),
        "attempt failed, retryable, attempts < retries": AttemptFailed(
            "{}", FailureReason.TIMEOUT, True
        ),
        "attempt failed otherwise": AttemptFailed("{}", FailureReason.TIMEOUT, False),
        "throttled": Throttled(timedelta(seconds=1)),
        "interrupted": Interrupted(),
        "account cannot scrape": AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, ""),
    }
    assert {type(outcome) for outcome in outcomes.values()} == set(get_args(Outcome))
    decisions = {
        words: decide(a_task(), outcome, RetryPolicy()) for words, outcome in outcomes.items()
    }
    written = {
        row["outcome"].partition(" (")[0]: (row["charged"], row["next status"].partition(",")[0])
        for row in table
    }
    # A lost worker settles nothing: `claim` counts it, and `decide` never sees it.
    assert written.pop("worker lost") == ("no", "as in 3.2")
    assert written == {
        words: ("yes" if decision.charged else "no", decision.status)
        for words, decision in decisions.items()
    }


def test_the_number_of_lost_workers_is_the_codes() -> None:
    assert f"`lost` reach {task.MOST_LOST} fails" in section("3.2 Lost workers")
    assert f"retries + 1 + {task.MOST_LOST} claims" in section("3.3 What is an attempt")


def test_the_columns_of_counts_are_listed_in_order() -> None:
    table, groups = tables("4 Counts and money")
    assert tuple(row["column"] for row in table) == counts.COUNT_COLUMNS
    assert {row["part of a group"] for row in groups} == names(failure_groups.FailureGroup)


# 6 Submissions.


def test_the_fields_of_bodies_and_tasks_are_those_that_decode() -> None:
    submit, add, one = tables("6.1 Fields")
    for table, kind in (
        (submit, submission.Submission),
        (add, submission.Addition),
        (one, submission.TaskInput),
    ):
        assert column(table, "field", "rule").keys() == names(kind)


def test_the_limits_are_the_defaults() -> None:
    settable, _ = tables("6.2 Limits")
    listed = {name: number(value) for name, value in column(settable, "limit", "default").items()}
    limits = msgspec.structs.asdict(submission.Limits())
    del limits["honoured"]  # which parameters, not how much: 11.9
    assert listed == limits
    assert listed.keys() <= names(settings.Settings)


def test_the_constants_are_the_codes() -> None:
    _, fixed = tables("6.2 Limits")
    listed = {name: number(value) for name, value in column(fixed, "constant", "value").items()}
    modules = [
        submission,
        json_bodies,
        task_bodies,
        params,
        ids,
        run,
        task,
        page_facts,
        failure_groups,
        counts,
        cursor,
        file_input,
        reader,
        step_functions,
    ]
    found = {(name, value) for module in modules for name, value in _constants(module)}
    assert len({name for name, _ in found}) == len(found), "one name, two values"
    assert listed == dict(found)


# How the decoder works through a request, not what a request may hold.
OF_THE_DECODER = {"SLICE_BYTES", "DEPTH_BYTES"}


def _constants(module: ModuleType) -> Iterator[tuple[str, int]]:
    for name, value in vars(module).items():
        if name.isupper() and type(value) is int and name not in OF_THE_DECODER:
            yield name, value


def test_the_reasons_are_the_codes() -> None:
    [table] = tables("6.3 Reasons")
    assert column(table, "reason", "when").keys() == set(submission.Reason)


def test_the_parameters_have_the_kinds_and_values_of_the_code() -> None:
    [table] = tables("6.4 Parameters")
    listed = {row["parameter"]: (row["kind"], row["values"]) for row in table}
    assert len(listed) == len(table)
    assert listed == {name: _kind(name) for name in params.KNOWN}


def _kind(name: str) -> tuple[str, str]:
    if name in params.BOOLEANS:
        return "boolean", "true, false"
    if name in params.NUMBERS:
        return "number", f"0 to {params.NUMBERS[name]:,}"
    if name in params.CHOICES:
        return "choice", ", ".join(sorted(params.CHOICES[name]))
    return (
        ("headers", "object of strings, or its JSON text")
        if name == params.HEADERS
        else ("text", "any")
    )


def extension_rows() -> list[Row]:
    [table] = tables("6.6 Extensions")
    return table


def test_an_extensions_header_is_its_field_in_words() -> None:
    for field, header in column(extension_rows(), "field", "header").items():
        assert header == "Conveyor-" + "-".join(field.split("_")).title()
        assert field in names(submission.Submission)


NUMERIC = [row for row in extension_rows() if row["field"] != "async"]


@pytest.mark.parametrize("row", NUMERIC, ids=[row["field"] for row in NUMERIC])
def test_an_extension_has_its_default_and_its_bounds(row: Row) -> None:
    field, limits = row["field"], submission.Limits()
    lowest, highest = int(row["lowest"]), getattr(submission, row["highest"])
    defaults = dict(
        zip(job.Job.__struct_fields__[::-1], job.Job.__struct_defaults__[::-1], strict=False)
    )
    assert defaults[field] == (None if row["default"] == "-" else int(row["default"]))
    for value in (lowest, highest):
        finish(task_bodies.read_submission(b'{"status":"open"}', {field: value}, limits))
    for value in (lowest - 1, highest + 1):
        with pytest.raises(errors.InvalidArgument):
            finish(task_bodies.read_submission(b'{"status":"open"}', {field: value}, limits))


def test_every_extension_of_the_code_is_listed() -> None:
    assert {row["field"] for row in extension_rows()} == {*submission.BOUNDS, "async"}


def test_the_formats_reasons_and_fields_of_lists_are_the_codes() -> None:
    kinds, reasons = tables("Formats", FILE_INPUTS)
    [fields] = tables("CSV", FILE_INPUTS)
    assert column(kinds, "format", "a row is").keys() == set(spec.ListFormat)
    assert column(reasons, "reason", "when").keys() == set(rows.RowReason)
    assert column(fields, "field", "rule").keys() == names(spec.CsvForm)
    assert all(f"`{name}`" in section("Chunks", FILE_INPUTS) for name in names(rows.Position))


def test_the_limits_of_lists_are_the_codes() -> None:
    settable, fixed = tables("Limits of the reader", FILE_INPUTS)
    listed = {name: number(value) for name, value in column(settable, "limit", "default").items()}
    assert listed == msgspec.structs.asdict(rows.ReaderLimits())
    for name, value in column(fixed, "constant", "value").items():
        module = {"rows": rows, "decompress": decompress}[name.partition(".")[0]]
        assert getattr(module, name.partition(".")[2]) == number(value)


# 7 Failures.


def rules(table: list[Row], key: str) -> dict[str, tuple[str, str, str]]:
    found = {row[key]: (row["handling"], row["reason"], row["account"]) for row in table}
    assert len(found) == len(table)
    return found


def as_written(rule: failure.RefusalRule) -> tuple[str, str, str]:
    return rule.handling, rule.reason, rule.account or NONE


def test_the_codes_have_the_rulings_of_the_code() -> None:
    [own] = tables("7.2 By code")
    [zenrows] = tables("By code", ZENROWS)
    _, direct = tables("Statuses and codes", DIRECT)
    listed = [rules(table, "code") for table in (own, zenrows, direct)]
    expected = (CONVEYOR_CODES, zenrows_errors.BY_CODE, direct_wire.BY_CODE)
    assert listed == [
        {code: as_written(rule) for code, rule in codes.items()} for codes in expected
    ]
    assert CODES.keys() == {code for table in listed for code in table}


def test_the_statuses_have_the_rulings_of_the_code() -> None:
    expected = {str(status): as_written(rule) for status, rule in zenrows_errors.BY_STATUS.items()}
    [table] = tables("By status", ZENROWS)
    assert rules(table, "status") == expected


def test_the_rest_is_ruled_as_the_text_says() -> None:
    for said in (section("7.1 How a refusal is read"), section("By status", ZENROWS)):
        assert "500 and above is `retry` with `gateway_error`" in said
        assert "any other `fail` with `other`" in said
    assert as_written(zenrows_errors.rule_for(500, "")) == ("retry", "gateway_error", NONE)
    assert as_written(zenrows_errors.rule_for(499, "")) == ("fail", "other", NONE)


def test_the_handlings_and_account_reasons_are_all_explained() -> None:
    [handlings] = tables("7.1 How a refusal is read")
    [reasons] = tables("7.4 Reasons of the account")
    assert column(handlings, "handling", "meaning").keys() == set(Handling)
    assert column(reasons, "reason", "meaning").keys() == set(AccountReason)


def test_every_failure_reason_is_a_column_of_counts() -> None:
    table, _ = tables("4 Counts and money")
    listed = {row["column"] for row in table if row["counts"] == "tasks failed for this reason"}
    assert listed == set(FailureReason)


# 8 Errors.

ABSTRACT = {errors.CallerFault}  # raised by its kinds only
INSIDE = {errors.Stale, errors.KeyTaken, errors.RefusedToStart, errors.IllegalMove}


def test_the_errors_are_the_codes() -> None:
    [table] = tables("8 Errors")
    listed = {row["error"]: (row["code"], row["status"]) for row in table}
    assert len(listed) == len(table)
    assert listed == {
        kind.__name__: (kind.code, _status(kind)) for kind in _tree(errors.ConveyorError) - ABSTRACT
    }


def _tree(root: type[errors.ConveyorError]) -> set[type[errors.ConveyorError]]:
    """The errors of `errors.py`, whatever else a program derives from them."""
    below = {one for kind in root.__subclasses__() for one in _tree(kind)}
    return {one for one in {root} | below if one.__module__ == errors.__name__}


def _status(kind: type[errors.ConveyorError]) -> str:
    if issubclass(kind, errors.CallerFault):
        return str(kind.status)
    if kind in INSIDE:
        return NONE
    return "503" if issubclass(kind, errors.Unavailable) else "500"


# 11 Work.


def test_what_is_not_public_is_the_codes() -> None:
    [addresses] = tables("Addresses", DIRECT)
    listed = {row["addresses"]: re.findall(r"[0-9a-f.:]+/\d+", row["which"]) for row in addresses}
    assert listed["IPv4"] == [str(one) for one in public_address.NOT_PUBLIC]
    there = (public_address.ALLOCATED, *public_address.NOT_PUBLIC_THERE)
    assert listed["IPv6"] == [str(one) for one in there]


def test_the_codes_of_sites_are_those_of_their_statuses() -> None:
    statuses, _ = tables("Statuses and codes", DIRECT)
    for row in statuses:
        for status in map(int, re.findall(r"\d+", row["status"])):
            wait = timedelta() if "Retry-After" in row["status"] else None
            assert direct_wire.refusal(status, wait).code == row["code"]


def test_the_types_of_pages_are_those_of_their_labels() -> None:
    [types] = tables("Content-Type", DIRECT)
    listed = {
        label: row["type"]
        for row in types
        for label in re.findall(r"\w+/[\w+]+", row["media types"])
    }
    assert listed == media.FORMATS
    assert types[-1]["type"] == media.OTHER


# The document itself.


def test_chapters_are_numbered_without_gaps() -> None:
    chapters = re.findall(r"^## (\d+) ", TEXT, re.MULTILINE)
    assert chapters == [str(n) for n in range(1, len(chapters) + 1)]


def test_what_the_text_refers_to_is_there() -> None:
    headings = set(re.findall(r"^#+ (\d+(?:\.\d+)?) ", TEXT, re.MULTILINE))
    written = "\n".join(text(page) for page in ("SPEC.md", *NORMATIVE))
    referred = set(
        re.findall(r"\b(?:chapter |in |of |SPEC |as |\(|\| )([1-9]\d?\.\d{1,2})\b", written)
    )
    assert referred <= headings


@pytest.mark.parametrize("page", NORMATIVE)
def test_the_chapters_on_pages_of_their_own_are_named(page: str) -> None:
    assert f"]({page})" in TEXT


@pytest.mark.parametrize("page", ["SPEC.md", *NORMATIVE])
def test_every_table_is_whole(page: str) -> None:
    for heading in re.findall(r"^#{2,3} (.+)$", text(page), re.MULTILINE):
        for table in tables(heading, page):
            assert table, f"an empty table under {heading!r}"
            assert all(cell for row in table for cell in row.values()), heading


def test_the_figures_of_the_dispatcher_are_those_of_its_config() -> None:
    [table] = tables("11.1 The dispatcher")
    told = {row["figure"]: row["value"] for row in table}
    config = DispatchConfig()
    assert told["claims under way at once"].startswith(f"{config.claim_loops}, on a queue one")
    assert told["groups being settled at once"].startswith(f"{SETTLE_LOOPS}, where")
    assert told["tasks worth a claim or a settle"].startswith(f"{config.batch}, on a queue 10,")
    assert f"{config.prefetch / timedelta(milliseconds=1):g} ms" in section("11.1 The dispatcher")


def test_the_window_of_a_slow_run_is_the_codes() -> None:
    told = section("11.1 The dispatcher")
    assert f"for at most {write_window.MOST_CLAIMED} tasks" in told
    assert f"The window is {write_window.FIRST_WINDOW} at first." in told
    assert f"more than {write_window.SLOW_WRITE:g} s halve it" in told
    assert f"down to {write_window.LEAST_WINDOW};" in told
    assert f"any other makes it {write_window.STEP} larger" in told


# 11.11 Webhooks.


def test_the_moves_of_events_are_the_codes() -> None:
    [states] = tables("Events", WEBHOOKS)
    listed = {one: set(to.split(", ")) for one, to in column(states, "status", "moves to").items()}
    assert listed == as_text(outbox.MOVES)


def test_the_waits_between_attempts_are_the_codes() -> None:
    waits = next(table for table in tables("Attempts", WEBHOOKS) if "wait" in table[0])
    assert column(waits, "attempt", "wait") == {
        str(number): f"{wait.total_seconds():.0f} s"
        for number, wait in enumerate(webhook.WAITS, start=1)
    }


def test_the_bounds_of_webhooks_are_the_codes() -> None:
    text = section("Rules", WEBHOOKS)
    for said in (
        f"`{SCHEMA}`",
        f"the latest {outbox.KEPT_DELIVERIES[Channel.WEBHOOK]} of each event",
        (
            f"{delivery_queue.PLACES} deliveries are in flight at a time in a process, "
            f"{delivery_queue.PER_ORIGIN} to one receiver (a host and port), "
            f"{delivery_queue.PER_CALLER} of one caller, and {delivery_queue.UNHEALTHY} to receivers"
        ),
        f"after more than {delivery_queue.LATE:.0f} s",
        f"({delivery_queue.MOST_WAITING:,} events at most in all lines)",
        (
            f"at least {delivery_queue.SHORTEST_DELAY.total_seconds():.0f} s and at most "
            f"{delivery_queue.LONGEST_DELAY.total_seconds() / 60:.0f} min"
        ),
        f"at most {webhook.LONGEST_WAIT.total_seconds() / 3600:.0f} hours",
        (
            f"at most {webhooks.LARGEST_ANSWER // 1024} KiB are read, for at most "
            f"{webhooks.CLEARING:.0f} s"
        ),
    ):
        assert said in text, said


def test_the_places_of_background_work_are_the_codes() -> None:
    [table] = tables("10.5 Control queue")
    listed = {
        row["kind"]: SlotLimits(int(row["slots"]), int(row["slots per caller"])) for row in table
    }
    assert listed == {INGEST: INGESTS, PURGE: PURGES, EXPORT: EXPORTS}
    assert f"A turn lasts {TURN.seconds} s." in section("10.5 Control queue")
