//! Where the world comes from: the API server of a cluster.
