"""Server-sent events, read line by line."""

from conveyor.client.events import Event, EventReader


def _fed(*lines: bytes) -> list[Event]:
    reader = EventReader()
    return [event for line in lines if (event := reader.feed(line))]


def test_events_are_read_from_lines_whatever_their_endings() -> None:
    for end in (b"\n", b"\r\n"):
        lines = [b": hello", b"", b"id: 7", b"event: progress", b'data: {"a":', b"data:1}", b""]
        assert _fed(*(line + end for line in lines)) == [Event("7", b'{"a":\n1}')]


def test_an_event_that_is_cut_is_none_and_an_id_lasts() -> None:
    assert _fed(b"id: 1\n", b"data: {}\n") == []
    assert _fed(b"id: 1\n", b"data: a\n", b"\n", b"data: b\n", b"\n") == [
        Event("1", b"a"),
        Event("1", b"b"),
    ]
