"""The folder that the build writes, and the composed files in it."""

from pathlib import Path

BUILD = Path("build")
CONFIG = BUILD / "config.json"
"""The whole composed configuration."""
CODE = BUILD / "code.json"
"""A fingerprint of each stage's code and libraries."""
