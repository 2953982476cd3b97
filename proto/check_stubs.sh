#!/usr/bin/env bash
# Fails when the committed stubs are not what make_stubs.sh makes of the protos now. PYTHON as for make_stubs.sh.
set -euo pipefail
cd "$(dirname "$0")"
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
./make_stubs.sh "$fresh"

list() { (cd "$1" && find coldplate -name '*_pb2.py' -o -name '*_pb2.pyi' -o -name '*_pb2_grpc.py') | sort; }
stale=0
diff -u <(list .) <(list "$fresh") || stale=1
while read -r file; do
  diff -u "$file" "$fresh/$file" || stale=1
done < <(comm -12 <(list .) <(list "$fresh"))
if [ "$stale" = 1 ]; then
  echo "the stubs are not those of the protos: run 'make stubs' and commit what changes" >&2
  exit 1
fi
