"""What a run shows: tables and pictures made from its logs."""

from .summary import evaluations, print_summary, save_learning_curve, summary_table


__all__ = ["evaluations", "print_summary", "save_learning_curve", "summary_table"]
