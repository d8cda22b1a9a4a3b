"""Codes of failed pages: what each means, and what its caller can do about it."""

from typing import NamedTuple


class PageCode(NamedTuple):
    when: str
    remedy: str


RENEW = "Renew the subscription or use a gateway key that is accepted, then rerun the failed tasks."
LATER = "Nothing: the task is tried again by itself, and this is not an attempt."
STRONGER = (
    "Rerun the group with `js_render=true`, `premium_proxy=true`, or both; if its tasks have"
    " `mode=auto`, without `mode`."
)
SITE = "Try the page in a browser. If it works there, rerun the group later."
OPERATOR = "Rerun the group. If it fails again, the operator looks at the gateway and the network."

PAGE_CODES: dict[str, PageCode] = {
    # Of ZenRows.
    "REQS001": PageCode(
        "The gateway does not fetch pages of this domain.", "Leave the domain out."
    ),
    "REQS002": PageCode(
        "The page cannot be fetched without JavaScript or a premium proxy.", STRONGER
    ),
    "REQS004": PageCode(
        "A scraper parameter is not valid.",
        "Correct the parameters; `conveyor params` lists them. Then rerun the group with them.",
    ),
    "REQS006": PageCode(
        "The gateway does not accept the request.",
        "Correct the URL, the method, the body or the parameters as `detail` says.",
    ),
    "REQS007": PageCode(
        "The gateway does not extract data from this target.",
        "Rerun the group without the parameters that extract data (`--param extract=` removes one).",
    ),
    "REQS008": PageCode("The gateway refuses this page.", "Leave the page out."),
    "RESP001": PageCode("The gateway could not get the content of the page.", STRONGER),
    "RESP002": PageCode(
        "The site says that the page does not exist (404).", "Correct or remove the URL."
    ),
    "RESP003": PageCode(
        "The gateway could not parse the page.",
        "Rerun the group, if need be without the parameters that extract data.",
    ),
    "RESP004": PageCode(
        "The CSS extractor is not valid.", "Correct `css_extractor`, and rerun the group with it."
    ),
    "RESP005": PageCode(
        "The page is larger than the plan of the account allows.",
        "Use a larger plan, or leave the page out.",
    ),
    "RESP006": PageCode("The site showed a captcha.", STRONGER),
    "RESP007": PageCode("The host of the URL does not exist.", "Correct the host of the URL."),
    "RESP008": PageCode("The site cannot be reached, or breaks the connection.", SITE),
    "no_data_extracted": PageCode(
        "Nothing of what should be extracted is on the page.",
        "Compare the parameters that extract data with the page.",
    ),
    "CTX0002": PageCode(
        "The page took longer than the gateway waits.",
        "Rerun the group, if it uses `wait` or `wait_for` with less of it.",
    ),
    "AUTH001": PageCode("The request had no gateway key.", RENEW),
    "AUTH002": PageCode("The gateway key is not valid.", RENEW),
    "AUTH003": PageCode("The subscription of the account has ended.", RENEW),
    "AUTH004": PageCode(
        "The account has no credits left.", "Buy credits, then rerun the failed tasks."
    ),
    "AUTH005": PageCode("The trial or plan of the account has ended.", RENEW),
    "AUTH006": PageCode("The account has too many requests at a time.", LATER),
    "AUTH008": PageCode("The account makes too many requests a second.", LATER),
    "AUTH009": PageCode(
        "The e-mail address of the account is not verified.",
        "Verify it at the gateway, then rerun the failed tasks.",
    ),
    "AUTH010": PageCode(
        "The plan of the account lacks a feature that the task uses.",
        "Use another plan, or rerun the group without the parameter.",
    ),
    "BLK0001": PageCode("The gateway has blocked the address of the service for minutes.", LATER),
    "api_key_cap_reached": PageCode(
        "The gateway key has reached its spending cap.",
        "Raise the cap or use another key, then rerun the failed tasks.",
    ),
    "payment_required": PageCode(
        "The account has no credits left.", "Buy credits, then rerun the failed tasks."
    ),
    "subscription_inactive": PageCode("The subscription of the account is not active.", RENEW),
    # Of sites that are asked directly.
    "target_refused": PageCode(
        "The site refuses the page (401, 402, 403, 407 or 451).",
        "Send what the site asks for by `custom_headers`, or use a gateway with proxies.",
    ),
    "target_missing": PageCode(
        "The site does not have the page (404, 410 or another 4xx), or redirects to a URL that is"
        " not valid.",
        "Correct or remove the URL.",
    ),
    "target_throttled": PageCode(
        "The site asked for fewer requests until all attempts were used.",
        "Rerun the group later, or submit its URLs as a job with a smaller `max_per_host`.",
    ),
    "target_timeout": PageCode("The site answered that it took too long (408 or 504).", SITE),
    "target_failed": PageCode("The site failed (5xx).", SITE),
    "target_not_allowed": PageCode(
        "The address or port of the site is not one that the service may connect to.",
        "Use a public address. The operator can allow others by `direct_allow_private` and"
        " `direct_ports`.",
    ),
    "too_many_redirects": PageCode("The page redirects more than 10 times.", SITE),
    "robots_disallowed": PageCode(
        "The robots.txt of the site does not allow the page.", "Leave the page out."
    ),
    "robots_unreachable": PageCode(
        "The robots.txt of the site cannot be read, so nothing of the site may be.",
        "Rerun the group later.",
    ),
    "unsupported_parameter": PageCode(
        "The task has a scraper parameter that needs a gateway with a browser or proxies.",
        "Rerun the group without the parameter, or use another gateway.",
    ),
    "host_resting": PageCode("The site asked for a pause before further requests.", LATER),
    # Of Conveyor, with any gateway.
    "gateway_unreachable": PageCode(
        "No connection to the gateway, or site, was possible.", OPERATOR
    ),
    "gateway_timeout": PageCode("The gateway, or site, did not answer in time.", OPERATOR),
    "gateway_garbled": PageCode(
        "The answer of the gateway, or site, was cut off or is not valid HTTP.", OPERATOR
    ),
    "body_too_large": PageCode(
        "The page is larger than the service stores.",
        "Leave the page out, or the operator raises the limit.",
    ),
    "worker_lost": PageCode(
        "Ten workers died while they held the task.",
        "Rerun the task. If it fails again, the operator looks at why workers die.",
    ),
}
