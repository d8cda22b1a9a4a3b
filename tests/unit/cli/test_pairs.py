"""Options of the form name=value."""

import pytest

from conveyor.cli.pairs import labels, parameters
from conveyor.errors import RefusedToStart


def test_metadata_is_given_as_pairs() -> None:
    assert labels([]) is None
    assert labels(["team=news", "query=a=b"]) == {"team": "news", "query": "a=b"}
    with pytest.raises(RefusedToStart, match=r"key=value, like team=news, got 'team'"):
        labels(["team"])


def test_custom_headers_are_an_object() -> None:
    assert parameters([]) is None
    given = parameters(["js_render=true", 'custom_headers={"Referer": "a=b"}'])
    assert given == {"js_render": "true", "custom_headers": {"Referer": "a=b"}}
    with pytest.raises(RefusedToStart, match="must be a JSON object"):
        parameters(["custom_headers=Referer"])
