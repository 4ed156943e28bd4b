"""HTTP in, Anthropic events out.

Owns: the gateway. Async only.
May import: scheduler, infra, fastapi. Never: workers, an engine, Celery.
Entry point: `python -m api.app`; the floor plan is `messages.create_message`.
"""
