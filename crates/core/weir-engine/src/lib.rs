//! Compiles the world into rule sets, incrementally, and explains a flow.
