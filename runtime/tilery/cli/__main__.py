"""``python -m tilery.cli``: the command line, for a debugger that has to start Python itself."""

from . import main

main()
