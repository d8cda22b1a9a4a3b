// What can be changed about a job: its schedule and its webhook.

import { html, useState } from "../preact.js";
import { call, get } from "../api.js";
import { at, duration, relative, schedule, words } from "../format.js";
import { Field, Form, Loaded, Problem, Status, confirm, openDialog, say, useLoad } from "../ui.js";
import { ScheduleFields, draftOf, scheduleOf } from "./schedule-form.js";

export function Settings({ job, changed }) {
  return html`
    ${job.schedule && html`<${ScheduleCard} job=${job} changed=${changed} />`}
    <${WebhookCard} job=${job} changed=${changed} />`;
}

function ScheduleCard({ job, changed }) {
  const path = `/jobs/${job.job_id}/schedule`;
  const paused = job.schedule_state === "paused";
  const turn = () => confirm({
    title: paused ? "Resume the schedule?" : "Pause the schedule?",
    text: paused ? "It runs at its next time; missed runs are not made up." : "No run begins until you resume it. A live run continues.",
    action: paused ? "Resume" : "Pause",
    done: paused ? "Schedule resumed" : "Schedule paused",
    run: async () => {
      await call("POST", `${path}/state`, { body: { schedule_state: paused ? "active" : "paused" } });
      changed();
    },
  });
  const edit = () => openDialog({ title: "Edit the schedule", body: html`<${EditSchedule} job=${job} changed=${changed} />` });
  return html`
    <section class="card">
      <div class="card-head">
        <h2>Schedule <${Status} of=${job.schedule_state} /></h2>
        <div class="actions"><button onClick=${turn}>${paused ? "Resume schedule" : "Pause schedule"}</button><button onClick=${edit}>Edit schedule</button></div>
      </div>
      <p>${schedule(job.schedule)}</p>
      <p class="muted">${job.next_scheduled_run ? `${paused ? "If resumed, it would run next" : "Next run"} ${relative(job.next_scheduled_run)}, at ${at(job.next_scheduled_run)}.` : "There is no further run."}</p>
      ${job.schedule_pause_reason && html`<p class="notice warn">The service paused it: ${words(job.schedule_pause_reason)}.</p>`}
    </section>`;
}

function EditSchedule({ job, changed }) {
  const [draft, setDraft] = useState(draftOf(job.schedule));
  const save = async () => {
    await call("PUT", `/jobs/${job.job_id}/schedule`, { body: scheduleOf(draft) });
    changed();
  };
  return html`<${Form} action="Save" run=${save} done="Schedule saved"><${ScheduleFields} draft=${draft} change=${setDraft} /><//>`;
}

function WebhookCard({ job, changed }) {
  const { webhook } = job;
  const edit = () => openDialog({ title: webhook ? "Edit the webhook" : "Add a webhook", body: html`<${EditWebhook} job=${job} changed=${changed} />` });
  const remove = () => confirm({
    title: "Remove the webhook?", text: "Events of this job are no longer sent.", action: "Remove", danger: true, done: "Webhook removed",
    run: async () => {
      await call("DELETE", `/jobs/${job.job_id}/webhook`);
      changed();
    },
  });
  const test = () => confirm({
    title: "Send a test event?", text: `One test event is sent to ${webhook.url}.`, action: "Send",
    run: async () => {
      const result = await call("POST", "/webhook/test", { body: { url: webhook.url, signature: webhook.signature } });
      const outcome = result.delivered ? `The receiver accepted the test event (HTTP ${result.status_code}).` : `Not delivered: ${result.error || `HTTP ${result.status_code}`}`;
      say(`${outcome} It took ${duration(result.elapsed_ms / 1000)}.`, result.delivered ? "good" : "bad");
    },
  });
  return html`
    <section class="card">
      <div class="card-head">
        <h2>Webhook ${webhook?.disabled_at && html`<${Status} of="stopped" label="Turned off" />`}</h2>
        <div class="actions">
          ${webhook && html`<button onClick=${test}>Send test event</button>`}
          <button onClick=${edit}>${webhook ? "Edit webhook" : "Add webhook"}</button>
          ${webhook && html`<button class="quiet danger-text" onClick=${remove}>Remove</button>`}
        </div>
      </div>
      ${webhook
        ? html`<p><bdi>${webhook.url}</bdi> <span class="muted">${webhook.signature ? "signed" : "not signed"}</span></p>
          ${webhook.disabled_at && html`<p class="notice warn">The receiver answered 410 Gone at ${at(webhook.disabled_at)}, so nothing is sent to it. Save it again to turn it on.</p>`}
          <${Deliveries} job=${job} />`
        : html`<p class="muted">Get an event when a run ends. It is sent to your URL, and again until the receiver accepts it.</p>`}
    </section>`;
}

function EditWebhook({ job, changed }) {
  const [url, setUrl] = useState(job.webhook?.url || "");
  const [signature, setSignature] = useState(job.webhook?.signature || false);
  const save = async () => {
    await call("PUT", `/jobs/${job.job_id}/webhook`, { body: { url, signature } });
    changed();
  };
  return html`
    <${Form} action="Save" run=${save} done="Webhook saved">
      <${Field} label="URL"><input type="url" required placeholder="https://example.com/hook" value=${url} onInput=${(event) => setUrl(event.target.value)} /><//>
      <label class="choice"><input type="checkbox" checked=${signature} onChange=${(event) => setSignature(event.target.checked)} /> Sign events with your signing key</label>
    <//>`;
}

function Deliveries({ job }) {
  const path = `/jobs/${job.job_id}/webhook/deliveries`;
  const events = useLoad(() => get(path, { limit: 25 }), [path], { every: 10_000 });
  const again = (event) => () => confirm({
    title: "Deliver this event again?", text: `${event.event_type} of ${at(event.occurred_at)} is sent once more.`, action: "Deliver again", done: "The event will be delivered",
    run: async () => {
      await call("POST", `${path}/${event.event_id}/redeliver`);
      events.reload();
    },
  });
  return html`
    <h3>Deliveries</h3>
    <${Problem} error=${events.error} />
    <${Loaded} of=${{ data: events.data }}>${({ events: found }) => found.length === 0
      ? html`<p class="muted">Nothing was sent yet.</p>`
      : html`<ul class="deliveries">${found.map((event) => html`<${Delivery} key=${event.event_id} event=${event} again=${again(event)} />`)}</ul>`}<//>`;
}

function Delivery({ event, again }) {
  const last = event.attempts.at(-1);
  return html`
    <li>
      <div><code>${event.event_type}</code> <${Status} of=${event.status} />
        <small>${at(event.occurred_at)} · ${event.attempts.length} attempt${event.attempts.length === 1 ? "" : "s"}${last ? ` · ${last.error || `HTTP ${last.status_code}`} in ${duration(last.elapsed_ms / 1000)}` : ""}${event.next_attempt_at ? ` · next ${relative(event.next_attempt_at)}` : ""}</small>
      </div>
      <button class="quiet" onClick=${again}>Deliver again</button>
    </li>`;
}
