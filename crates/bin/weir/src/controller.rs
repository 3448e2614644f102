use std::{
    collections::BTreeSet,
    fs,
    hash::{BuildHasher, RandomState},
    path::PathBuf,
};

use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use weir_controllers::{
    CleanupError, Controller, ControllerOptions, OnDisable, clusterset, conditions, hpp, memcached,
};
use weir_kube::{Access, ObjectId, RetryPolicy};

use crate::{
    clusters,
    clusterset_args::ClusterSetArgs,
    exit::Exit,
    failure::Failure,
    listen::{self, Http},
    log::LogArgs,
    opflex,
};

/// Run controllers
///
/// Each controller creates and updates objects of the cluster that other objects request. Of
/// several processes, the one that holds the lease is the leader; the others wait. A controller
/// writes nothing before its first complete list, and never changes objects that it does not own.
/// SIGTERM releases the lease, so that another process becomes the leader immediately.
///
/// `hpp` owns all HostprotPols and HostprotRemoteIpContainers in its namespace. `--cleanup hpp`
/// removes them; give it the `--hpp-namespace` of the controller.
///
/// `--cleanup clusterset` leaves the set: it removes this cluster's objects from the broker, so that
/// other clusters stop allowing its pods, and the NetworkPolicies here that allow pods of other
/// clusters. The NetworkPolicies that isolate pods stay.
#[derive(Args)]
#[command(
    after_help = "Controllers:\n  conditions  writes to admin policies where they are in force\n  clusterset  translates ClusterSetNetworkPolicies to NetworkPolicies, through a broker\n  memcached   creates the NetworkPolicy that a Memcached requests\n  hpp         writes host protection policies for Cisco ACI\n\nExamples:\n  weir controller --enable memcached\n  weir controller --enable memcached --memcached-on-disable delete --http 0.0.0.0:9641\n  weir controller --enable hpp --aci-prefix demo\n  weir controller --cleanup hpp --hpp-namespace weir-hpp\n  weir controller --cleanup clusterset --cluster-id east --broker-kubeconfig broker\n\nHTTP: /healthz /readyz /metrics; clusterset also serves /remotepods, and hpp /hpp on --hpp-http"
)]
pub(crate) struct ControllerCommand {
    /// The controllers to run
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required_unless_present = "cleanup")]
    enable: Vec<ControllerName>,
    /// Remove all objects of a controller and exit; fails while a controller holds the lease
    #[arg(long, value_name = "NAME", value_parser = [clusterset::NAME, hpp::NAME], conflicts_with = "enable")]
    cleanup: Option<String>,
    /// The kubeconfig of the cluster [default: KUBECONFIG, ~/.kube/config, or the service account
    /// of the pod]
    #[arg(long, value_name = "PATH")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The namespace of the lease [default: the namespace of the pod, or kube-system]
    #[arg(short, long, value_name = "NAME", value_parser = namespace)]
    namespace: Option<String>,
    /// The name of the lease; processes that run different controllers need different leases
    #[arg(long, value_name = "NAME", default_value = "weir-controller", value_parser = NonEmptyStringValueParser::new())]
    lease: String,
    /// The address to serve HTTP on, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9641", value_parser = listen::http)]
    http: Http,
    #[command(flatten)]
    log: LogArgs,
    /// The treatment of the NetworkPolicy of a Memcached that no longer requests one
    #[arg(long, value_enum, default_value = "keep")]
    memcached_on_disable: OnDisableArg,
    /// The namespace in which the agents report the policies that are in force (`--report-to`)
    /// [default: the namespace of the lease]
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    report_namespace: Option<String>,
    #[command(flatten)]
    aci: opflex::Aci,
    /// The address to serve /hpp on, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8091", value_parser = listen::http, help_heading = "Cisco ACI")]
    hpp_http: Http,
    #[command(flatten)]
    clusterset: ClusterSetArgs,
}

/// The name of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum ControllerName {
    Clusterset,
    Conditions,
    Hpp,
    Memcached,
}

impl ControllerName {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ControllerName::Clusterset => clusterset::NAME,
            ControllerName::Conditions => conditions::NAME,
            ControllerName::Hpp => hpp::NAME,
            ControllerName::Memcached => memcached::NAME,
        }
    }
}

/// The treatment of objects that are no longer requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnDisableArg {
    /// Keep it until its owner is deleted
    Keep,
    /// Delete it
    Delete,
}

impl ControllerCommand {
    pub(crate) fn run(&self) -> anyhow::Result<Exit> {
        match self.cleanup.as_deref() {
            Some(clusterset::NAME) => return self.leave(),
            Some(_) => return self.clean_up(),
            None => (),
        }
        let names: BTreeSet<&ControllerName> = self.enable.iter().collect();
        let controllers = names.into_iter().map(|name| self.controller(*name));
        let controllers = controllers.collect::<anyhow::Result<_>>()?;
        self.log.start();
        let options = ControllerOptions {
            access: self.access(),
            namespace: self.namespace.clone().unwrap_or_else(own_namespace),
            lease: self.lease.clone(),
            controllers,
            http: self.http.0,
            identity: identity(),
            retry_policy: RetryPolicy::default(),
        };
        weir_controllers::run(&options).map_err(|error| {
            let hint = error.hint();
            Failure::new(error, hint)
        })?;
        Ok(Exit::Yes)
    }

    /// Removes the objects of `hpp`.
    fn clean_up(&self) -> anyhow::Result<Exit> {
        self.log.start();
        let namespace = &self.aci.hpp_namespace;
        let removed = hpp::cleanup(self.access(), namespace, &self.lease()).map_err(not_removed)?;
        let hpp::Removed { pols, containers } = removed;
        if removed == hpp::Removed::default() {
            tracing::warn!(
                "there were no HostprotPols and no HostprotRemoteIpContainers in {namespace}; \
                 check --hpp-namespace: it must be that of the controller"
            );
            return Ok(Exit::Yes);
        }
        tracing::info!(
            "removed {pols} HostprotPols and {containers} HostprotRemoteIpContainers from {namespace}"
        );
        Ok(Exit::Yes)
    }

    /// Leaves the set of clusters.
    fn leave(&self) -> anyhow::Result<Exit> {
        let departure = self.clusterset.departure(self.access())?;
        self.log.start();
        let removed = clusterset::leave(&departure, &self.lease()).map_err(not_removed)?;
        let clusterset::Removed { pods, others, network_policies } = removed;
        tracing::info!(
            "removed {pods} RemotePods and {others} other objects of {} from the broker, and \
             {network_policies} NetworkPolicies that allowed pods of other clusters",
            departure.cluster
        );
        Ok(Exit::Yes)
    }

    /// The API server of the cluster.
    fn access(&self) -> Access {
        Access::new(self.kubeconfig.as_deref(), self.context.as_deref())
    }

    /// The lease of the controllers.
    fn lease(&self) -> ObjectId {
        ObjectId::new(self.namespace.clone().unwrap_or_else(own_namespace), &*self.lease)
    }

    fn controller(&self, name: ControllerName) -> anyhow::Result<Controller> {
        match name {
            ControllerName::Memcached => {
                let on_disable = match self.memcached_on_disable {
                    OnDisableArg::Keep => OnDisable::Keep,
                    OnDisableArg::Delete => OnDisable::Delete,
                };
                Ok(Controller::Workload(memcached::workload(on_disable)))
            }
            ControllerName::Hpp => Ok(Controller::Hpp(hpp::HppSettings {
                prefix: self.aci.aci_prefix.clone(),
                namespace: self.aci.hpp_namespace.clone(),
                http: self.hpp_http.0,
            })),
            ControllerName::Conditions => {
                let namespace = self.report_namespace.clone().or_else(|| self.namespace.clone());
                let namespace = namespace.unwrap_or_else(own_namespace);
                Ok(Controller::Conditions(conditions::ConditionsSettings { namespace }))
            }
            ControllerName::Clusterset => {
                Ok(Controller::ClusterSet(Box::new(self.clusterset.settings()?)))
            }
        }
    }
}

/// The error of a cleanup, with its hint.
fn not_removed(error: CleanupError) -> Failure {
    let hint = error.hint();
    Failure::new(error, hint)
}

/// Parses the name of a namespace.
fn namespace(text: &str) -> Result<String, String> {
    if clusters::is_label(text) {
        Ok(text.into())
    } else {
        Err("expected a namespace: at most 63 characters of a-z, 0-9 and `-`".into())
    }
}

/// The namespace of the pod that runs this process.
fn own_namespace() -> String {
    const FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let namespace = fs::read_to_string(FILE).unwrap_or_default();
    match namespace.trim() {
        "" => "kube-system".into(),
        namespace => namespace.into(),
    }
}

/// A unique name for this process: the host name and a random number.
fn identity() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_default();
    let host = if host.is_empty() { "weir" } else { &host };
    format!("{host}_{:016x}", RandomState::new().hash_one(std::process::id()))
}
