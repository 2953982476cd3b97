"""Settings of a worker that contradict each other are refused with exit code 2 and one line."""

import pytest

from coldplate.settings import load_settings
from coldplate_engine.settings import EngineSettings

BASE = ["--model", "/models/m", "--listen", "unix:/tmp/x.sock"]


def test_defaults() -> None:
    settings = load_settings(EngineSettings, "coldplate-engine", BASE)
    assert (settings.name, settings.device, settings.max_num_seqs, settings.block_size) == ("m", "cpu", 32, 16)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--max-num-batched-tokens", "8"], "below --max-num-seqs 32"),
        (["--kv-cache-tokens", "64", "--kv-cache-gib", "1"], "give one"),
        (["--kv-cache-tokens", "8"], "below one block"),
        (["--listen", "127.0.0.1:1"], "expected unix:PATH"),
        (["--kv-cache-gib", "nan"], "kv-cache-gib"),
        (["--dtype", "int3"], "dtype"),
        (["--max-num-seqs", "0"], "max-num-seqs"),
    ],
)
def test_refused(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(EngineSettings, "coldplate-engine", BASE + args)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
