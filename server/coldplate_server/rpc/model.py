"""ModelService: the models served and the workers that hold them."""

from typing import Any

from coldplate.durations import to_duration
from coldplate.v1 import model_pb2 as pb
from coldplate.v1 import model_pb2_grpc
from coldplate_server.catalog import Catalog
from coldplate_server.errors import FeatureUnimplemented
from coldplate_server.workers.fleet import Fleet, Worker


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, catalog: Catalog, fleet: Fleet) -> None:
        self._catalog = catalog
        self._fleet = fleet

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[self._model(name) for name in self._catalog.names])

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=self._model(self._catalog.resolve(request.model)))

    async def LoadModel(self, request: pb.LoadModelRequest, context: Any) -> pb.LoadModelResponse:
        raise FeatureUnimplemented("LoadModel is not served by this version: give models with --model at start")

    async def UnloadModel(self, request: pb.UnloadModelRequest, context: Any) -> pb.UnloadModelResponse:
        raise FeatureUnimplemented("UnloadModel is not served by this version: restart the server without the model")

    def _model(self, name: str) -> pb.Model:
        tokenizer = self._catalog.tokenizer(name)
        workers = self._fleet.of_model(name)
        replicas = [_replica(worker) for worker in workers]
        hello = next((worker.link.hello for worker in workers if worker.link.hello), None)
        best = min(replicas, key=lambda replica: _ORDER.index(replica.state), default=pb.ModelReplica())
        return pb.Model(
            name=name,
            revision=tokenizer.revision,
            state=best.state,
            state_detail=best.state_detail,
            architecture=tokenizer.architecture,
            parameter_count=hello.parameter_count if hello else 0,
            vocabulary_size=hello.vocabulary_size if hello else tokenizer.vocabulary_size,
            max_context_tokens=self._fleet.context_now(name) or tokenizer.max_context_tokens,
            has_chat_template=tokenizer.has_chat_template,
            end_of_text_token_ids=sorted(tokenizer.end_of_text_ids),
            replicas=replicas,
        )


_ORDER = (pb.MODEL_STATE_AVAILABLE, pb.MODEL_STATE_LOADING, pb.MODEL_STATE_FAILED, pb.MODEL_STATE_UNSPECIFIED)


def _replica(worker: Worker) -> pb.ModelReplica:
    hello, loading = worker.link.hello, worker.link.loading
    replica = pb.ModelReplica(worker=worker.spec.name)
    if worker.failure:
        replica.state, replica.state_detail = pb.MODEL_STATE_FAILED, worker.failure
    elif hello is None:
        replica.state = pb.MODEL_STATE_LOADING
        waiting = worker.link.trouble or "waiting for the worker"
        replica.state_detail = f"{loading.phase}, {loading.progress:.0%}" if loading else waiting
    else:
        replica.state = pb.MODEL_STATE_AVAILABLE
        replica.devices.extend(hello.devices)
        replica.dtype, replica.quantization = hello.dtype, hello.quantization
        replica.max_num_seqs, replica.kv_cache_tokens = hello.max_num_seqs, hello.kv_cache_tokens
        replica.weight_bytes, replica.kv_cache_bytes = hello.weight_bytes, hello.kv_cache_bytes
        replica.features.extend(hello.features)
        replica.engine_settings.update(hello.engine_settings)
        replica.load_time.CopyFrom(to_duration(sum(phase.seconds for phase in hello.load_phases)))
        replica.load_phases.extend(pb.LoadPhase(name=p.name, time=to_duration(p.seconds)) for p in hello.load_phases)
    return replica
