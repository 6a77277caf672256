"""Decisions as metrics of OpenTelemetry: see `record_decisions`."""

from .adapters.opentelemetry import record_decisions as record_decisions
