//! The same cases on an API server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_cluster::{Cluster, Definitions, definitions_server};
use weir_controllers::crds;

use crate::{cases, yaml::yaml};

/// CEL rules are stable since this minor version.
const MIN_MINOR_VERSION: u32 = 29;

/// An API server that evaluates CEL rules.
pub(crate) enum Server {
    /// The API server of the cluster.
    Full(Cluster),
    /// A server for definitions alone, which uses the cluster and is stopped first.
    DefinitionsOnly(Definitions, #[expect(dead_code, reason = "the first uses it")] Cluster),
}

impl Server {
    pub(crate) fn start() -> Self {
        let cluster = Cluster::start().unwrap();
        match definitions_server() {
            Ok(_) => Server::DefinitionsOnly(cluster.definitions().unwrap(), cluster),
            Err(_) => Server::Full(cluster),
        }
    }

    pub(crate) fn create(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        match self {
            Server::Full(cluster) => cluster.create(path, object),
            Server::DefinitionsOnly(definitions, _) => definitions.create(path, object),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Result<Value, kube::Error> {
        match self {
            Server::Full(cluster) => cluster.get(path),
            Server::DefinitionsOnly(definitions, _) => definitions.get(path),
        }
    }
}

/// Whether an API server that evaluates CEL is installed.
pub(crate) fn is_available() -> bool {
    definitions_server().is_ok()
        || weir_cluster::Programs::find()
            .ok()
            .and_then(|programs| programs.minor_version())
            .is_some_and(|minor| minor >= MIN_MINOR_VERSION)
}

pub(crate) fn agrees() {
    let server = Server::start();
    for crd in crds::ALL {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let created = server.create(path, &yaml(crd.yaml));
        created.unwrap_or_else(|error| panic!("{}: {error}", crd.name));
        let start = Instant::now();
        while server.get(&objects(crd.name)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "{} is not served", crd.name);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    for case in cases::of_rules().into_iter().chain(cases::of_schemas()) {
        let definition = definition(case.definition);
        let (group, version) = (&definition["spec"]["group"], &definition["spec"]["versions"][0]);
        let object = json!({
            "apiVersion": format!("{}/{}", group.as_str().unwrap(), version["name"].as_str().unwrap()),
            "kind": definition["spec"]["names"]["kind"],
            "metadata": {"generateName": "try-"},
            "spec": case.spec,
        });
        let answer = server.create(&objects(case.definition), &object);
        match (answer, &case.rejected[..]) {
            (Ok(_), []) => (),
            (Err(kube::Error::Api(status)), [_, ..]) if status.code == 422 => {
                for (field, message) in &case.rejected {
                    assert!(status.message.contains(&format!("{field}: ")), "{}", status.message);
                    assert!(status.message.contains(message), "{}: {}", case.spec, status.message);
                }
            }
            (answer, _) => panic!("{} {}: {answer:?}", case.definition, case.spec),
        }
    }
}

fn definition(name: &str) -> Value {
    yaml(crds::ALL.iter().find(|crd| crd.name == name).unwrap().yaml)
}

/// The path of the objects of a definition.
fn objects(name: &str) -> String {
    let (plural, group) = name.split_once('.').unwrap();
    let version = definition(name)["spec"]["versions"][0]["name"].clone();
    format!("/apis/{group}/{}/namespaces/default/{plural}", version.as_str().unwrap())
}
