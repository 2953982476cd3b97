"""vLLM as an engine worker: ``coldplate-engine --engine vllm``, in vLLM's own environment.

Nothing here imports vLLM before a worker is started, so that its absence is told in one line.
"""
