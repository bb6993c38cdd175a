"""Where things are, and files that are written whole or not at all."""

import contextlib
import os
import tempfile

from ladder.console import BAD_USAGE, Stop

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RESULTS = os.path.join(ROOT, "scripts/results")


def write_whole(path, text):
    """Writes the file whole or not at all, whatever happens meanwhile."""
    part = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=os.path.dirname(path),
                                         prefix=".results-", delete=False) as file:
            part = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException as error:
        if part:
            with contextlib.suppress(OSError):
                os.unlink(part)
        if isinstance(error, OSError):
            raise Stop(f"cannot write {os.path.relpath(path)}: {error.strerror}", BAD_USAGE) from None
        raise
