#!/usr/bin/env bash
# curl alone: submit, follow the events to the end, list results, delete.
set -euo pipefail
url=${CONVEYOR_URL:-http://127.0.0.1:8080/v1}
key=${CONVEYOR_KEY:-my-key}

ask() { curl --silent --show-error --fail-with-body -H "X-API-Key: $key" "$@"; }

# Sending the request twice with the same key creates one job.
job=$(ask "$url/jobs" -H "Idempotency-Key: example-$$" \
  -d '{"tasks": [{"url": "https://ok.example/1"}, {"url": "https://flaky.example/2?fails=1"}]}' |
  sed 's/.*"job_id":"\([^"]*\)".*/\1/;q')
echo "job $job"

# The stream ends when the run has ended.
ask --no-buffer "$url/jobs/$job/events"

ask "$url/jobs/$job/results?status=successful"
echo
ask -X DELETE "$url/jobs/$job"
echo "deleted"
