//! Keeps one datapath equal to what the policies say.
