"""The encryption key in AWS KMS, as emulators have it: made there, wrapped here, moved both ways."""

import json
import sys
from pathlib import Path

import pytest

from conveyor.adapters.aws.kms import KmsKeyProvider
from conveyor.errors import RefusedToStart, Unavailable
from tests.e2e.conftest import FAST_RETRIES, SHORT_GRACE, client_of
from tests.e2e.polling import ended
from tests.e2e.test_keys import conveyor, submit
from tests.emulators import Emulator
from tests.harness.programs import Program, service

KEY = "my-key"
BASE = FAST_RETRIES | SHORT_GRACE


@pytest.fixture
def key_id(aws: Emulator) -> str:
    made: str = aws.client("kms").create_key()["KeyMetadata"]["KeyId"]
    return made


def set_to(aws: Emulator, encryption: str) -> dict[str, str]:
    return dict(aws.environ) | BASE | {"CONVEYOR_ENCRYPTION": encryption}


async def test_a_key_is_made_wrapped_and_opened_again(
    aws: Emulator, key_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in aws.environ.items():
        monkeypatch.setenv(name, value)
    key, kept = await KmsKeyProvider(key_id).new_key()
    assert len(key) == 32
    assert key not in kept
    assert await KmsKeyProvider(key_id).unwrap(kept) == key
    other, _ = await KmsKeyProvider(key_id).new_key()
    assert other != key
    with pytest.raises(Unavailable, match="KMS"):
        await KmsKeyProvider(key_id).unwrap(b"what KMS never wrapped")
    with pytest.raises(Unavailable, match="no-such-key"):
        await KmsKeyProvider("no-such-key").new_key()


def test_a_service_works_under_a_wrapped_key_and_moves_both_ways(
    aws: Emulator, key_id: str, gateway: Program, tmp_path: Path
) -> None:
    in_kms, in_file = set_to(aws, f"kms:{key_id}"), set_to(aws, "file:")
    jobs = []

    def serve(environ: dict[str, str]) -> None:
        with (
            service(data=tmp_path, gateway=gateway.url, environ=environ) as program,
            client_of(program, key=KEY) as api,
        ):
            jobs.append(submit(api))
            for job_id in jobs:
                assert ended(api, job_id)["stats"]["successful"] == 3
            rotated = conveyor("keys", "rotate-encryption", "--data", str(tmp_path))
            assert rotated.returncode == 0, rotated.stderr

    def is_wrapped() -> bool:
        content = (tmp_path / "encryption.key").read_bytes()
        return len(content) != 32 and json.loads(content)["encryption"] == f"kms:{key_id}"

    serve(in_kms)
    assert is_wrapped()
    refused = conveyor("dev", "--port", "0", "--data", str(tmp_path), environ=in_file)
    assert refused.returncode == 2
    assert "rotate-encryption" in refused.stderr
    for environ, wrapped in ((in_file, False), (in_kms, True)):
        moved = conveyor("keys", "rotate-encryption", "--data", str(tmp_path), environ=environ)
        assert moved.returncode == 0, moved.stderr
        assert f"re-encrypted\t{len(jobs)}" in moved.stdout
        assert is_wrapped() is wrapped
        serve(environ)


def test_a_kms_that_refuses_is_told(aws: Emulator, tmp_path: Path) -> None:
    environ = set_to(aws, "kms:no-such-key")
    refused = conveyor("dev", "--port", "0", "--data", str(tmp_path), environ=environ)
    assert refused.returncode == 2, refused.stderr
    assert "no-such-key" in refused.stderr
    assert "kms:Decrypt" in refused.stderr
    assert not (tmp_path / "encryption.key").exists()


def test_a_kms_that_is_not_there_is_told(tmp_path: Path) -> None:
    environ = BASE | {
        "CONVEYOR_ENCRYPTION": "kms:alias/mine",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "canary-secret",
    }
    refused = conveyor("dev", "--port", "0", "--data", str(tmp_path), environ=environ)
    assert refused.returncode == 2
    assert "alias/mine" in refused.stderr
    assert "AWS_*" in refused.stderr
    assert "canary-secret" not in refused.stderr
    assert not (tmp_path / "encryption.key").exists()


async def test_without_botocore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "botocore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(RefusedToStart, match=r"conveyor-batch\[aws\]"):
        await KmsKeyProvider("x").new_key()
