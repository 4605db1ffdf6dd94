"""Train a run: python train.py --config tiny.yaml"""

import sys

from minitransformer.cli import main

if __name__ == "__main__":
    sys.exit(main("train"))
