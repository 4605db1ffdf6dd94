"""The command line as a module: python -m minitransformer train --config tiny.yaml"""

import sys

from minitransformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
