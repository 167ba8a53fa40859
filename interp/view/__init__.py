"""Figures and pages, for a notebook or as one HTML file each; figures need plotly: ``pip install 'interp[view]'``."""

from interp.view.cards import view_cards as view_cards
from interp.view.circuits import heads as heads
from interp.view.circuits import heads_by_position as heads_by_position
from interp.view.circuits import positions as positions
from interp.view.circuits import ranked as ranked
from interp.view.clusters import view_clusters as view_clusters
from interp.view.comparisons import agreement as agreement
from interp.view.comparisons import membership as membership
from interp.view.figures import attention as attention
from interp.view.figures import bars as bars
from interp.view.figures import curves as curves
from interp.view.figures import heatmap as heatmap
from interp.view.figures import heatmaps as heatmaps
from interp.view.page import save as save
from interp.view.page import view as view
from interp.view.selections import overlaps as overlaps
from interp.view.selections import selection as selection
