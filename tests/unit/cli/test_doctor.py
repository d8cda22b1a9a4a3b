"""The last sentence of the doctor."""

import pytest

from conveyor.cli.doctor import in_a_sentence
from conveyor.domain.audit import AuditSummary

SILENT = "The gateway does not respond: no page can be fetched."


@pytest.mark.parametrize(
    ("checked", "sentence"),
    [
        (AuditSummary(gateway_responds=True), "All is well."),
        (AuditSummary(), "All is well; the gateway was not tried."),
        (AuditSummary(notes=1, gateway_responds=True), "All is well, apart from the notes above."),
        (
            AuditSummary(repairs=1, gateway_responds=True),
            "Nothing is wrong: the sweeper will repair 1 thing by itself.",
        ),
        (
            AuditSummary(wrong=1, repairs=1, gateway_responds=True),
            "1 thing is wrong, listed above with what to do.",
        ),
        (
            AuditSummary(wrong=2, gateway_responds=False),
            "2 things are wrong, listed above with what to do. " + SILENT,
        ),
    ],
)
def test_the_last_sentence_says_how_it_is_and_tells_of_the_gateway(
    checked: AuditSummary, sentence: str
) -> None:
    assert in_a_sentence(checked) == sentence
