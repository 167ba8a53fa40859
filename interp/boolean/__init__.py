"""Small networks of which every explanation can be listed: circuits, readings of a circuit, formulas, mappings.

After Méloux, Maniu, Portet and Peyrard, "Everything, everywhere, all at once: is mechanistic interpretability
identifiable?" (2502.20914). Every count depends on its conventions, so each comes with them.
"""
