"""The `fastvideo` command."""
