// The official Node client against a running service: one flow through all that it offers.
// node flow.mjs <base url> <folder to download to> <webhook url>
import assert from "node:assert/strict";
import { existsSync, readdirSync, statSync } from "node:fs";
import { Calendar, Daily, Rate, ZenRowsBatchClient, ZenRowsBatchError } from "zenrows";

const [baseURL, folder, receiver] = process.argv.slice(2);
const client = new ZenRowsBatchClient("a-node-key", { baseURL });
const QUICK = { timeout: 60, pollInterval: 0.05 }; // seconds
const OK = "https://ok.example/";

async function collected(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof ZenRowsBatchError, String(error));
    return [error.status, error.code];
  }
  assert.fail("it was not refused");
}

async function submitAndRead() {
  const job = await client.submitRegular(
    [OK + "a", { url: "https://permanent.example/b", external_id: "b-1" }],
    undefined,
    { name: "from node", metadata: { team: "blue" }, idempotencyKey: "node-1" },
  );
  assert.equal(job.acceptedTasks, 2);
  const run = await job.run.wait(QUICK);
  assert.equal(run.status, "completed");
  assert.deepEqual([run.stats.total, run.stats.successful, run.stats.failed], [2, 1, 1]);

  const rows = await collected(job.run.results());
  assert.deepEqual(rows.map((row) => row.status), ["successful", "failed"]);
  assert.equal(rows[1].external_id, "b-1");
  assert.ok((await client.getTaskContent(job.jobId, rows[0].task_id)).includes("ok.example"));
  assert.ok((await client.downloadTaskToMemory(rows[0])).length > 0);
  assert.equal((await job.run.taskHistory(rows[0].task_id)).events.length, 1);

  assert.equal(await job.run.downloadToDir(folder + "/pages"), 1);
  assert.ok(readdirSync(folder + "/pages").length >= 1);
  await job.run.downloadAllResults(folder + "/all.zip", { pollInterval: 0.05 });
  assert.ok(statSync(folder + "/all.zip").size > 0);

  const retried = await job.retryFailed();
  assert.equal((await client.waitForRun(job.jobId, { runId: retried.runId, ...QUICK })).status, "completed");
  assert.equal((await collected(job.runs())).length, 2);

  const again = await client.submitRegular(
    [OK + "a", { url: "https://permanent.example/b", external_id: "b-1" }],
    undefined,
    { name: "from node", metadata: { team: "blue" }, idempotencyKey: "node-1" },
  );
  assert.equal(again.jobId, job.jobId);
  return job;
}

async function openJob() {
  const job = await client.submitOpen([]);
  await job.addTasks([{ url: OK + "1" }]);
  await job.addTasks([{ url: OK + "2" }], { lastBatch: true });
  assert.equal((await job.run.wait(QUICK)).stats.successful, 2);
  assert.deepEqual(await refusal(() => job.addTasks([{ url: OK }])), [409, "last_batch_received"]);
}

async function listFromCsv() {
  const input = await client.uploadCsv(`url,id\n${OK}x,1\n${OK}y,2\n`, {
    fields: { url: "url", external_id: "id" },
    header: true,
  });
  const job = await client.submitRegular(undefined, input);
  assert.equal((await job.run.wait(QUICK)).stats.successful, 2);
}

async function stopAndDelete() {
  const job = await client.submitRegular(
    Array.from({ length: 50 }, (_, number) => `https://slow.example/${number}?ms=2000`),
  );
  await job.run.pause();
  await job.run.resume();
  assert.equal((await job.run.stop()).status, "stopped");
  await job.delete();
  assert.deepEqual(await refusal(() => client.getJob(job.jobId)), [404, "not_found"]);
}

async function keysAndWebhooks(job) {
  const made = await client.rotateHmacKey();
  assert.equal(Buffer.from(made.secret, "base64").length, 32);
  let keys = await client.listHmacKeys();
  if (!keys.active) {
    await client.finalizeHmacKey();
    keys = await client.listHmacKeys();
  }
  assert.equal(keys.active.kid, made.kid);
  const next = await client.rotateHmacKey();
  assert.deepEqual(await refusal(() => client.rotateHmacKey()), [409, "candidate_pending"]);
  await client.cancelHmacRotation();
  assert.deepEqual(await refusal(() => client.finalizeHmacKey()), [409, "no_candidate"]);
  assert.notEqual(next.kid, made.kid);

  assert.deepEqual(await refusal(() => job.getWebhook()), [404, "not_found"]);
  assert.equal((await job.setWebhook(receiver, true)).signature, true);
  assert.equal((await job.getWebhook()).url, receiver);
  const told = await client.testWebhook({ url: receiver, signature: true });
  assert.deepEqual([told.delivered, told.status_code], [true, 200]);
  await job.deleteWebhook();
}

async function scheduledJobs() {
  const job = await client.submitScheduled(new Rate(1, "hour"), [OK + "s"]);
  assert.ok((await client.getJob(job.jobId)).data.next_scheduled_run);
  assert.equal((await job.schedule.pause()).data.schedule_state, "paused");
  assert.equal((await job.schedule.resume()).data.schedule_state, "active");
  const daily = new Calendar(["09:00"], new Daily(), "Europe/Berlin");
  assert.equal((await job.schedule.update(daily)).data.schedule.timezone, "Europe/Berlin");
  await job.rerun();
  assert.equal((await job.run.wait(QUICK)).stats.successful, 1);
}

async function errors() {
  assert.deepEqual(await refusal(() => client.getJob("01ARZ3NDEKTSV4RRFFQ69G5FAV")), [404, "not_found"]);
  assert.deepEqual(await refusal(() => client.submitRegular(["ftp://no.example/"])), [400, "invalid_argument"]);
  assert.ok((await client.listJobs({ limit: 2 })).jobs.length === 2);
  assert.ok((await collected(client.iterJobs())).length >= 3);
}

const job = await submitAndRead();
await openJob();
await listFromCsv();
await stopAndDelete();
await keysAndWebhooks(job);
await scheduledJobs();
await errors();
assert.ok(existsSync(folder + "/all.zip"));
console.log("every call was answered as the client expects");
