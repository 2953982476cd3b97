"""What the governor takes from the server's reply."""

from coldplate.v1 import device_pb2 as pb
from coldplate_governor.feedback import feedback_of

UP = pb.DEVICE_STATE_SERVING


def status(
    device: str = "npu:0", worker: str = "w", model: str = "m", state: int = UP, **fields: object
) -> pb.DeviceStatus:
    return pb.DeviceStatus(device=device, worker=worker, model=model, state=state, **fields)  # type: ignore[arg-type]


def test_a_duty_is_anothers_only_when_it_is_tighter_than_ours() -> None:
    half = [status(limits=pb.DeviceLimits(duty=0.5))]
    assert feedback_of(half, {"npu:0": 0.8})["npu:0"].other_duty == 0.5
    assert feedback_of(half, {"npu:0": None})["npu:0"].other_duty == 0.5
    assert feedback_of(half, {"npu:0": 0.5})["npu:0"].other_duty is None
    assert feedback_of([status()], {"npu:0": 0.5})["npu:0"].other_duty is None


def test_workers_of_one_device_are_taken_together() -> None:
    first = status(worker="a", running=2, queued=3, busy_share=0.7, levers=["admit", "cpu_share", "duty"])
    first.queue_wait.FromMilliseconds(1500)
    second = status(worker="b", running=1, queued=3, busy_share=0.6, levers=["duty", "admit"])
    third = status(worker="c", model="n", queued=2, state=pb.DEVICE_STATE_LOADING)
    (merged,) = feedback_of([first, second, third], {}).values()
    assert (merged.running, merged.waiting, merged.queue_wait_s) == (3, 5, 1.5)
    assert merged.busy_share == 1.0
    assert merged.engine_up
    assert merged.levers == ("duty", "admit"), "what each of them honours; one that has not told yet says nothing"


def test_an_engine_is_up_where_one_serves_and_there_is_another_where_all_models_have_one() -> None:
    lost = status(state=pb.DEVICE_STATE_LOST)
    cpu = status("cpu", "c")
    found = feedback_of([lost, cpu], {})
    assert (found["npu:0"].engine_up, found["npu:0"].alternative) == (False, True)
    assert (found["cpu"].engine_up, found["cpu"].alternative) == (True, False)
    group = [status("npu:0", "g"), status("npu:1", "g")]
    assert not any(item.alternative for item in feedback_of(group, {}).values()), "a group is one worker"
    assert feedback_of([status(state=pb.DEVICE_STATE_DRAINING)], {})["npu:0"].draining


def test_rates_are_those_of_the_last_second() -> None:
    one = status(tokens_per_second=120.0, prefill_tokens_per_second=40.0, step_times=pb.StepTimes(steps=30))
    (found,) = feedback_of([one], {}).values()
    assert (found.decode_tokens_per_s, found.prefill_tokens_per_s, found.decode_steps_per_s) == (120.0, 40.0, 30.0)
