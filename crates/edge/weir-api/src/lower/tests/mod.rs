mod admin;
mod network_policy;
mod pods;
