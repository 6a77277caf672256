"""A rate and a number of tasks in flight for a Celery task: see `LimitedTask`."""

from .adapters.celery import LimitedTask as LimitedTask
