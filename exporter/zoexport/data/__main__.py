"""The tokenizing child process, see :mod:`zoexport.data.process`."""

import sys

from zoexport.data.process import main

sys.exit(main(sys.argv[1:]))
