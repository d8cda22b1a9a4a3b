"""Scrape: one attempt at one page, through the gateway."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import msgspec
import structlog

from conveyor.domain import media
from conveyor.domain import params as params_rules
from conveyor.domain.failure import Handling
from conveyor.domain.ids import RunId
from conveyor.domain.page_facts import PageFacts, with_duration
from conveyor.domain.params import Params
from conveyor.domain.retry import spread
from conveyor.domain.task import (
    AccountBlocked,
    AttemptFailed,
    Interrupted,
    Outcome,
    Task,
    Throttled,
)
from conveyor.ports.bodies import Bodies
from conveyor.ports.clock import Clock
from conveyor.ports.gateway import Gateway, GatewayRefusal, Page, PageRequest
from conveyor.steps.shared.attempt import STORAGE_FULL_WAIT, Assignment, CallResult, Fetched

SHORTEST_WAIT = timedelta(seconds=1)
NO_HEADERS: Mapping[str, str] = {}
LOG_EVERY = 60.0  # seconds between lines about one kind of refusal
MOST_KINDS = 1_000  # counted separately; further ones are counted without their run
LONGEST_CODE = 64  # characters of a code in the log

log = structlog.get_logger()


class RefusalKind(NamedTuple):
    run_id: RunId
    status: int
    code: str
    handling: Handling


@dataclass(slots=True)
class RefusalLog:
    """Logs refused calls: the first of a kind at once, then one line a minute with a count.

    In an outage one line for each call would fill the disk. Each call is still logged at `debug`,
    and recorded in the history of its task.
    """

    counts: dict[RefusalKind, int] = field(default_factory=dict)  # since the last line of each kind
    latest: dict[RefusalKind, dict[str, str | None]] = field(default_factory=dict)  # ids of a call
    timer: asyncio.TimerHandle | None = None

    def note(self, kind: RefusalKind, ids: dict[str, str | None]) -> None:
        """Count a refused call; `ids` identify it."""
        kind = kind._replace(code=kind.code[:LONGEST_CODE])
        log.debug("gateway.refusal", **kind._asdict() | ids)
        if kind not in self.counts and len(self.counts) >= MOST_KINDS:
            kind = kind._replace(run_id=RunId(""), code="")
        self.latest[kind] = ids
        if kind in self.counts:
            self.counts[kind] += 1
            return
        self.counts[kind] = 0
        self._write(kind, 1)
        if self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(LOG_EVERY, self._summarise)

    def _summarise(self) -> None:
        counts, self.counts, self.timer = self.counts, {}, None
        for kind, times in counts.items():
            if times:
                self.counts[kind] = 0  # the kind stays known: still one line a minute
                self._write(kind, times)
            else:
                del self.latest[kind]
        if self.counts:
            self.timer = asyncio.get_running_loop().call_later(LOG_EVERY, self._summarise)

    def _write(self, kind: RefusalKind, times: int) -> None:
        log.info("gateway.refused", times=times, **kind._asdict() | self.latest[kind])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    gateway: Gateway
    bodies: Bodies
    clock: Clock
    refusals: RefusalLog = field(default_factory=RefusalLog)

    async def attempt(self, task: Task, assignment: Assignment) -> CallResult:
        params = _params(task, assignment)
        request = PageRequest(
            url=task.spec.url,
            gateway_key=assignment.gateway_key,
            method=task.spec.method,
            params=params,
            headers=_headers(params),
            body=task.spec.body,
            call_id=f"{task.run_id}.{task.id}.{task.claim_no}",
        )
        began = self.clock.monotonic()
        answer = await self.gateway.fetch(request, self.bodies.spool)
        facts = with_duration(answer.facts, self.clock.monotonic() - began)
        match answer:
            case Page():
                log.debug("gateway.answered", **_ids(task, request, answer))
                return Fetched(
                    content=answer.content,
                    format=_format(task, assignment, params, answer.content_type),
                    content_type=answer.content_type,
                    spend=answer.spend,
                    limit=answer.limit,
                    signal=answer.signal,
                    facts=facts,
                )
            case GatewayRefusal():  # pragma: no branch - the last of the union
                return self._judge(task, request, answer, facts)

    def _judge(
        self, task: Task, request: PageRequest, refusal: GatewayRefusal, facts: PageFacts
    ) -> Outcome:
        """The outcome of a refused attempt, as the gateway classified it."""
        if refusal.storage_full:
            return Interrupted(STORAGE_FULL_WAIT, refusal.spend, not_stored=True)
        rule = refusal.rule
        if rule.handling is Handling.POSTPONE:
            log.debug("gateway.postponed", code=refusal.code, **_ids(task, request, refusal))
            return Interrupted(refusal.retry_after or SHORTEST_WAIT, refusal.spend)
        kind = RefusalKind(task.run_id, refusal.status, refusal.code, rule.handling)
        self.refusals.note(kind, _ids(task, request, refusal))
        match rule.handling:
            case Handling.ACCOUNT if rule.account:
                return AccountBlocked(rule.account, _detail(refusal), refusal.spend)
            case Handling.WAIT:
                return Throttled(_wait(task, refusal), refusal.spend, rule.reason)
            case _:
                retryable = rule.handling is Handling.RETRY
                wait = refusal.retry_after or timedelta()
                # By its signal `GatewayHealth.observe` may hold this result for up to 5 s before it
                # is settled, or hand the task back uncharged.
                return AttemptFailed(
                    refusal.problem,
                    rule.reason,
                    retryable,
                    refusal.spend,
                    wait,
                    refusal.signal,
                    facts,
                )


def _params(task: Task, assignment: Assignment) -> Params:
    return params_rules.merged(assignment.params, params_rules.load(task.spec.params))


def _headers(params: Params) -> Mapping[str, str]:
    return params_rules.headers(params) if params_rules.HEADERS in params else NO_HEADERS


def _format(task: Task, assignment: Assignment, params: Params, content_type: str | None) -> str:
    """By the `Content-Type` of the site where the gateway passes it on, else by the parameters."""
    if content_type is not None:
        return media.format_of(content_type)
    return assignment.format if task.spec.params is None else params_rules.result_format(params)


def _ids(task: Task, request: PageRequest, answer: Page | GatewayRefusal) -> dict[str, str | None]:
    """The ids of a call, here and at the gateway."""
    return {
        "run_id": task.run_id,
        "task_id": task.id,
        "call_id": request.call_id,
        "gateway_request_id": answer.gateway_request_id,
    }


def _wait(task: Task, refusal: GatewayRefusal) -> timedelta:
    """What the gateway asks for, or the minimum; with jitter, so that tasks do not return together."""
    least = refusal.rule.least_wait
    return max(refusal.retry_after or least, least) + least * spread(f"{task.id}/{task.claim_no}")


def _detail(refusal: GatewayRefusal) -> str:
    problem = msgspec.json.decode(refusal.problem, type=dict[str, object])
    detail = str(problem.get("detail") or problem.get("title") or refusal.code)
    return f"The gateway refused the gateway key: {detail}" if refusal.status == 401 else detail
