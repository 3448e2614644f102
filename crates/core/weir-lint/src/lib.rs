//! Findings about a world.
