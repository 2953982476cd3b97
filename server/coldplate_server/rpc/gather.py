"""The events of a stream gathered into one unary answer."""

from coldplate.v1 import generation_pb2 as pb
from coldplate_server.events import ChoiceFinished, Completed, Delta, Event, Progress, PromptLogprobs, Started
from coldplate_server.rpc import convert


class Gathering:
    """Joined deltas are the text of the answer, code point for code point."""

    def __init__(self, choices: int) -> None:
        self._response = pb.GenerateResponse(choices=[pb.Choice(index=index) for index in range(choices)])
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._thoughts: list[list[str]] = [[] for _ in range(choices)]

    def add(self, event: Event) -> None:
        response = self._response
        match event:
            case Started():
                response.request_id, response.model = event.request_id, event.model
                response.model_revision, response.seed = event.model_revision, event.seed
            case PromptLogprobs():
                response.prompt_logprobs.extend(map(convert.token_logprob, event.logprobs))
            case Delta():
                self._texts[event.choice_index].append(event.text)
                self._thoughts[event.choice_index].append(event.reasoning_text)
                choice = response.choices[event.choice_index]
                choice.token_ids.extend(event.token_ids)
                choice.logprobs.extend(map(convert.token_logprob, event.logprobs))
            case ChoiceFinished():
                choice = response.choices[event.choice_index]
                choice.finish_reason = convert.finish_reason(event.end.reason)
                convert.set_match(choice, event.end)
            case Completed():
                response.device = event.device
                response.usage.CopyFrom(convert.usage(event.usage))
                response.timings.CopyFrom(convert.timings(event.timings))
            case Progress():
                pass

    def response(self) -> pb.GenerateResponse:
        for choice, texts, thoughts in zip(self._response.choices, self._texts, self._thoughts, strict=True):
            choice.text, choice.reasoning_text = "".join(texts), "".join(thoughts)
        return self._response
