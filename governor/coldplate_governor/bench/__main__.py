"""``python -m coldplate_governor.bench`` is ``coldplate-governor bench``."""

import sys

from coldplate_governor.bench.cli import main

main(sys.argv[1:])
