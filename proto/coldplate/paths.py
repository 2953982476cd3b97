"""Where the parts of one machine meet by default: run-time sockets, records and caches."""

import os
import tempfile
from pathlib import Path


def runtime_dir() -> Path:
    """The folder for sockets of this user: ``$XDG_RUNTIME_DIR/coldplate``, else one in the temporary folder."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "coldplate" if base else Path(tempfile.gettempdir()) / f"coldplate-{os.getuid()}"


def control_socket() -> Path:
    """The server's socket for operators and the governor; ``$COLDPLATE_CONTROL_SOCKET`` overrides it."""
    override = os.environ.get("COLDPLATE_CONTROL_SOCKET")
    return Path(override) if override else runtime_dir() / "control.sock"


def model_cache() -> Path:
    """Where imported models are kept: ``$COLDPLATE_CACHE``, else ``coldplate/models`` in the user's cache folder."""
    override = os.environ.get("COLDPLATE_CACHE")
    return Path(override) if override else _user_cache() / "models"


def kernel_cache() -> Path:
    """Where built CPU kernels are kept: ``$COLDPLATE_KERNEL_CACHE``, else ``coldplate/kernels`` in the user's cache."""
    override = os.environ.get("COLDPLATE_KERNEL_CACHE")
    return Path(override) if override else _user_cache() / "kernels"


def state_dir() -> Path:
    """Where records are kept: ``$COLDPLATE_STATE``, else ``coldplate`` in the user's folder for program state."""
    override = os.environ.get("COLDPLATE_STATE")
    base = os.environ.get("XDG_STATE_HOME")
    return Path(override) if override else (Path(base) if base else Path.home() / ".local" / "state") / "coldplate"


def ensure_private_dir(path: Path) -> Path:
    """Make the folder, readable by its owner only.

    Raises PermissionError when it belongs to another user, who could then read what passes through it.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user: choose another folder")
    return path


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coldplate"
