"""Does the reasoning depend on the input? The mutual-information diagnostics of RAGEN-2 (arXiv 2604.06268)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


# What is pure arithmetic does not wait for what imports models.
_WHERE = {
    "CollapseRules": "regimes",
    "MarginalStdEMA": "mutual_information",
    "Regime": "regimes",
    "RegimeTracker": "regimes",
    "classify_regime": "regimes",
    "cross_log_probs": "cross_scoring",
    "mutual_information_metrics": "mutual_information",
}
__all__ = sorted(_WHERE)

if TYPE_CHECKING:
    from .cross_scoring import cross_log_probs as cross_log_probs
    from .mutual_information import MarginalStdEMA as MarginalStdEMA
    from .mutual_information import mutual_information_metrics as mutual_information_metrics
    from .regimes import CollapseRules as CollapseRules
    from .regimes import Regime as Regime
    from .regimes import RegimeTracker as RegimeTracker
    from .regimes import classify_regime as classify_regime


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
