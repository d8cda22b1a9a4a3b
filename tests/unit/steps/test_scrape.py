"""One attempt: what is asked of the gateway, and what its answer is to the task."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from conveyor.adapters.http.zenrows_errors import BLOCKED_WAIT
from conveyor.app.engines import CODES
from conveyor.domain.counts import Spend
from conveyor.domain.failure import AccountReason, FailureReason, Handling
from conveyor.domain.ids import RunId
from conveyor.domain.page_facts import PageFacts
from conveyor.domain.params import Params, dump
from conveyor.domain.task import AccountBlocked, AttemptFailed, Interrupted, Task, Throttled
from conveyor.ports.bodies import Spool
from conveyor.ports.gateway import GatewayRefusal, Page, PageRequest
from conveyor.steps.scrape import MOST_KINDS, SHORTEST_WAIT, RefusalKind, RefusalLog, Scrape
from conveyor.steps.shared.attempt import STORAGE_FULL_WAIT, Assignment, CallResult, Fetched
from conveyor.testing.clock import FakeClock
from conveyor.testing.factories import a_job, a_problem, a_task, a_task_spec, gateway_refusal
from conveyor.testing.memory.bodies import MemoryBodies
from tests.harness import time_lapse
from tests.harness.memory_service import KEY, an_assignment

SPEND = Spend(credits=1, nanos=28)
TOOK = timedelta(seconds=1.2341)
QUICK = PageFacts(duration_ms=0)  # of a call while the clock stands still
ASSIGNMENT = an_assignment(a_job())


class Gateway:
    """Answers what it was told to, and remembers what it was asked."""

    def __init__(self, answer: Page | GatewayRefusal, clock: FakeClock | None = None) -> None:
        self._answer = answer
        self._clock = clock
        self.asked: list[PageRequest] = []

    async def check_health(self) -> bool:
        return True

    async def fetch(
        self, request: PageRequest, spool: Callable[[], Spool]
    ) -> Page | GatewayRefusal:
        self.asked.append(request)
        if self._clock:
            self._clock.advance(TOOK)
        return self._answer


async def test_a_page_is_fetched_with_its_spend() -> None:
    result, _ = await _attempt(Page(content=b"page", spend=SPEND))
    assert result == Fetched(content=b"page", format="html", spend=SPEND, facts=QUICK)


@pytest.mark.parametrize(
    "answer",
    [
        Page(content=b"page", facts=PageFacts(http_status=203, final_url="https://b.example/")),
        gateway_refusal(
            404, "RESP002", facts=PageFacts(http_status=203, final_url="https://b.example/")
        ),
    ],
)
async def test_the_facts_about_a_page_are_passed_on_with_the_duration_of_its_call(
    answer: Page | GatewayRefusal,
) -> None:
    clock = FakeClock()
    scrape = Scrape(gateway=Gateway(answer, clock), bodies=MemoryBodies(), clock=clock)

    result = await scrape.attempt(a_task(), ASSIGNMENT)

    assert isinstance(result, Fetched | AttemptFailed)
    assert result.facts == PageFacts(
        http_status=203, duration_ms=1234, final_url="https://b.example/"
    )


async def test_a_large_page_is_passed_on_in_its_spool() -> None:
    spool = MemoryBodies().spool()
    result, _ = await _attempt(Page(content=spool))
    assert isinstance(result, Fetched)
    assert result.content is spool


async def test_the_callers_key_and_the_jobs_parameters_are_sent() -> None:
    params = {"js_render": "true"}
    _, asked = await _attempt(assignment=replace(ASSIGNMENT, params=params))
    call = f"{a_task().run_id}.{a_task().id}.{a_task().claim_no}"
    assert asked == PageRequest(url=a_task().spec.url, gateway_key=KEY, params=params, call_id=call)


async def test_a_call_goes_by_its_task_and_claim_and_is_told_of_in_the_log() -> None:
    task = a_task(claim_no=7)
    page = Page(content=b"page", gateway_request_id="of-the-page")
    refusal = gateway_refusal(
        404, "RESP002" + "x" * 99, problem="{}", gateway_request_id="of-the-refusal"
    )
    with capture_logs() as logs:
        _, asked = await _attempt(page, task=task)
        await _attempt(refusal, task=task)
    assert asked.call_id == f"{task.run_id}.{task.id}.7"
    ids = {"run_id": task.run_id, "task_id": task.id, "call_id": asked.call_id}
    told = {
        "status": 404,
        "code": refusal.code[:64],
        "handling": Handling.FAIL,
        "gateway_request_id": "of-the-refusal",
        **ids,
    }
    assert logs == [
        {
            "event": "gateway.answered",
            "log_level": "debug",
            "gateway_request_id": "of-the-page",
            **ids,
        },
        {"event": "gateway.refusal", "log_level": "debug", **told},
        {"event": "gateway.refused", "log_level": "info", "times": 1, **told},
    ]


async def test_a_tasks_own_parameters_come_before_the_jobs() -> None:
    own = dump({"response_type": "markdown", "wait": "10"})
    task = a_task(spec=a_task_spec(params=own))
    assignment = replace(ASSIGNMENT, params={"js_render": "true", "wait": "5000"})

    result, asked = await _attempt(task=task, assignment=assignment)

    assert asked.params["js_render"] == "true"
    assert asked.params["response_type"] == "markdown"
    assert asked.params["wait"] == "10"
    assert isinstance(result, Fetched)
    assert result.format == "markdown"


@pytest.mark.parametrize(
    ("of_job", "own", "sent"),
    [
        ({"wait_for": ""}, {}, {}),
        ({"wait_for": ""}, {"wait": "5"}, {"wait": "5"}),
        ({"wait_for": "#main"}, {"wait_for": ""}, {}),
    ],
)
async def test_empty_parameters_are_not_sent(of_job: Params, own: Params, sent: Params) -> None:
    task = a_task(spec=a_task_spec(params=dump(own)))
    _, asked = await _attempt(task=task, assignment=replace(ASSIGNMENT, params=of_job))
    assert asked.params == sent


async def test_a_post_is_sent_with_its_body() -> None:
    task = a_task(spec=a_task_spec(method="POST", body='{"a":1}'))
    _, asked = await _attempt(task=task)
    assert (asked.method, asked.body) == ("POST", '{"a":1}')


async def test_custom_headers_of_the_parameters_are_sent_as_headers() -> None:
    params = {"custom_headers": '{"Referer":"https://a.example/"}'}
    _, asked = await _attempt(assignment=replace(ASSIGNMENT, params=params))
    assert dict(asked.headers) == {"Referer": "https://a.example/"}


@pytest.mark.parametrize("code", sorted(CODES))
async def test_each_refusal_is_what_its_gateway_rules(code: str) -> None:
    refusal = gateway_refusal(422, code, problem=a_problem(code), spend=SPEND)
    rule = CODES[code]

    result, _ = await _attempt(refusal)

    match rule.handling:
        case Handling.ACCOUNT:
            assert isinstance(result, AccountBlocked)
            assert (result.reason, result.spend) == (rule.account, SPEND)
        case Handling.WAIT:
            assert isinstance(result, Throttled)
            assert result.spend == SPEND
        case Handling.POSTPONE:
            assert result == Interrupted(SHORTEST_WAIT, SPEND)
        case _:
            retryable = rule.handling is Handling.RETRY
            assert result == AttemptFailed(
                refusal.problem, rule.reason, retryable, SPEND, facts=QUICK
            )


@pytest.mark.parametrize(
    ("status", "retryable"), [(500, True), (503, True), (404, False), (418, False)]
)
async def test_a_refusal_without_a_known_code_is_judged_by_its_status(
    status: int, *, retryable: bool
) -> None:
    result, _ = await _attempt(gateway_refusal(status, "", problem="{}"))
    assert isinstance(result, AttemptFailed)
    assert result.retryable is retryable


async def test_a_refused_key_is_told_in_words_the_caller_understands() -> None:
    refusal = gateway_refusal(401, "AUTH002", problem='{"detail": "Invalid API key"}')
    result, _ = await _attempt(refusal)
    assert result == AccountBlocked(
        AccountReason.SUBSCRIPTION_INACTIVE, "The gateway refused the gateway key: Invalid API key"
    )


@pytest.mark.parametrize(
    ("problem", "detail"),
    [
        ('{"detail": "no credits", "title": "Sorry"}', "no credits"),
        ('{"title": "Sorry"}', "Sorry"),
        ('{"detail": null}', "AUTH004"),
        ("{}", "AUTH004"),
    ],
)
async def test_a_blocked_account_is_told_by_the_best_words_there_are(
    problem: str, detail: str
) -> None:
    result, _ = await _attempt(gateway_refusal(402, "AUTH004", problem=problem))
    assert result == AccountBlocked(AccountReason.INSUFFICIENT_CREDITS, detail)


async def test_only_a_ruling_that_names_the_account_blocks_it() -> None:
    refusal = gateway_refusal(402, "AUTH004")
    result, _ = await _attempt(replace(refusal, rule=replace(refusal.rule, account=None)))
    assert result == AttemptFailed("{}", FailureReason.AUTH_FAILED, retryable=False, facts=QUICK)


@pytest.mark.parametrize(
    ("code", "asked_for", "least"),
    [
        ("AUTH006", None, SHORTEST_WAIT),
        ("AUTH006", timedelta(), SHORTEST_WAIT),
        ("AUTH006", timedelta(milliseconds=1), SHORTEST_WAIT),
        ("AUTH006", timedelta(seconds=30), timedelta(seconds=30)),
        ("BLK0001", None, BLOCKED_WAIT),
        ("BLK0001", timedelta(seconds=1), BLOCKED_WAIT),
        ("BLK0001", timedelta(minutes=5), timedelta(minutes=5)),
    ],
)
async def test_a_wait_is_as_long_as_the_gateway_asks_and_at_most_twice_that(
    code: str, asked_for: timedelta | None, least: timedelta
) -> None:
    refusal = gateway_refusal(429, code, problem="{}", retry_after=asked_for)
    result, _ = await _attempt(refusal)
    assert isinstance(result, Throttled)
    assert least <= result.wait <= least * 2


async def test_a_page_that_is_worth_another_try_waits_as_long_as_was_asked_for() -> None:
    wait = timedelta(seconds=40)
    refusal = gateway_refusal(429, "target_throttled", problem="{}", retry_after=wait)
    result, _ = await _attempt(refusal)
    assert result == AttemptFailed(
        "{}", FailureReason.RATE_LIMITED, retryable=True, wait=wait, facts=QUICK
    )


async def test_a_page_whose_host_rests_goes_back_uncharged_and_tells_nothing_of_its_key() -> None:
    wait = timedelta(seconds=40)
    refusal = gateway_refusal(429, "host_resting", problem="{}", retry_after=wait)
    with capture_logs() as logs:
        result, _ = await _attempt(refusal)
    assert result == Interrupted(wait)
    assert [(line["event"], line["log_level"]) for line in logs] == [("gateway.postponed", "debug")]


async def test_tasks_that_wait_part_ways() -> None:
    refusal = gateway_refusal(429, "AUTH006", problem="{}")
    waits = set()
    for claim_no in range(1, 9):
        result, _ = await _attempt(refusal, task=a_task(claim_no=claim_no))
        assert isinstance(result, Throttled)
        waits.add(result.wait)
    assert len(waits) == 8


async def test_a_page_that_finds_no_room_to_spool_is_no_attempt_and_its_cost_counts() -> None:
    refusal = gateway_refusal(503, "storage_full", problem="{}", spend=SPEND, storage_full=True)
    result, _ = await _attempt(refusal)
    assert result == Interrupted(STORAGE_FULL_WAIT, SPEND, not_stored=True)


async def _attempt(
    answer: Page | GatewayRefusal | None = None,
    *,
    task: Task | None = None,
    assignment: Assignment = ASSIGNMENT,
) -> tuple[CallResult, PageRequest]:
    gateway = Gateway(answer or Page(content=b"page"))
    scrape = Scrape(gateway=gateway, bodies=MemoryBodies(), clock=FakeClock())
    result = await scrape.attempt(task or a_task(), assignment)
    [asked] = gateway.asked
    return result, asked


def test_refusals_of_one_kind_are_one_line_a_minute_with_their_number() -> None:
    async def main() -> None:
        refusal = gateway_refusal(404, "RESP002", problem="{}")
        scrape = Scrape(gateway=Gateway(refusal), bodies=MemoryBodies(), clock=FakeClock())
        for number in range(600):  # ten a second for a minute
            await scrape.attempt(a_task(claim_no=number), ASSIGNMENT)
            await asyncio.sleep(0.1)
        await asyncio.sleep(200)
        assert not scrape.refusals.latest

    with capture_logs() as logs:
        time_lapse.run(main())
    lines = [line["times"] for line in logs if line["event"] == "gateway.refused"]
    assert lines == [1, 599]


def test_the_kinds_of_refusals_that_are_counted_apart_are_bounded() -> None:
    async def main() -> None:
        refusals = RefusalLog()
        for number in range(2 * MOST_KINDS):
            refusals.note(RefusalKind(RunId(str(number)), 404, "RESP002", Handling.FAIL), {})
        assert len(refusals.counts) == MOST_KINDS + 1

    with capture_logs() as logs:
        time_lapse.run(main())
    assert sum(line["event"] == "gateway.refused" for line in logs) == MOST_KINDS + 1
