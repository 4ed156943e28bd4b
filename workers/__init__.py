"""Celery workers; each owns one llama-server and its slots.

Owns: claiming, slots, the engine's process, rendering, deltas out.
May import: scheduler, infra, celery, httpx (in llama). Never: api, fastapi. Sync only.
Entry point: `python -m workers.app`; the floor plan is `tasks.Work.generate`.
"""
