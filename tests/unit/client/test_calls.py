"""Options of calls: known by name, so that a slip is not ignored."""

import pytest

from conveyor.client import Conveyor
from conveyor.client.models import FileJobOptions, JobOptions
from conveyor.domain.submission import Submission

# Fields of a submission that are no options of the client, each with the reason.
LEFT_OUT = {
    "type": "a job with a schedule is a scheduled one",
    "status": "`submit` and `open` set it",
    "tasks": "the first parameter of `submit`",
    "file_input_id": "`submit_file` sets it",
    "async": "the client submits long lists in parts, so it needs no early answer",
    "step_functions": "only a state machine of Step Functions has the token",
}


def test_every_field_of_a_submission_is_an_option_or_left_out_for_a_reason() -> None:
    fields = set(Submission.__struct_encode_fields__)
    own = JobOptions.__optional_keys__ - {"idempotency_key"}  # a header
    options = {"zenrows_params" if name == "params" else name for name in own}
    assert not options & LEFT_OUT.keys()
    assert options | LEFT_OUT.keys() == fields - {"on_invalid"}  # of lists in files only
    assert "on_invalid" in FileJobOptions.__optional_keys__


def test_an_unknown_option_is_refused_at_run_time_too() -> None:
    with Conveyor("http://127.0.0.1:1/v1") as conveyor:
        with pytest.raises(TypeError, match=r"must be among external_id.* got 'retires'"):
            conveyor.submit(["https://a.example"], retires=3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="got 'column'"):
            conveyor.upload("list.csv", column="link")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="among code, host, reason, got 'hosts'"):
            list(conveyor.results("j", hosts=["a.example"]))  # type: ignore[call-arg]
