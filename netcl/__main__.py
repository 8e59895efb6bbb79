"""`python -m netcl` is the command `netcl`."""

import sys

from netcl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
