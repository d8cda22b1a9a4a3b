"""Dispatch: claim due tasks of live runs, fetch their pages, settle the results.

One `Dispatcher` runs in every worker process, on every engine.

| module | owns |
|---|---|
| `dispatcher` | the loops: discover, claim, settle, renew, stop |
| `fetcher` | tasks in flight: start, fetch, finish, hand back |
| `discovery` | the map of live runs |
| `active_run` | the state of one live run in this process, with its gateway key, hosts and prefetched tasks |
| `permits` | reserving, releasing and renewing permits |
| `gateway_health` | the circuit breaker and results that may be the gateway's fault |
| `storage_pause` | the pause while results cannot be stored |
| `config` | limits and intervals |
"""
