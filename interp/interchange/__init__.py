"""Interchange interventions: a part of one run is put into another, and the answer should follow."""
