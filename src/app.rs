//! The sole place that wires the layers.
