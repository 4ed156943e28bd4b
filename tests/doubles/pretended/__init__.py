"""Parts that only pretend: with this folder on PYTHONPATH, `python -m api.app` and `workers.app` are these."""
