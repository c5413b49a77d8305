#!/bin/sh
# On a machine with a CUDA card: bits, identity with drafters, and a table of speeds, in at most eight minutes.
#   sh tests/gpu/check.sh            all of it
#   sh tests/gpu/check.sh --quick    without the 8B shape and transformers
set -u
cd "$(dirname "$0")/../.." || exit 1
python -c "import torch, sys; sys.exit(not torch.cuda.is_available())" || { echo "There is no CUDA device here, or torch was built without."; exit 2; }
timeout 240 python -m pytest -m gpu tests/gpu -q -s -rs
tests=$?
timeout 235 python -m tests.gpu.table "$@"
table=$?
[ "$tests" -eq 0 ] && [ "$table" -eq 0 ]
