"""What a run shows: tables and pictures made from its logs."""

from .summary import print_summary, save_learning_curve


__all__ = ["print_summary", "save_learning_curve"]
