"""The tool for writing files that llm gets, as it has none of its own."""

from pathlib import Path


def write_file(path: str, content: str) -> str:
    """Writes a file."""
    Path(path).write_text(content)
    return "written"
