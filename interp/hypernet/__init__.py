"""A network that reads an instruction and two runs, and says which tokens and which subspace to interchange."""
