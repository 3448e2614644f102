mod admin;
mod network_policy;
mod parts;
mod pods;
