"""Stopping politely: a signal is remembered until the trainer reaches the end of its step."""

import signal
from types import FrameType, TracebackType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopSignals:
    """Within its block, the first SIGINT or SIGTERM is noted; a second one acts at once."""

    def __init__(self) -> None:
        self.exit_code = 0

    def __enter__(self) -> "StopSignals":
        self.previous = {number: signal.signal(number, self.note) for number in EXIT_CODES}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = EXIT_CODES[signal.Signals(number)]
        for each in EXIT_CODES:
            signal.signal(each, signal.SIG_DFL)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
