"""Two-phase commit: the effect of a step is prepared, and committed at the commit point of its saga."""

from __future__ import annotations

from saga_activities.guard.two_phase.two_phase_guard import TwoPhaseGuard, two_phase_guard

__all__ = ["TwoPhaseGuard", "two_phase_guard"]
