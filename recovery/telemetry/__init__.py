"""The words of a running job to other systems: metrics for Prometheus, and traces for what takes OpenTelemetry's."""
