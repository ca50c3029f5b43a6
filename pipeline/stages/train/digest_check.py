"""Check of the states' files against their stamps, in the background while training begins.

Nothing is saved before all digests agree.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.core.files.digests import sha256_file
from pipeline.formats.hidden_states import check_digest
from pipeline.stages.train.data import Corpus
from pipeline.stages.train.processes import ProcessGroup


class DigestCheck:
    """Compares the digests of every dataset's files with its stamp."""

    def __init__(self, corpus: Corpus, stamps: Path, group: ProcessGroup, pool: ThreadPoolExecutor) -> None:
        self._corpus, self._stamps, self._group = corpus, stamps, group
        self._settled = False
        self._open: dict[str, dict[str, Future[str]]] = {}
        for name, states in corpus.states.items() if group.local == 0 else ():  # each machine may have its own copy
            files = sorted(path for path in states.folder.rglob("*") if path.is_file())
            self._open[name] = {
                path.relative_to(states.folder).as_posix(): pool.submit(sha256_file, path) for path in files
            }

    def check(self, *, wait: bool = False) -> None:
        """Compare the datasets whose files are all read; with ``wait``, wait for every dataset.

        Raises:
            ArtifactError: a file changed since its extraction; the message has both digests.

        """
        for name, files in list(self._open.items()):
            if wait or all(digest.done() for digest in files.values()):
                known = {file: digest.result() for file, digest in files.items()}
                check_digest(
                    self._corpus.states[name].folder,
                    self._corpus.stamps[name].sha256,
                    self._stamps / f"{name}.json",
                    known,
                )
                del self._open[name]

    def settle(self, step: int, device: torch.device) -> None:
        """Wait until every machine has compared all of its files.

        All processes call this together, before the first of them saves anything.

        Raises:
            ArtifactError: as for `check`.

        """
        if not self._settled:
            self.check(wait=True)
            self._group.agree(step, device)
            self._settled = True


@contextmanager
def digested(corpus: Corpus, stamps: Path, group: ProcessGroup) -> Iterator[DigestCheck]:
    """Start the check in one thread, which releases the interpreter while it hashes.

    At the end of the block the thread finishes the file that it reads, and no other.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="digests")
    try:
        yield DigestCheck(corpus, stamps, group, pool)
    finally:
        pool.shutdown(cancel_futures=True)
