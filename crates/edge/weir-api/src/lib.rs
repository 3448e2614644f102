//! Kubernetes objects and policy tests, read and lowered to the model; no I/O.
