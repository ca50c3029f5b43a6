"""Benchmarks: each script measures one claim of the README or docs and writes benchmarks/results/<name>.json."""
