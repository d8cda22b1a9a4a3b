"""Dispatch: claim due tasks of live runs, fetch their pages, settle the results.

One `Dispatcher` runs in every worker process, on every engine.

| module | owns |
|---|---|
| `dispatcher` | the loops: discover, claim, settle, renew, stop |
| `claimer` | one round of claims: shares, permits, probes, prefetch |
| `fetcher` | tasks in flight: start, fetch, finish, hand back |
| `settle_groups` | finished tasks, until the groups in which they are settled close |
| `discovery` | the map of live runs |
| `active_run` | the state of one live run in this process, with its hosts and prefetched tasks |
| `write_window` | how many tasks of a run may wait for the engine |
| `gateway_keys` | what is known of a gateway key, and its permits |
| `permits` | reserving, releasing and renewing permits |
| `gateway_health` | the circuit breaker and results that may be the gateway's fault |
| `shared_limits` | what processes share about gateway keys and the gateway |
| `run_waits` | what runs wait for, also those that another process serves |
| `storage_pause` | the pause while results cannot be stored |
| `config` | limits and intervals |
"""
