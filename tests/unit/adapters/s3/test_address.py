import pytest

from conveyor.adapters.s3.address import Layout, S3Address, parse_address

AWS = {"AWS_REGION": "eu-west-1"}


def test_an_address_names_bucket_and_prefix() -> None:
    found = parse_address("//pages/team/a", AWS)
    assert found == S3Address(bucket="pages", prefix="team/a/", region="eu-west-1")


def test_an_address_may_name_endpoint_region_and_layout() -> None:
    text = "//pages?endpoint=http://127.0.0.1:9000/&region=local&layout=segments"
    assert parse_address(text, AWS) == S3Address(
        bucket="pages", endpoint="http://127.0.0.1:9000", region="local", layout=Layout.SEGMENTS
    )


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("HTTP://Minio.Example:80/", "http://minio.example"),
        ("https://Minio.Example:443", "https://minio.example"),
        ("http://minio:443", "http://minio:443"),
        ("http://minio:8080", "http://minio:8080"),
        ("http://[::1]:80", "http://[::1]"),
    ],
)
def test_an_endpoint_has_the_form_in_which_clients_send_its_host(given: str, endpoint: str) -> None:
    for found in (
        parse_address(f"//pages?endpoint={given}", {}),
        parse_address("//pages", {"AWS_ENDPOINT_URL_S3": given}),
    ):
        assert found
        assert found.endpoint == endpoint


@pytest.mark.parametrize(
    ("environ", "endpoint", "region"),
    [
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}, "", "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "us-west-2"}, "", "us-west-2"),
        ({"AWS_ENDPOINT_URL": "http://a:1/"}, "http://a:1", "us-east-1"),
        ({"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "http://b", None),
        ({}, "", ""),
    ],
)
def test_what_an_address_leaves_out_comes_from_the_usual_variables(
    environ: dict[str, str], endpoint: str, region: str | None
) -> None:
    found = parse_address("//pages", environ)
    assert found
    assert found.endpoint == endpoint
    assert region is None or found.region == region


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pages",
        "/pages",
        "//",
        "//UPPER",
        "//key:secret@pages",
        "//pages/a//b",
        "//pages/../b",
        "//pages/a b",
        "//pages?endpoint=ftp://a",
        "//pages?endpoint=http://a/path",
        "//pages?endpoint=http://user:password@a",
        "//pages?endpoint=http://a?b",
        "//pages?endpoint=http://a%23b",
        "//pages?region=",
        "//pages?layout=heap",
        "//pages?color=red",
        "//pages?layout",
        "//pages#part",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert parse_address(text, AWS) is None


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("//pages/a", "https://pages.s3.eu-west-1.amazonaws.com/a/k%2B1"),
        ("//my.pages", "https://s3.eu-west-1.amazonaws.com/my.pages/k%2B1"),
        ("//pages?endpoint=http://minio:9000", "http://minio:9000/pages/k%2B1"),
    ],
)
def test_the_bucket_is_in_the_host_where_its_certificate_covers_that(text: str, url: str) -> None:
    found = parse_address(text, AWS)
    assert found
    assert found.url_of("k+1") == url
