import pytest

from conveyor.adapters.aws.sqs.address import SqsAddress, parse_address

GOOD = {
    "//conveyor": SqsAddress(prefix="conveyor", table="conveyor-control"),
    "//conveyor/": SqsAddress(prefix="conveyor", table="conveyor-control"),
    "//Team_1-a?region=eu-west-1&table=rows": SqsAddress(
        prefix="Team_1-a", region="eu-west-1", table="rows"
    ),
    "//c?endpoint=http://127.0.0.1:4566": SqsAddress(
        prefix="c",
        endpoint="http://127.0.0.1:4566",
        table_endpoint="http://127.0.0.1:4566",
        region="us-east-1",
        table="c-control",
    ),
}
BAD = [
    "",
    "conveyor",
    "//",
    "//a.b",
    "//" + "a" * 41,
    "//a/b",
    "//a?region=",
    "//a?endpoint=ftp://host",
    "//a?endpoint=http://user:secret@host",
    "//a?table=t",
    "//a?unknown=1",
    "//user:secret@a",
    "//a#b",
]


@pytest.mark.parametrize("text", GOOD)
def test_an_address_names_the_queues_and_where_they_are(text: str) -> None:
    assert parse_address(text, {}) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert parse_address(text, {}) is None


def test_the_environment_leads_to_another_server_and_region() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://one:1/",
        "AWS_ENDPOINT_URL_SQS": "http://two:2/",
        "AWS_REGION": "eu-west-1",
    }
    assert parse_address("//a", environ) == SqsAddress(
        prefix="a",
        endpoint="http://two:2",
        table_endpoint="http://one:1",
        region="eu-west-1",
        table="a-control",
    )


def test_the_longest_names_of_queues_are_short_enough_for_sqs() -> None:
    address = parse_address("//" + "a" * 40, {})
    assert address is not None
    assert len(address.queue("run-" + "0" * 26)) <= 80
