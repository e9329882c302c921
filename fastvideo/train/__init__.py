"""The YAML-driven trainer: models, methods, callbacks and the loop that runs them."""
