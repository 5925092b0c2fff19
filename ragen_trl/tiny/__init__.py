"""The embedded agent: a small language model that runs everywhere without a download. See `docs/tiny_agent.md`."""

from __future__ import annotations

from pathlib import Path


__all__ = ["path"]


def path() -> str:
    """
    Folder of the shipped weights and tokenizer, for `from_pretrained`.

    Returns:
        `str`: The folder.

    Example:

    ```python
    >>> from transformers import AutoModelForCausalLM, AutoTokenizer
    >>> from ragen_trl import tiny

    >>> model = AutoModelForCausalLM.from_pretrained(tiny.path())
    >>> tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    ```
    """
    return str(Path(__file__).parent / "weights")
