"""Decides who, where and when.

Owns: the types both sides speak, placement, the job record, the line, tickets, streams, leases.
May import: infra, redis (store modules), celery (queue). Never: HTTP, an engine, api, workers.
Entry points: `dispatch.Dispatcher` for the API, `claims.Claims` and `stream.Writer` for a worker.
"""
