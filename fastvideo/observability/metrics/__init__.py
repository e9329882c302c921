"""Numbers about a run, kept by the program and read by others."""
