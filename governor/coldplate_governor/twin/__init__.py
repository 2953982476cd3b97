"""The digital twin: the plant the governor steers, in virtual time."""
