"""Start time of this process; `pipeline/__main__.py` imports it first."""

import time

STARTED = time.time()
"""Seconds since 1970 when this process began to load code."""
