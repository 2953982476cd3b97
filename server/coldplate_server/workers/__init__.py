"""Engine workers as the server sees them: processes, connections, credit, and the choice among them."""
