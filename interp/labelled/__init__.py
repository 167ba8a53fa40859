"""Labelled texts: what a classifier learns from, and the attribute it must not lean on."""
