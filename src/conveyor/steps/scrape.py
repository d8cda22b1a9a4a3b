"""Scrape: one attempt at one page, through the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import structlog

from conveyor.domain import media
from conveyor.domain import params as scraper_params
from conveyor.domain.failure import Handling
from conveyor.domain.params import Params
from conveyor.domain.retry import spread
from conveyor.domain.task import (
    AccountBlocked,
    Interrupted,
    Outcome,
    Refused,
    Task,
    Throttled,
)
from conveyor.ports.bodies import Bodies
from conveyor.ports.gateway import Gateway, Page, PageRequest, Refusal
from conveyor.steps.shared.attempt import STORAGE_FULL_WAIT, Assignment, Fetched, Result
from conveyor.steps.shared.refusals import Kind, Refusals

SHORTEST_WAIT = timedelta(seconds=1)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    gateway: Gateway
    bodies: Bodies
    refusals: Refusals = field(default_factory=Refusals)

    async def attempt(self, task: Task, assignment: Assignment) -> Result:
        params = _params(task, assignment)
        request = PageRequest(
            url=task.spec.url,
            key=assignment.key,
            method=task.spec.method,
            params=params,
            headers=_headers(params),
            body=task.spec.body,
            call_id=f"{task.run_id}.{task.id}.{task.claim_no}",
        )
        answer = await self.gateway.fetch(request, self.bodies.spool)
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
                )
            case Refusal():  # pragma: no branch - the last of the union
                return self._judge(task, request, answer)

    def _judge(self, task: Task, request: PageRequest, refusal: Refusal) -> Outcome:
        """The outcome of a refused attempt, by the ruling of its gateway."""
        if refusal.storage_full:
            return Interrupted(STORAGE_FULL_WAIT, refusal.spend, storage_full=True)
        rule = refusal.ruling
        if rule.handling is Handling.POSTPONE:
            log.debug("gateway.postponed", code=refusal.code, **_ids(task, request, refusal))
            return Interrupted(refusal.retry_after or SHORTEST_WAIT, refusal.spend)
        kind = Kind(task.run_id, refusal.status, refusal.code, rule.handling)
        self.refusals.note(kind, _ids(task, request, refusal))
        match rule.handling:
            case Handling.ACCOUNT if rule.account:
                return AccountBlocked(rule.account, _detail(refusal), refusal.spend)
            case Handling.WAIT:
                return Throttled(_wait(task, refusal), refusal.spend)
            case _:
                retryable = rule.handling is Handling.RETRY
                wait = refusal.retry_after or timedelta()
                return Refused(
                    refusal.problem, rule.reason, retryable, refusal.spend, wait, refusal.signal
                )


def _params(task: Task, assignment: Assignment) -> Params:
    if task.spec.params is None:
        return assignment.params
    return scraper_params.merged(assignment.params, scraper_params.load(task.spec.params))


def _headers(params: Params) -> Mapping[str, str]:
    return scraper_params.headers(params) if scraper_params.HEADERS in params else NO_HEADERS


def _format(task: Task, assignment: Assignment, params: Params, content_type: str | None) -> str:
    """By the site's own label where the gateway hands it on, else by what was asked for."""
    if content_type is not None:
        return media.format_of(content_type)
    return assignment.format if task.spec.params is None else scraper_params.result_format(params)


def _ids(task: Task, request: PageRequest, answer: Page | Refusal) -> dict[str, str | None]:
    """What a call goes by: here, and with the gateway."""
    return {
        "run_id": task.run_id,
        "task_id": task.id,
        "call_id": request.call_id,
        "gateway_request_id": answer.gateway_request_id,
    }


def _wait(task: Task, refusal: Refusal) -> timedelta:
    """As long as the gateway asks for, or the least; spread so that tasks do not return together."""
    least = refusal.ruling.least_wait
    return max(refusal.retry_after or least, least) + least * spread(f"{task.id}/{task.claim_no}")


def _detail(refusal: Refusal) -> str:
    problem = msgspec.json.decode(refusal.problem, type=dict[str, object])
    detail = str(problem.get("detail") or problem.get("title") or refusal.code)
    return f"The gateway refused the API key: {detail}" if refusal.status == 401 else detail


NO_HEADERS: Mapping[str, str] = {}
