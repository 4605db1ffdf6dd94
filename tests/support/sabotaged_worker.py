"""Run a worker's command after a sabotage: sabotaged_worker.py SABOTAGE -c PROGRAM ARGUMENTS"""

import pickle
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    pickle.loads(bytes.fromhex(sys.argv[1]))()
    program = sys.argv[3]
    sys.argv = ["-c", *sys.argv[4:]]
    exec(program)
