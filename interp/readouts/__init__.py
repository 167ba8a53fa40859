"""Read-outs: what a run's activations say in the model's own vocabulary, and where its heads look."""

from interp.readouts.direct import DirectAttribution as DirectAttribution
from interp.readouts.direct import direct_logit_attribution as direct_logit_attribution
from interp.readouts.lens import LogitLens as LogitLens
from interp.readouts.lens import logit_lens as logit_lens
from interp.readouts.patterns import AttentionPatterns as AttentionPatterns
from interp.readouts.patterns import attention_patterns as attention_patterns
