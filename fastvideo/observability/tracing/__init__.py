"""Spans: a training step as one trace, built and sent by a worker of its own."""
