"""What the tests of several parts share: tiny checkpoints, real processes on loopback, thin gRPC calls."""
