//! Generators and runners for tests; a dev-dependency only.
