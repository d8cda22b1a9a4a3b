"""Messages of the control queue: background work, and whose it is."""

from collections.abc import Mapping

import msgspec

Line = tuple[str, str]  # a kind of message, and a caller


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of background work.

    Of one kind and subject at most one message is live. Callers share the places in which messages
    are worked on; those of no caller share them as if they were one.
    """

    kind: str
    subject: str
    about: Mapping[str, str]
    caller: str = ""

    @property
    def line(self) -> Line:
        return self.kind, self.caller
