"""Which failures count together, and how many groups a run may have."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.domain import failure_groups
from conveyor.domain.failure import FailureReason
from conveyor.domain.failure_groups import (
    LONGEST_CODE,
    LONGEST_HOST,
    MOST_GROUPS,
    FailureExample,
    FailureGroup,
    FailureKey,
    failure_example,
    failure_key,
    listed,
    with_failure,
)
from conveyor.domain.ids import TaskId

BLOCKED, TIMEOUT = FailureReason.BLOCKED, FailureReason.TIMEOUT
HOSTS = st.sampled_from(["a.example", "b.example", "c.example", "d.example"])
FAILURES = st.lists(
    st.builds(FailureKey, HOSTS, st.sampled_from(FailureReason), st.sampled_from("xy"))
)


def a_group(
    host: str, count: int = 1, reason: FailureReason = BLOCKED, code: str = "RESP001"
) -> FailureGroup:
    return FailureGroup(
        host=host, reason=reason, code=code, count=count, example=TaskId(f"of {host}")
    )


def counted(failures: list[FailureKey]) -> dict[FailureKey, FailureGroup]:
    groups: dict[FailureKey, FailureGroup] = {}
    for number, key in enumerate(failures):
        group = with_failure(groups, key, TaskId(str(number)))
        groups[group.key] = group
    return groups


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        ('{"code":"RESP001","detail":"x"}', "RESP001"),
        ('{"code":7}', ""),
        (r'{"code":"\u0000RESP\n001"}', "RESP001"),
        ('{"title":"no code"}', ""),
        ('"a text"', ""),
        ("no JSON", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_a_failure_counts_by_host_reason_and_the_code_of_its_problem(
    problem: str | None, code: str
) -> None:
    assert failure_key("a.example:81", TIMEOUT, problem) == FailureKey(
        "a.example:81", TIMEOUT, code
    )


def test_a_failure_without_a_reason_counts_as_other() -> None:
    assert failure_key("a.example", None, None).reason is FailureReason.OTHER


def test_what_others_chose_of_a_key_is_cut() -> None:
    key = failure_key("a" * 3000, BLOCKED, f'{{"code":"{"b" * 3000}"}}')
    assert (len(key.host), len(key.code)) == (LONGEST_HOST, LONGEST_CODE)


def test_a_failure_counts_in_its_group_which_keeps_its_first_example() -> None:
    key = FailureKey("a.example", BLOCKED, "RESP001")
    group = with_failure({}, key, TaskId("first"))
    assert (group.key, group.count, group.example) == (key, 1, "first")
    group = with_failure({key: group}, key, TaskId("second"))
    assert (group.key, group.count, group.example) == (key, 2, "first")


def test_beyond_the_most_groups_failures_count_as_other_of_their_reason() -> None:
    own = [FailureKey(f"{n}.example", BLOCKED, "x") for n in range(MOST_GROUPS)]
    more = [FailureKey("more.example", why, "x") for why in (BLOCKED, TIMEOUT, TIMEOUT)]

    groups = counted([*own, *more, own[0]])

    assert len(groups) == MOST_GROUPS + 2
    assert groups[own[0]].count == 2
    assert groups[FailureKey("", BLOCKED, "other")].count == 1
    assert groups[FailureKey("", TIMEOUT, "other")].count == 2


@given(failures=FAILURES)
def test_the_groups_of_a_reason_add_up_to_its_failures(failures: list[FailureKey]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failure_groups, "MOST_GROUPS", 3)
        groups = counted(failures)
        for found in (list(groups.values()), listed(groups.values())):
            assert sum(not group.key.is_other for group in found) <= 3
            for why in FailureReason:
                of_it = sum(group.count for group in found if group.reason is why)
                assert of_it == sum(key.reason is why for key in failures)
        others = [group for group in groups.values() if group.key.is_other]
        assert not others or len(groups) - len(others) == 3, "other, before the groups were full"


def test_the_largest_groups_are_listed_first_and_other_last() -> None:
    other = a_group("", 99, code="other")
    groups = [a_group("b.example", 2), other, a_group("a.example", 2), a_group("c.example", 7)]
    assert [group.host for group in listed(groups)] == ["c.example", "a.example", "b.example", ""]


def test_groups_of_several_writers_are_one_and_the_smallest_count_as_other() -> None:
    ours = [a_group(f"{n}.example", 3) for n in range(MOST_GROUPS)]
    theirs = [a_group("0.example", 5), a_group("few.example", 1), a_group("many.example", 4)]

    merged = listed([*ours, *theirs, a_group("", 2, code="other")])

    assert (merged[0].host, merged[0].count) == ("0.example", 8)
    assert merged[1].host == "many.example"
    assert len(merged) == MOST_GROUPS + 1
    assert (merged[-1].key, merged[-1].count) == (FailureKey("", BLOCKED, "other"), 2 + 1 + 3)


def test_an_example_has_the_beginning_of_what_a_gateway_said() -> None:
    long = msgspec.json.encode({"title": "t" * 9_000, "detail": "d" * 60_000}).decode()
    example = failure_example("https://a.test/", long)
    assert (len(example.title), len(example.detail)) == (500, 500)
    for unreadable in (None, "", "not JSON", '{"title": 1}'):
        assert failure_example("https://a.test/", unreadable) == FailureExample("https://a.test/")
