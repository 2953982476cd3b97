"""Why the governor does what it does: one record per change, a recording of every decision, and its replay."""
