#!/usr/bin/env bash
# curl alone: upload a long list, scrape it, list its bad rows, export all pages.
set -euo pipefail
url=${CONVEYOR_URL:-http://127.0.0.1:8080/v1}
key=${CONVEYOR_KEY:-my-key}

ask() { curl --silent --show-error --fail-with-body -H "X-API-Key: $key" "$@"; }
field() { sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/;q"; }

# A list of 2,001 CSV rows, one of them without a valid URL, compressed with gzip.
{ echo "sku,link"; seq 2000 | sed 's|.*|sku-&,https://ok.example/&|'; echo "sku-x,nonsense"; } |
  gzip > list.csv.gz

# 1. Create a file input, which says how to read the list.
input=$(ask "$url/job_inputs" \
  -d '{"type": "csv", "csv": {"header": true, "fields": {"url": "link", "external_id": "sku"}}}')

# 2. Upload the list to the link of the file input, with the content type that it names. The link
#    is signed, so no key is needed.
curl --silent --show-error --fail-with-body -T list.csv.gz -H "Content-Type: text/csv" \
  "$(echo "$input" | field url)"

# 3. Create a job that reads the list. Bad rows are left out and reported; `fail` would fail the run.
job=$(ask "$url/jobs" -d "{\"file_input_id\": \"$(echo "$input" | field file_input_id)\",
  \"on_invalid\": \"skip\", \"max_inflight\": 200}" | field job_id)
echo "job $job"
ask --no-buffer "$url/jobs/$job/events" | tail -n 2

# 4. List the bad rows, one per line.
ask "$url/jobs/$job/ingest_errors"

# 5. Export all pages as one file, with a manifest.
run=$(ask "$url/jobs/$job" | field run_id)
export=$(ask -X POST "$url/jobs/$job/runs/$run/exports" | field export_id)
until state=$(ask "$url/jobs/$job/runs/$run/exports/$export"); echo "$state" | grep -q completed
do sleep 0.2; done
curl --silent --show-error --fail-with-body -o pages.zip "$(echo "$state" | field download_url)"
ls -l pages.zip

ask -X DELETE "$url/jobs/$job"
echo "deleted"
