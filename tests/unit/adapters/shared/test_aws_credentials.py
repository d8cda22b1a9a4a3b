import pytest

from conveyor.adapters.shared.aws_credentials import Keys, usual_credentials, usual_region
from conveyor.errors import RefusedToStart


def test_the_variables_of_aws_are_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_CREDENTIAL_EXPIRATION", raising=False)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    assert usual_credentials("s3:")() == Keys("id", "secret")


def test_the_end_of_credentials_in_variables_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2099-01-01T00:00:00Z")
    found = usual_credentials("s3:")()
    assert found.token == "token"
    assert found.expires_at
    assert found.expires_at.year == 2099


def test_without_credentials_or_region_the_start_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(RefusedToStart, match="AWS_ACCESS_KEY_ID"):
        usual_credentials("s3:")
    with pytest.raises(RefusedToStart, match="AWS_REGION"):
        usual_region("s3:")
