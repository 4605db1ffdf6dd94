"""Imported by the process that all are forked from: until they begin, Ctrl-C simply ends them."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
