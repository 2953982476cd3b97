"""The simulated 310P board: the twin in real time, as a process of its own on a Unix socket."""
