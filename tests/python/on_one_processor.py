"""Runs a command on a processor of its own, as tests/own_processor.hpp says, or where all are taken as it is.

    on_one_processor.py COMMAND...
"""

import os
import sys

from run import take_a_processor

held = take_a_processor()
if held is not None:
    os.set_inheritable(held.fileno(), True)  # the lock lasts as long as the command
os.execvp(sys.argv[1], sys.argv[1:])
