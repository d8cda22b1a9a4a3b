"""What a bucket needs: to exist, CORS for browsers, and rules that clear what crashes leave.

Rules of others in the bucket stay as they are; those of Conveyor are known by their ids.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session
from msgspec.structs import replace

from conveyor.adapters.s3.address import S3Address
from conveyor.adapters.shared.aws_credentials import usual_region
from conveyor.errors import RefusedToStart

BOUNDS = Config(
    connect_timeout=5,
    read_timeout=30,
    signature_version="s3v4",
    retries={"mode": "standard", "total_max_attempts": 4},
)
# AWS creates buckets here unless told otherwise, and refuses to be told so.
DEFAULT_REGION = "us-east-1"
# Objects that no row refers to for longer than this are orphans of a crash. Exports are kept for 36
# hours, and staged lists are read within minutes; one that waits for a month is given up.
ORPHANS = {"exports/": 2, "lists/": 30}  # prefix -> days

Rule = dict[str, Any]


def set_up_bucket(address: S3Address, origins: Sequence[str], *, has_blobs: bool) -> list[str]:
    """Create or complete a bucket; say what was done, a line each. Repeating it changes nothing.

    `has_blobs`: whether lists and exports are stored at the address, which rules clear.
    """
    try:
        return list(_Setup(address, origins, has_blobs=has_blobs).run())
    except (BotoCoreError, ClientError) as error:
        raise RefusedToStart(
            f"the bucket {address.bucket} cannot be set up: {error}. Check the AWS_* variables, and "
            "that s3:CreateBucket, s3:ListBucket, s3:GetBucketCORS, s3:PutBucketCORS, "
            "s3:GetLifecycleConfiguration and s3:PutLifecycleConfiguration are allowed"
        ) from error


class _Setup:
    def __init__(self, address: S3Address, origins: Sequence[str], *, has_blobs: bool) -> None:
        if not address.region:
            address = replace(address, region=usual_region("s3:"))
        self._address = address
        self._origins = origins
        self._has_blobs = has_blobs
        style = "path" if address.is_path_style else "virtual"
        self._s3 = Session().create_client(
            "s3",
            region_name=address.region,
            endpoint_url=address.endpoint or None,
            config=BOUNDS.merge(Config(s3={"addressing_style": style})),
        )

    def run(self) -> list[str]:
        return [self._bucket(), self._cors(), self._lifecycle()]

    def _bucket(self) -> str:
        bucket, region = self._address.bucket, self._address.region
        try:
            self._s3.head_bucket(Bucket=bucket)
        except ClientError as error:
            if _status(error) != 404:
                raise
        else:
            self._check_prefix()
            return "exists"
        place = {"CreateBucketConfiguration": {"LocationConstraint": region}}
        is_default = region == DEFAULT_REGION
        self._s3.create_bucket(Bucket=bucket, **({} if is_default else place))
        return f"created in {region}"

    def _check_prefix(self) -> None:
        """Refuse a bucket of others: without a prefix our rules would hold for their objects."""
        bucket, prefix = self._address.bucket, self._address.prefix
        if prefix or any(rule.get("ID") == _rule_id(prefix) for rule in self._lifecycle_rules()):
            return
        if self._s3.list_objects_v2(Bucket=bucket, MaxKeys=1).get("KeyCount"):
            raise RefusedToStart(
                f"the bucket {bucket} has objects that may not be Conveyor's, and lifecycle rules "
                f"would remove some of them: name a prefix, as in s3://{bucket}/conveyor"
            )

    def _cors(self) -> str:
        """Browsers upload lists and download results by presigned URLs."""
        rule: Rule = {
            "ID": "conveyor",
            "AllowedOrigins": list(self._origins),
            "AllowedMethods": ["GET", "HEAD", "PUT"],
            "AllowedHeaders": ["*"],
            "ExposeHeaders": ["ETag", "Content-Disposition", "Content-Range"],
            "MaxAgeSeconds": 3600,
        }
        known = self._known(self._s3.get_bucket_cors, "CORSRules")
        return self._put(
            f"CORS rules for {', '.join(self._origins)}",
            known,
            [rule],
            lambda rules: self._s3.put_bucket_cors(
                Bucket=self._address.bucket, CORSConfiguration={"CORSRules": rules}
            ),
        )

    def _lifecycle(self) -> str:
        prefix = self._address.prefix
        rules = [
            _lifecycle_rule(prefix, {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}),
            *(
                _lifecycle_rule(prefix + folder, {"Expiration": {"Days": days}})
                for folder, days in ORPHANS.items()
                if self._has_blobs
            ),
        ]
        return self._put(
            "lifecycle rules",
            self._lifecycle_rules(),
            rules,
            lambda all_rules: self._s3.put_bucket_lifecycle_configuration(
                Bucket=self._address.bucket, LifecycleConfiguration={"Rules": all_rules}
            ),
        )

    def _lifecycle_rules(self) -> list[Rule]:
        return self._known(self._s3.get_bucket_lifecycle_configuration, "Rules")

    def _known(self, get: Callable[..., Mapping[str, Any]], member: str) -> list[Rule]:
        try:
            rules: list[Rule] = get(Bucket=self._address.bucket)[member]
        except ClientError as error:
            if _status(error) != 404:
                raise
            return []
        return rules

    def _put(
        self, what: str, known: list[Rule], ours: list[Rule], put: Callable[[list[Rule]], object]
    ) -> str:
        ids = {rule["ID"] for rule in ours}
        if all(rule in known for rule in ours):
            return f"has the {what}"
        put([rule for rule in known if rule.get("ID") not in ids] + ours)
        return f"set the {what}"


def _lifecycle_rule(prefix: str, action: Rule) -> Rule:
    return {
        "ID": _rule_id(prefix),
        "Status": "Enabled",
        "Filter": {"Prefix": prefix},
        **action,
    }


def _rule_id(prefix: str) -> str:
    return f"conveyor {prefix}".strip()


def _status(error: ClientError) -> int:
    status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status
