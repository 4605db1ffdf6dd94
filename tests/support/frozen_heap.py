"""Keep the garbage collector from what the fork server has loaded, on import; preloaded last.

A collection, as at the end of a process, would copy all of it into each forked process.
"""

import gc

gc.collect()
gc.freeze()
