"""Why a worker can't be built."""


class BuildError(Exception):
    """The worker can't be built as asked; the text is one line that says why."""
