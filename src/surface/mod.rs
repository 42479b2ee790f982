//! HTTP API, CLI, metrics: the top.
