//! Where the world comes from: folders of manifests.
