"""`conveyor webhook` and `conveyor signing-keys`: webhooks of jobs, and their keys."""

from typing import Annotated

import msgspec
import typer

from conveyor.cli import output
from conveyor.cli.connect import Endpoint, JobId, Json, with_service
from conveyor.cli.jobs import Listed, list_rows
from conveyor.cli.output import plain
from conveyor.client import NewSigningKey, SigningKeyInUse, SigningKeys, Webhook, WebhookEvent
from conveyor.client.models import WebhookTest
from conveyor.client.transport import decoded

NOT_DELIVERED = 1

Receiver = Annotated[str, typer.Argument(metavar="URL", help="The receiver: an https URL.")]
Signature = Annotated[
    bool, typer.Option("--signature", help="Sign deliveries; see `conveyor signing-keys rotate`.")
]

webhook = typer.Typer(
    help="The webhook of a job: set, test or clear it; list and repeat its deliveries.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
signing_keys = typer.Typer(
    help="The keys that sign your webhook deliveries: list or rotate them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@webhook.command()
@with_service
def get(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Show the webhook of a job."""
    with service.client() as client:
        _print_webhook(client.request("GET", "jobs", job, "webhook"), as_json=as_json)


@webhook.command("set")
@with_service
def set_(
    service: Endpoint,
    job: JobId,
    receiver: Receiver,
    *,
    signature: Signature = False,
    as_json: Json = False,
) -> None:
    """Send the events of a job to a URL, also those that are still owed."""
    body = {"url": receiver, "signature": signature}
    with service.client() as client:
        _print_webhook(client.request("PUT", "jobs", job, "webhook", body=body), as_json=as_json)


def _print_webhook(raw: bytes, *, as_json: bool) -> None:
    if as_json:
        output.json_line(raw)
        return
    found = decoded(raw, Webhook)
    pairs: output.Facts = [("url", found.url), ("signature", str(found.signature).lower())]
    if found.disabled_at:
        pairs.append(("disabled_at", output.moment(found.disabled_at)))
    output.facts(pairs)
    if found.disabled_at:
        output.note("The receiver answered 410 Gone: `conveyor webhook set` enables it again.")


@webhook.command()
@with_service
def clear(service: Endpoint, job: JobId, *, as_json: Json = False) -> None:
    """Send no more events of a job; those that are still owed are dropped."""
    with service.client() as client:
        client.clear_webhook(job)
    if as_json:
        output.json_line(msgspec.json.encode({"cleared": job}))
    else:
        output.note("Cleared.")


@webhook.command("test")
@with_service
def send_test(
    service: Endpoint, receiver: Receiver, *, signature: Signature = False, as_json: Json = False
) -> None:
    """Send one test event to a URL. Exits with 1 if it was not delivered."""
    body = {"url": receiver, "signature": signature}
    with service.client() as client:
        raw = client.request("POST", "webhook", "test", body=body)
    found = decoded(raw, WebhookTest)
    if as_json:
        output.json_line(raw)
    else:
        output.facts(
            [
                ("delivered", str(found.delivered).lower()),
                ("event", found.event_id),
                ("elapsed", f"{found.elapsed_ms} ms"),
                *([("status_code", found.status_code)] if found.status_code else []),
                *([("error", found.error)] if found.error else []),
            ]
        )
    if not found.delivered:
        raise typer.Exit(NOT_DELIVERED)


@webhook.command()
@with_service
def deliveries(service: Endpoint, job: JobId, *, limit: Listed = 20, as_json: Json = False) -> None:
    """List the events of a job, the newest first, with the outcome of the last attempt."""
    with service.client() as client:
        found = list_rows(client, "events", "jobs", job, "webhook", "deliveries", limit=limit)
    if as_json:
        output.json_line(msgspec.json.encode(found))
        return
    heads = ("event", "type", "run", "occurred", "status", "attempts", "last outcome", "next")
    output.table(heads, [_event_row(decoded(raw, WebhookEvent)) for raw in found["events"]])
    if not found["events"]:
        output.note("No run of this job has ended with a webhook set.")


def _event_row(event: WebhookEvent) -> tuple[object, ...]:
    last = event.attempts[-1] if event.attempts else None
    outcome = (last.error or last.status_code or "") if last else ""
    return (
        *(event.event_id, event.event_type, event.run_id, output.seconds_of(event.occurred_at)),
        *(event.status, len(event.attempts), outcome, output.seconds_of(event.next_attempt_at)),
    )


@webhook.command()
@with_service
def redeliver(
    service: Endpoint,
    job: JobId,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")],
    *,
    as_json: Json = False,
) -> None:
    """Send an event again now, whatever its status."""
    with service.client() as client:
        raw = client.request("POST", "jobs", job, "webhook", "deliveries", event, "redeliver")
    if as_json:
        output.json_line(raw)
        return
    found = decoded(raw, WebhookEvent)
    output.facts([("event", found.event_id), ("status", found.status)])
    output.note(f"See the outcome with: conveyor webhook deliveries {plain(job)}")


@signing_keys.command("list")
@with_service
def list_(service: Endpoint, *, as_json: Json = False) -> None:
    """List your signing keys: the active one, and the candidate of a rotation."""
    with service.client() as client:
        raw = client.request("GET", "hmac", "keys")
    if as_json:
        output.json_line(raw)
        return
    found = decoded(raw, SigningKeys)
    known = (("active", found.active), ("candidate", found.candidate))
    rows = [(key.kid, role, output.seconds_of(key.created_at)) for role, key in known if key]
    output.table(("key", "role", "created"), rows)
    if not rows:
        output.note("There is none yet: `conveyor signing-keys rotate` creates one.")


@signing_keys.command()
@with_service
def rotate(service: Endpoint, *, as_json: Json = False) -> None:
    """Create a signing key, and print its secret, which cannot be shown again.

    The first key is active at once. A later one is a candidate: give its secret to your receivers
    beside the old one, then finish the rotation.
    """
    with service.client() as client:
        is_first = client.signing_keys().active is None
        raw = client.request("POST", "hmac", "keys", "rotate")
    if as_json:
        output.json_line(raw)
        return
    made = decoded(raw, NewSigningKey)
    output.facts([("key", made.kid), ("secret", made.secret)])
    if not is_first:
        output.note("When your receivers know it, `conveyor signing-keys finish` activates it.")


@signing_keys.command()
@with_service
def finish(service: Endpoint, *, as_json: Json = False) -> None:
    """Finish a rotation: the candidate becomes the active key, the old one is removed."""
    with service.client() as client:
        raw = client.request("POST", "hmac", "keys", "rotate", "finalize")
    if as_json:
        output.json_line(raw)
        return
    output.facts([("active", decoded(raw, SigningKeyInUse).active_kid)])


@signing_keys.command()
@with_service
def cancel(service: Endpoint, *, as_json: Json = False) -> None:
    """Cancel a rotation: remove the candidate; the active key stays."""
    with service.client() as client:
        client.cancel_rotation()
    if as_json:
        output.json_line(msgspec.json.encode({"cancelled": True}))
    else:
        output.note("Cancelled: the active key stays.")
