"""Locators in rows on DynamoDB, which would otherwise repeat the ids in the key of the row."""

import msgspec
import pytest

from conveyor.adapters.aws.dynamodb.task_items import NewParts, TaskRow, packed, row_of
from conveyor.adapters.aws.dynamodb.task_keys import row_key, shard_of
from conveyor.adapters.aws.item_size import item_size
from conveyor.domain.job import RunPlace
from conveyor.domain.task import StoredBody, TaskStatus
from conveyor.testing.factories import JOB, OTHER_RUN, RUN, a_task

PLACE = RunPlace(JOB, 8)


def a_row(locator: str) -> TaskRow:
    body = StoredBody(locator=locator, length=1, checksum="0" * 64, format="html")
    task = msgspec.structs.replace(a_task(), status=TaskStatus.SUCCESSFUL, result=body)
    key = row_key(PLACE, RUN, task.id)
    return TaskRow(key=key, task=task, shard=shard_of(PLACE, task.id))


TASK = a_task().id


@pytest.mark.parametrize(
    "locator",
    [
        f"s3:jobs/{JOB}/runs/{RUN}/{TASK}.00000001.abcdefghij",
        f"s3:jobs/{JOB}/runs/{OTHER_RUN}/{TASK}.00000001.abcdefghij",  # an inherited result
        "s3:~j/~r/~t/~~/~",
        f"~{JOB}~",
        f"{RUN}{RUN}",
        "",
    ],
)
def test_a_locator_is_read_as_it_was_written(locator: str) -> None:
    item = packed(a_row(locator), NewParts("0")).item
    result = row_of(item, PLACE).task.result
    assert result is not None
    assert result.locator == locator


def test_ids_of_the_row_are_not_repeated_in_its_locator() -> None:
    short = item_size(packed(a_row("x"), NewParts("0")).item)
    locator = f"s3:jobs/{JOB}/runs/{RUN}/{TASK}.00000001.abcdefghij"
    assert item_size(packed(a_row(locator), NewParts("0")).item) < short + 45
