"""Our client of AWS, against services that answer as a test tells them to."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from conveyor.adapters.aws import client as client_module
from conveyor.adapters.aws.client import DYNAMODB, SQS, AwsClient, endpoint_of
from conveyor.adapters.aws.credentials import RefreshedKeys
from conveyor.adapters.aws.dynamodb.batches import DynamoDbBatches
from conveyor.adapters.aws.faults import (
    ConditionFailed,
    OutcomeUnknown,
    ServiceRefusal,
    TransactionCanceled,
)
from conveyor.adapters.shared.aws_credentials import Keys
from conveyor.errors import StorageFull, Unavailable
from conveyor.testing.clock import FakeClock
from conveyor.testing.local.ports import free_port
from tests.emulators import Emulator
from tests.harness.aws_server import (
    CUT,
    LATE,
    Answer,
    ScriptedService,
    client_of,
    refusal,
    scripted_service,
)

SHORT = timedelta(seconds=0.3)
THROTTLED = refusal("ThrottlingException")
DONE = Answer({"done": True})


@pytest.fixture
async def service() -> AsyncIterator[ScriptedService]:
    async with scripted_service() as service:
        yield service


@pytest.fixture
async def client(service: ScriptedService) -> AsyncIterator[AwsClient]:
    async with client_of(service.url) as client:
        yield client


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_PAUSE", 0.002)


async def test_a_call_names_its_operation_and_is_signed(
    service: ScriptedService, client: AwsClient
) -> None:
    service.script(DONE)
    assert await client.call("GetItem", {"Key": {"pk": {"S": "1"}}}) == {"done": True}
    assert service.calls == [("DynamoDB_20120810.GetItem", {"Key": {"pk": {"S": "1"}}})]
    [head] = service.heads
    assert head["Content-Type"] == "application/x-amz-json-1.0"
    assert head["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=test/")


async def test_other_services_speak_the_same_protocol(service: ScriptedService) -> None:
    service.script(DONE)
    async with client_of(service.url, service=SQS) as client:
        await client.call("SendMessage", {})
    assert service.calls == [("AmazonSQS.SendMessage", {})]


@pytest.mark.parametrize(
    "answer",
    [
        THROTTLED,
        refusal("ProvisionedThroughputExceededException"),
        refusal("RequestLimitExceeded"),
        refusal("TransactionConflictException"),
        refusal("TransactionInProgressException"),
        refusal(
            "TransactionCanceledException",
            CancellationReasons=[{"Code": "None"}, {"Code": "TransactionConflict"}],
        ),
    ],
)
async def test_what_had_no_effect_is_repeated(
    answer: Answer, service: ScriptedService, client: AwsClient
) -> None:
    service.script(answer, answer, DONE)
    assert await client.call("UpdateItem", {}, repeatable=False) == {"done": True}
    assert len(service.calls) == 3


@pytest.mark.parametrize(
    "answer", [CUT, refusal("InternalServerError", 500), Answer(raw=b"<html>", status=503)]
)
async def test_a_lost_answer_is_repeated_only_where_that_is_safe(
    answer: Answer, service: ScriptedService, client: AwsClient
) -> None:
    service.script(answer, DONE)
    assert await client.call("GetItem", {}) == {"done": True}
    service.answers.clear()
    service.script(answer, DONE)
    with pytest.raises(OutcomeUnknown):
        await client.call("UpdateItem", {})
    assert len(service.calls) == 3
    service.answers.clear()
    service.script(answer, DONE)
    assert await client.call("UpdateItem", {}, repeatable=True) == {"done": True}


async def test_a_request_with_a_token_is_repeatable(
    service: ScriptedService, client: AwsClient
) -> None:
    service.script(CUT, DONE)
    assert await client.call("TransactWriteItems", {"ClientRequestToken": "t"})
    service.answers.clear()
    service.script(CUT, DONE)
    with pytest.raises(OutcomeUnknown):
        await client.call("TransactWriteItems", {})


async def test_an_attempt_without_an_answer_is_ended(
    service: ScriptedService, client: AwsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ATTEMPT", timedelta(seconds=0.05))
    service.script(LATE, DONE)
    assert await client.call("GetItem", {}) == {"done": True}


async def test_the_deadline_ends_all_attempts(service: ScriptedService, client: AwsClient) -> None:
    service.script(THROTTLED)
    with pytest.raises(Unavailable, match=r"Throttling.*request id-") as failed:
        await client.call("UpdateItem", {}, deadline=SHORT)
    assert not isinstance(failed.value, OutcomeUnknown)
    assert len(service.calls) > 2

    service.answers.clear()
    service.script(LATE)
    started = asyncio.get_running_loop().time()
    with pytest.raises(OutcomeUnknown, match="TimeoutError"):
        await client.call("GetItem", {}, deadline=SHORT)
    assert asyncio.get_running_loop().time() - started < 5


async def test_an_earlier_lost_answer_is_not_forgotten(
    service: ScriptedService, client: AwsClient
) -> None:
    service.script(CUT, THROTTLED)
    with pytest.raises(OutcomeUnknown):
        await client.call("PutItem", {}, repeatable=True, deadline=SHORT)
    service.answers.clear()
    service.script(CUT, refusal("AccessDeniedException"))
    with pytest.raises(OutcomeUnknown):
        await client.call("PutItem", {}, repeatable=True)


async def test_nobody_at_the_address_is_unavailable_and_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No second attempt: the deadline could end it at any moment, also one that looks like a sent call.
    for pause in "FIRST_PAUSE", "LONGEST_PAUSE":
        monkeypatch.setattr(client_module, pause, 60.0)
    async with client_of(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(Unavailable) as failed:
            await client.call("UpdateItem", {})
    assert not isinstance(failed.value, OutcomeUnknown)


async def test_a_failed_condition_has_the_stored_item(
    service: ScriptedService, client: AwsClient
) -> None:
    item = {"pk": {"S": "1"}}
    service.script(refusal("ConditionalCheckFailedException", Item=item))
    with pytest.raises(ConditionFailed, match=r"PutItem.*request id-1") as failed:
        await client.call("PutItem", {})
    assert failed.value.item == item
    assert not failed.value.follows_unknown
    assert len(service.calls) == 1


async def test_a_condition_that_fails_after_a_lost_answer_says_so(
    service: ScriptedService, client: AwsClient
) -> None:
    service.script(CUT, refusal("ConditionalCheckFailedException"))
    with pytest.raises(ConditionFailed) as failed:
        await client.call("PutItem", {}, repeatable=True)
    assert failed.value.follows_unknown


async def test_a_canceled_transaction_has_its_reasons(
    service: ScriptedService, client: AwsClient
) -> None:
    item = {"pk": {"S": "1"}}
    reasons = [
        {"Code": "None"},
        {"Code": "ConditionalCheckFailed", "Message": "no", "Item": item},
        {"Code": "TransactionConflict"},
    ]
    service.script(refusal("TransactionCanceledException", CancellationReasons=reasons))
    with pytest.raises(TransactionCanceled) as failed:
        await client.call("TransactWriteItems", {})
    told = [(reason.code, reason.item) for reason in failed.value.reasons]
    assert told == [("None", None), ("ConditionalCheckFailed", item), ("TransactionConflict", None)]


async def test_refusals_are_errors_of_their_kind(
    service: ScriptedService, client: AwsClient
) -> None:
    service.script(refusal("ValidationException"), refusal("ResourceNotFoundException"))
    for error in ("ValidationException", "ResourceNotFoundException"):
        with pytest.raises(ServiceRefusal) as refused:
            await client.call("Query", {})
        assert refused.value.error == error
    service.answers.clear()
    service.script(refusal("UnrecognizedClientException"))
    with pytest.raises(Unavailable, match="Check the AWS_"):
        await client.call("Query", {})
    service.answers.clear()
    service.script(refusal("ItemCollectionSizeLimitExceededException"))
    with pytest.raises(StorageFull):
        await client.call("PutItem", {})


async def test_expired_credentials_are_refreshed_and_the_call_repeated(
    service: ScriptedService,
) -> None:
    lent = iter(["first", "second"])
    keys = RefreshedKeys(lambda: Keys(next(lent), "secret", "token"), FakeClock())
    service.script(refusal("ExpiredTokenException"), DONE)
    async with client_of(service.url, keys=keys) as client:
        await client.call("UpdateItem", {})
    used = [head["Authorization"].split("Credential=")[1].split("/")[0] for head in service.heads]
    assert used == ["first", "second"]
    assert {head["x-amz-security-token"] for head in service.heads} == {"token"}


async def test_connections_are_bounded_and_reused(service: ScriptedService) -> None:
    service.script(DONE)
    async with client_of(service.url, connections=2) as client, asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(client.call("GetItem", {}))
    assert len(service.calls) == 20


# Batches.


async def test_unprocessed_keys_are_asked_for_again(
    service: ScriptedService, client: AwsClient
) -> None:
    one, two = {"pk": {"S": "1"}}, {"pk": {"S": "2"}}
    rest = {"t": {"Keys": [two], "ConsistentRead": True}}
    service.script(
        Answer({"Responses": {"t": [one]}, "UnprocessedKeys": rest}),
        THROTTLED,
        Answer({"Responses": {"t": [two]}, "UnprocessedKeys": {}}),
    )
    found = await DynamoDbBatches(client).get("t", [one, two], consistent=True)
    assert found == [one, two]
    assert service.calls[-1][1] == {"RequestItems": rest}


async def test_unprocessed_items_are_written_again(
    service: ScriptedService, client: AwsClient
) -> None:
    one, two = ({"PutRequest": {"Item": {"pk": {"S": name}}}} for name in "12")
    service.script(Answer({"UnprocessedItems": {"t": [two]}}), Answer({"UnprocessedItems": {}}))
    await DynamoDbBatches(client).write("t", [one, two])
    assert [call[1]["RequestItems"]["t"] for call in service.calls] == [[one, two], [two]]


async def test_what_stays_unprocessed_is_unavailable(
    service: ScriptedService, client: AwsClient
) -> None:
    put = {"PutRequest": {"Item": {"pk": {"S": "1"}}}}
    service.script(Answer({"UnprocessedItems": {"t": [put]}}))
    with pytest.raises(Unavailable, match="1 items were not written"):
        await DynamoDbBatches(client).write("t", [put], deadline=SHORT)
    service.answers.clear()
    service.script(Answer({"UnprocessedKeys": {"t": {"Keys": [{}]}}}))
    with pytest.raises(Unavailable, match="1 keys were not read"):
        await DynamoDbBatches(client).get("t", [{}], deadline=SHORT)


def entry(error: str = "", **item: str) -> dict[str, Any]:
    fields = {"Item": {name: {"S": value} for name, value in item.items()}} if item else {}
    return {"Error": {"Code": error, **fields}} if error else fields


async def test_statements_that_were_throttled_are_executed_again(
    service: ScriptedService, client: AwsClient
) -> None:
    statements = [{"Statement": str(n)} for n in range(4)]
    service.script(
        Answer(
            {
                "Responses": [
                    entry(a="0"),
                    entry("ThrottlingError"),
                    entry("ConditionalCheckFailed", a="2"),
                    entry("TransactionConflict"),
                ]
            }
        ),
        Answer({"Responses": [entry("ThrottlingError"), entry(a="3")]}),
        Answer({"Responses": [entry(a="1")]}),
    )
    results = await DynamoDbBatches(client).execute(statements, repeatable=False)
    assert [result.error for result in results] == ["", "", "ConditionalCheckFailed", ""]
    assert [result.item and result.item["a"]["S"] for result in results] == ["0", "1", "2", "3"]
    sent = [[one["Statement"] for one in call[1]["Statements"]] for call in service.calls]
    assert sent == [["0", "1", "2", "3"], ["1", "3"], ["1"]]


async def test_a_statement_of_unknown_outcome_is_executed_again_only_if_repeatable(
    service: ScriptedService, client: AwsClient
) -> None:
    lost = Answer({"Responses": [entry("InternalServerError")]})
    service.script(lost, Answer({"Responses": [entry("DuplicateItem")]}))
    [result] = await DynamoDbBatches(client).execute([{"Statement": "1"}], repeatable=True)
    assert result.error == "DuplicateItem"
    assert result.follows_unknown
    service.answers.clear()
    service.script(lost)
    [result] = await DynamoDbBatches(client).execute([{"Statement": "1"}], repeatable=False)
    assert result.error == "InternalServerError"


async def test_statements_left_at_the_deadline_keep_their_error(
    service: ScriptedService, client: AwsClient
) -> None:
    service.script(
        Answer({"Responses": [entry(a="0"), entry("ThrottlingError")]}),
        Answer({"Responses": [entry("ThrottlingError")]}),
    )
    statements = [{"Statement": "0"}, {"Statement": "1"}]
    results = await DynamoDbBatches(client).execute(statements, repeatable=True, deadline=SHORT)
    assert [result.error for result in results] == ["", "ThrottlingError"]

    service.answers.clear()
    service.script(Answer({"Responses": [entry(a="0"), entry("ThrottlingError")]}), THROTTLED)
    results = await DynamoDbBatches(client).execute(statements, repeatable=True, deadline=SHORT)
    assert [result.error for result in results] == ["", "ThrottlingError"]
    service.answers.clear()
    service.script(THROTTLED)
    with pytest.raises(Unavailable):
        await DynamoDbBatches(client).execute(statements, repeatable=True, deadline=SHORT)


# Where AWS is.


def test_an_endpoint_is_named_by_service_and_region() -> None:
    assert endpoint_of(DYNAMODB, "eu-west-1") == "https://dynamodb.eu-west-1.amazonaws.com"
    assert endpoint_of(SQS, "cn-north-1") == "https://sqs.cn-north-1.amazonaws.com.cn"


async def test_emulators_accept_our_requests(aws: Emulator) -> None:
    async with client_of(aws.url) as client:
        with pytest.raises(ServiceRefusal) as refused:
            await client.call("DescribeTable", {"TableName": "there-is-none"})
    assert refused.value.error == "ResourceNotFoundException"
