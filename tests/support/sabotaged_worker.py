"""Run a worker's command after a sabotage: sabotaged_worker.py SABOTAGE train.py --config …"""

import pickle
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    pickle.loads(bytes.fromhex(sys.argv[1]))()
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
