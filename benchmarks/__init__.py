"""Benchmarks: each script measures one claim of the README or docs and writes benchmarks/results/<name>.json."""

import os

os.environ.setdefault("AERIE_REUSE", "off")  # measured work is done here, never taken from an earlier build
