"""The contract all parts of Coldplate share: protos with their stubs, device profiles, and a few pure types."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("coldplate")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0.0.0"
