"""Featurizers: activations as features and what these do not explain."""
