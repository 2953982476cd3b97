"""The gRPC edge: checks and conversion of messages, statuses, the interceptor, reflection and servicers."""
