"""``python -m dasgrad`` is the command ``dasgrad``."""

import sys

from dasgrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
