"""Programs that the launcher starts, one process per device."""
