"""Encryption keys that AWS KMS creates and wraps: only KMS can unwrap the stored form.

Region, endpoint and credentials come from the usual AWS_* variables and files.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

from conveyor.errors import RefusedToStart, Unavailable

# KMS binds each wrapped key to this text, so it cannot follow a change of words.
CONTEXT = {"conveyor": "sealing"}
SECONDS = 10


class KmsKeyProvider:
    def __init__(self, key: str) -> None:
        self._key = key

    async def new_key(self) -> tuple[bytes, bytes]:
        created = await self._ask(
            lambda kms: kms.generate_data_key(
                KeyId=self._key, KeySpec="AES_256", EncryptionContext=CONTEXT
            )
        )
        return created["Plaintext"], created["CiphertextBlob"]

    async def unwrap(self, stored: bytes) -> bytes:
        opened = await self._ask(
            # Without `KeyId`: an alias may point to another key by now, and the blob names its own.
            lambda kms: kms.decrypt(CiphertextBlob=stored, EncryptionContext=CONTEXT)
        )
        key: bytes = opened["Plaintext"]
        return key

    async def _ask(self, question: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask_here, question)

    def _ask_here(self, question: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        try:
            from botocore.config import Config  # noqa: PLC0415 - an extra
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
            from botocore.session import get_session  # noqa: PLC0415
        except ImportError:
            raise RefusedToStart(
                "settings: 'encryption' names a key of KMS, which needs botocore: install it with "
                "`pip install 'conveyor-batch[aws]'`"
            ) from None
        bounds = Config(
            connect_timeout=SECONDS, read_timeout=SECONDS, retries={"total_max_attempts": 3}
        )
        region = os.environ.get("AWS_REGION") or None  # botocore itself ignores AWS_REGION
        try:
            return question(get_session().create_client("kms", region_name=region, config=bounds))
        except (BotoCoreError, ClientError, ValueError) as error:
            raise Unavailable(
                f"KMS does not give the encryption key {self._key!r}: {error}. Check 'encryption', the "
                "AWS_* variables, and that kms:GenerateDataKey and kms:Decrypt are allowed"
            ) from None
