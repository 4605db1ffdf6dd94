"""Translate with a trained run: python translate.py "Let's go" """

import sys

from minitransformer.cli import main

if __name__ == "__main__":
    sys.exit(main("translate"))
