#!/usr/bin/env bash
# curl alone: a list of any length is sent to a slot, scraped, its bad rows told, all of it exported.
set -euo pipefail
url=${CONVEYOR_URL:-http://127.0.0.1:8080/v1}
key=${CONVEYOR_KEY:-my-key}

ask() { curl --silent --show-error --fail-with-body -H "X-API-Key: $key" "$@"; }
field() { sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/;q"; }

# A list as programs write them: here 2,000 rows of CSV, one of them no URL, packed by gzip.
{ echo "sku,link"; seq 2000 | sed 's|.*|sku-&,https://ok.example/&|'; echo "sku-x,nonsense"; } |
  gzip > list.csv.gz

# 1. A slot, with how the list is to be read.
slot=$(ask "$url/job_inputs" \
  -d '{"type": "csv", "csv": {"header": true, "fields": {"url": "link", "external_id": "sku"}}}')

# 2. The list goes to the slot's own link, with the content type it names. No key is needed there.
curl --silent --show-error --fail-with-body -T list.csv.gz -H "Content-Type: text/csv" \
  "$(echo "$slot" | field url)"

# 3. A job that reads it. Bad rows are left out and told; `fail` would stop the run instead.
job=$(ask "$url/jobs" -d "{\"file_input_id\": \"$(echo "$slot" | field file_input_id)\",
  \"on_invalid\": \"skip\", \"max_inflight\": 200}" | field job_id)
echo "job $job"
ask --no-buffer "$url/jobs/$job/events" | tail -n 2

# 4. What was wrong with the list, a line for each bad row.
ask "$url/jobs/$job/ingest_errors"

# 5. All pages in one file, with a manifest.
run=$(ask "$url/jobs/$job" | field run_id)
export=$(ask -X POST "$url/jobs/$job/runs/$run/exports" | field export_id)
until state=$(ask "$url/jobs/$job/runs/$run/exports/$export"); echo "$state" | grep -q completed
do sleep 0.2; done
curl --silent --show-error --fail-with-body -o pages.zip "$(echo "$state" | field download_url)"
ls -l pages.zip

ask -X DELETE "$url/jobs/$job"
echo "deleted"
