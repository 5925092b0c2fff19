"""Does the reasoning depend on the input? The mutual-information diagnostics of RAGEN-2 (arXiv 2604.06268)."""

from .cross_scoring import cross_log_probs
from .mutual_information import MarginalStdEMA, mutual_information_metrics
from .regimes import CollapseRules, Regime, RegimeTracker, classify_regime


__all__ = [
    "CollapseRules",
    "MarginalStdEMA",
    "Regime",
    "RegimeTracker",
    "classify_regime",
    "cross_log_probs",
    "mutual_information_metrics",
]
