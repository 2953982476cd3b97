#!/usr/bin/env bash
# Makes the Python stubs beside the protos with grpcio-tools 1.71.2, whose stubs import on protobuf 5 to 7.
# Usage: proto/make_stubs.sh [OUT_DIR]   (default: this folder)
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-.}
python=${PYTHON:-python3}
mkdir -p "$out"
# shellcheck disable=SC2046
"$python" -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
  $(find coldplate -name '*.proto' | sort)
