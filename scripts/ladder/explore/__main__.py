"""python3 -m ladder.explore: what scripts/explore runs."""

import sys

from ladder.console import run_command
from ladder.explore.command import explore

if __name__ == "__main__":
    sys.exit(run_command("scripts/explore", lambda: explore(sys.argv[1:])))
