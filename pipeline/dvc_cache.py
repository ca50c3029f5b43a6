"""Where DVC keeps a file, by its MD5, read off its config: asking DVC itself takes half a second."""

import configparser
from functools import cache
from pathlib import Path

from pipeline.home import workspace


def cached_path(md5: str) -> Path | None:
    """Path of a file in this workspace's DVC cache, or None when it is not there."""
    path = _cache_folder(workspace()) / "files" / "md5" / md5[:2] / md5[2:]
    return path if path.is_file() else None


@cache
def _cache_folder(root: Path) -> Path:
    """`cache.dir` of .dvc/config.local or .dvc/config, relative to .dvc/; else .dvc/cache."""
    folder = root / ".dvc"
    for name in ("config.local", "config"):
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(folder / name, "utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        if chosen := parser.get("cache", "dir", fallback=""):
            return folder / chosen
    return folder / "cache"
