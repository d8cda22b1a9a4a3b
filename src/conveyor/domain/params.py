"""Scraper parameters: which are accepted, and how they are stored and merged.

Their stored form is a JSON object whose values are all strings, with sorted keys.
"""

import re
from collections.abc import Mapping

import msgspec

from conveyor.domain.json_bodies import LONGEST_SHOWN, nearest

BOOLEANS = frozenset(
    {"js_render", "premium_proxy", "original_status", "json_response", "autoparse"}
)
NUMBERS = {"session_id": 99_999, "wait": 30_000}
CHOICES = {
    "mode": frozenset({"auto"}),
    "response_type": frozenset({"markdown", "plaintext", "pdf"}),
    "extract": frozenset({"auto", "native", "standard"}),
}
TEXTS = frozenset(
    {
        "allowed_status_codes",
        "block_resources",
        "css_extractor",
        "extract_fields",
        "js_instructions",
        "outputs",
        "proxy_country",
        "wait_for",
    }
)
HEADERS = "custom_headers"
KNOWN = frozenset({*BOOLEANS, *NUMBERS, *CHOICES, *TEXTS, HEADERS})
MEANINGS = {
    "allowed_status_codes": "Statuses of the target, with commas, whose pages count as results.",
    "autoparse": "Return the data of the page as JSON instead of its HTML.",
    "block_resources": "Kinds of resources that the browser must not load, with commas.",
    "css_extractor": "A JSON object of names and CSS selectors: return what they select.",
    "custom_headers": "Headers to send to the target: a JSON object of strings.",
    "extract": "Return structured data instead of the page, extracted by this method.",
    "extract_fields": "Which fields to extract.",
    "js_instructions": "A JSON array of what the browser must do: click, fill, scroll, wait.",
    "js_render": "Render the page in a browser.",
    "json_response": "Return JSON with the page and the requests that it made.",
    "mode": "Let the gateway choose the browser and the proxy for each page.",
    "original_status": "Return the status of the target instead of the gateway's.",
    "outputs": "Kinds of data to return instead of the page, with commas.",
    "premium_proxy": "Send the request from a residential address.",
    "proxy_country": "The country to send the request from: two letters, like us.",
    "response_type": "Return the page in this format instead of HTML.",
    "session_id": "Requests with the same number are sent from the same address.",
    "wait": "Milliseconds to wait in the browser before the page is returned.",
    "wait_for": "A CSS selector: wait in the browser until it selects something.",
}

LONGEST_TEXT = 64 * 1024
MOST_HEADERS = 32
MOST_HEADER_BYTES = 8 * 1024
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
NOT_WITH_POST = ("js_render", "js_instructions", "json_response")

REMOVED = ""  # the value of a task whose job's parameter of that name is left out
ASKS_FOR_NOTHING = frozenset({REMOVED, "0", "false"})  # values that leave a parameter off

Params = dict[str, str]
NO_PARAMS: Params = {}  # never changed

# What fetching a page as it is, without a scraping gateway, can honour.
HONOURED_BY_DIRECT = frozenset({HEADERS, "original_status", "allowed_status_codes"})
# The parameters that each gateway honours, by the scheme of the setting `gateway`. There is no
# default: a gateway that ignored a parameter would return another page than the caller asked for.
HONOURED = {"http": KNOWN, "https": KNOWN, "direct": HONOURED_BY_DIRECT}


BAD_VALUE = "invalid_param_value"


class BadParam(Exception):
    """A parameter is unknown, has a bad value or does not go with another."""

    def __init__(self, key: str, reason: str = BAD_VALUE, given: object = msgspec.UNSET) -> None:
        super().__init__(f"{reason}: {key}")
        self.reason = reason
        self.key = key
        self.given = given  # UNSET if the value as such is valid


def values_of(key: str) -> str:
    """The values that a parameter can have, in words."""
    if key in BOOLEANS:
        return "true or false"
    if key in NUMBERS:
        return f"0 to {NUMBERS[key]:,}"
    if key in CHOICES:
        return ", ".join(sorted(CHOICES[key]))
    return "JSON object" if key == HEADERS else "text"


def canonical(given: Mapping[str, object], *, removable: bool = False) -> Params:
    """The stored form of given parameters; `BadParam` names the first that is not valid.

    Of removable ones null is the value that removes a parameter.
    """
    return {
        key: REMOVED
        if removable and given[key] is None and key in KNOWN
        else _canonical_value(key, given[key])
        for key in sorted(given)
    }


def explained(bad: BadParam) -> str:
    """Why a parameter is refused, for a message.

    Texts and headers are not shown: a script for the browser or a header may hold a password.
    """
    if bad.reason == "unknown_param":
        return bad.reason + nearest(bad.key, KNOWN)
    if bad.reason != BAD_VALUE:
        return bad.reason
    if bad.key == HEADERS:
        must = (
            f"a JSON object of at most {MOST_HEADERS} headers and {MOST_HEADER_BYTES} bytes, with "
            "names that are HTTP tokens and values that are texts without control characters"
        )
        return f"{BAD_VALUE}: must be {must}"
    if bad.key in TEXTS:
        return f"{BAD_VALUE}: must be text of at most {LONGEST_TEXT} characters without U+0000"
    if bad.given is msgspec.UNSET:
        return f"{BAD_VALUE}: must be given without js_render and premium_proxy"
    text = bad.given if isinstance(bad.given, str) else msgspec.json.encode(bad.given).decode()
    known = ("true", "false") if bad.key in BOOLEANS else sorted(CHOICES.get(bad.key, ()))
    must = f"must be {values_of(bad.key)}, got {text[:LONGEST_SHOWN]!r}"
    return f"{BAD_VALUE}: {must}{nearest(text.lower(), known)}"


def check_together(params: Params, method: str) -> None:
    """Refuse combinations that the gateway refuses. `params` are those of job and task, merged."""
    if "mode" in params and ("js_render" in params or "premium_proxy" in params):
        raise BadParam("mode")
    if method == "POST":
        for key in NOT_WITH_POST:
            if params.get(key, "false") != "false":
                raise BadParam(key, "method_param_conflict")


def check_honoured(params: Params, honoured: frozenset[str]) -> None:
    """Refuse parameters that the gateway cannot honour, rather than return another page."""
    for key, value in params.items():
        if key not in honoured and value not in ASKS_FOR_NOTHING:
            raise BadParam(key, "unsupported_param")


def merged(job: Params, task: Params) -> Params:
    """The job's parameters, replaced or removed by the task's; custom headers are one parameter."""
    return {key: value for key, value in {**job, **task}.items() if value != REMOVED}


def result_format(params: Params) -> str:
    """The format of a result, from the parameters that shape it."""
    if kind := params.get("response_type"):
        return kind
    if params.get("autoparse") == "true" or params.get("json_response") == "true":
        return "json"
    return "json" if params.get("css_extractor") or params.get("extract") else "html"


def load(text: str | None) -> Params:
    """Parameters from their stored form."""
    return msgspec.json.decode(text, type=Params) if text else {}


def dump(params: Params) -> str | None:
    """The stored form of parameters; None when there are none."""
    return msgspec.json.encode(params).decode() if params else None


def headers(params: Params) -> dict[str, str]:
    """The custom headers among stored parameters."""
    return load(params.get(HEADERS))


def _canonical_value(key: str, value: object) -> str:
    if key not in KNOWN:
        raise BadParam(key, "unknown_param")
    if key == HEADERS:
        return _canonical_headers(value)
    text = _scalar_text(key, value)
    if key in BOOLEANS:
        text = text.lower()  # clients of several languages send "True" and "TRUE" as well
    if not _is_allowed(key, text):
        raise BadParam(key, given=text)
    return text


def _scalar_text(key: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return value
        case _:
            raise BadParam(key, given=value)


def _is_allowed(key: str, text: str) -> bool:
    if key in BOOLEANS:
        return text in {"true", "false"}
    if key in NUMBERS:
        return text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= NUMBERS[key]
    if key in CHOICES:
        return text in CHOICES[key]
    return "\x00" not in text and len(text) <= LONGEST_TEXT


def _canonical_headers(value: object) -> str:
    if isinstance(value, str):
        value = _headers_from_text(value)
    if not isinstance(value, Mapping) or len(value) > MOST_HEADERS:
        raise BadParam(HEADERS)
    for name, content in value.items():
        is_text = isinstance(content, str) and HEADER_VALUE.fullmatch(content)
        if not (is_text and HEADER_NAME.fullmatch(name)):
            raise BadParam(HEADERS)
    encoded = msgspec.json.encode(value)
    if len(encoded) > MOST_HEADER_BYTES:
        raise BadParam(HEADERS)
    return encoded.decode()


def _headers_from_text(text: str) -> object:
    """Headers as the JSON text of their object, which is how the official CLI sends them."""
    if len(text) > LONGEST_TEXT:
        raise BadParam(HEADERS)
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        raise BadParam(HEADERS) from None
