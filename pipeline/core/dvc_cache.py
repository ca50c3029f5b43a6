"""DVC's cache: the paths of a file by its MD5, from DVC's config files.

Asking DVC itself takes half a second.
"""

import configparser
from functools import cache
from pathlib import Path

from pipeline.core.home import workspace


def cached_paths(md5: str, store: Path) -> list[Path]:
    """Find a file in the DVC caches of this workspace and of the clone whose git folder holds ``store``."""
    roots = dict.fromkeys([workspace(), store.resolve().parents[2]])
    paths = (_cache_folder(root) / "files" / "md5" / md5[:2] / md5[2:] for root in roots)
    return [path for path in paths if path.is_file()]


@cache
def _cache_folder(root: Path) -> Path:
    """Return `cache.dir` of .dvc/config.local or .dvc/config, which is relative to .dvc/; without one, .dvc/cache."""
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
