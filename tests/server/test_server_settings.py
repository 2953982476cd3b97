"""Settings of the server: models and workers."""

from pathlib import Path

import pytest

from coldplate_server.settings import ServerSettings


def settings(tmp_path: Path, *workers: str, models: tuple[str, ...] = ("a", "b")) -> ServerSettings:
    for name in models:
        (tmp_path / name).mkdir(exist_ok=True)
    return ServerSettings(model=[str(tmp_path / name) for name in models], worker=list(workers))


def specs(
    tmp_path: Path, *workers: str, models: tuple[str, ...] = ("a", "b")
) -> list[tuple[str, str | None, str | None]]:
    made = settings(tmp_path, *workers, models=models)
    return [(spec.model.name, spec.device, spec.address) for spec in made.workers(made.models())]


def test_by_default_each_model_has_a_cpu_worker(tmp_path: Path) -> None:
    assert specs(tmp_path) == [("a", "cpu", None), ("b", "cpu", None)]


def test_a_worker_names_its_model(tmp_path: Path) -> None:
    assert specs(tmp_path, "b@cpu", "a@attach=unix:/s") == [("b", "cpu", None), ("a", None, "unix:/s")]


@pytest.mark.parametrize("device", ["fault:delay=20ms@1-,cpu", "fault:oom@5-+delay=1s@1,sim:unix:/b@c#npu:0"])
def test_signs_inside_a_fault_plan_belong_to_the_device(tmp_path: Path, device: str) -> None:
    assert specs(tmp_path, f"b@{device}") == [("b", device, None)]
    assert specs(tmp_path, device, models=("a",)) == [("a", device, None)]


@pytest.mark.parametrize(
    ("worker", "says"),
    [("c@cpu", "no model is called 'c'; there are a, b"), ("cpu", "say of which model"), ("a@", "no device is given")],
)
def test_a_worker_that_means_nothing_is_refused(tmp_path: Path, worker: str, says: str) -> None:
    made = settings(tmp_path, worker)
    with pytest.raises(ValueError, match=says):
        made.workers(made.models())


def test_models_need_folders_and_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="there is no folder"):
        ServerSettings(model=[f"x={tmp_path}/gone"]).models()
    with pytest.raises(ValueError, match="'a' is given twice"):
        ServerSettings(model=[f"{tmp_path}/a", f"a={tmp_path}/a"]).models()
    with pytest.raises(ValueError, match="at least one --model"):
        ServerSettings(model=[]).models()
