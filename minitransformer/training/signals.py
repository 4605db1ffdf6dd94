"""Stopping politely: a signal is remembered until the trainer reaches the end of its step."""

import os
import signal
import threading
import time
from types import FrameType, TracebackType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopSignals:
    """Within its block, the first SIGINT or SIGTERM is noted; a second one acts at once."""

    def __init__(self) -> None:
        self.exit_code = 0

    def __enter__(self) -> "StopSignals":
        self.previous = {number: signal.signal(number, self.note) for number in EXIT_CODES}
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)
        self.previous_fd = signal.set_wakeup_fd(self.write_end)  # gets a byte for each signal
        threading.Thread(target=self.end_if_stuck, daemon=True).start()
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = EXIT_CODES[signal.Signals(number)]
        for each in EXIT_CODES:
            signal.signal(each, signal.SIG_DFL)

    def end_if_stuck(self) -> None:
        """End the process at the second signal if the main thread has not noticed the first.

        Python calls `note` when the main thread comes back from a collective, which it does not
        while another process is frozen.
        """
        for _ in range(2):
            received = os.read(self.read_end, 1)
        if received:
            time.sleep(1)
            if not self.exit_code:
                os._exit(128 + received[0])
        os.close(self.read_end)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self.previous_fd)
        os.close(self.write_end)
        for number, handler in self.previous.items():
            signal.signal(number, handler)
