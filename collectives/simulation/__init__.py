"""Predictions for networks of any size: a call is simulated by the quickest engine that can do it.

The exact engine is in proof/; here is the vector engine, which takes an algorithm with a symmetry to 10,000 ranks in
seconds, the choice between them, and training steps, whose gradients are fused by the rules that run. `ronde simulate`
is the command. Nothing at run time uses this room.
"""

from __future__ import annotations

from collectives.simulation.prediction import Prediction, choices, predict_call
from collectives.simulation.training import Gradient, StepPrediction, TrainingStep, predict_step
from collectives.simulation.vector import simulate_vector

__all__ = [
    "Gradient",
    "Prediction",
    "StepPrediction",
    "TrainingStep",
    "choices",
    "predict_call",
    "predict_step",
    "simulate_vector",
]
