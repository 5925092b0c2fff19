"""Trainers: TRL's, with episodes."""
