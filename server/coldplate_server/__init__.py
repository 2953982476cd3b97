"""The gRPC service in front of the engine workers."""

import os

# Read by grpc when it is imported: workers are started by fork and exec, which needs none of its fork handlers.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
