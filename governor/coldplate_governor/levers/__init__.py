"""Frequency levers: what can lower a clock, proven before use, run in a process of its own, put back at the end."""
