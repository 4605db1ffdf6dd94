"""Reset SIGINT to its default action on import; preloaded by the fork server."""

import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)
